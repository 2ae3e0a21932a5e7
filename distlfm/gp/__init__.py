"""Gaussian processes as pure functions of their hyperparameters, a batch of instances at a time."""
