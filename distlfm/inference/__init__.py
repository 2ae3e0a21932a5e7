"""From observations to the posterior of force and parameters, for many instances at once."""
