"""Inference for ordinary differential equations."""
