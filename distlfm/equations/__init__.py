"""Partial differential equations as weak forms. Nothing here imports torch or dolfin: helpers start quickly."""

from distlfm.equations import advection_diffusion, fisher_kpp, reaction_diffusion
from distlfm.equations.base import EQUATIONS, Coefficient, Equation, positive, real, register_equation

__all__ = [
    "EQUATIONS",
    "Coefficient",
    "Equation",
    "advection_diffusion",
    "fisher_kpp",
    "positive",
    "reaction_diffusion",
    "real",
    "register_equation",
]
