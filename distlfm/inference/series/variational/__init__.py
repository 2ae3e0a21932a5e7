"""Fits through the solver by a variational q of parameters and force, corrected by importance."""
