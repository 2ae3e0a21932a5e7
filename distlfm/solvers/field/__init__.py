"""Trajectories of discretised partial differential equations, differentiable, in the process that fits."""
