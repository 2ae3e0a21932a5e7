"""Plots and self-contained pages of results."""
