"""The mechanisms of the shipped partial differential equations, by the names of their classes."""

from __future__ import annotations

from distlfm.equations import advection_diffusion, fisher_kpp, reaction_diffusion
from distlfm.mechanisms.field import field_of

AdvectionDiffusion = field_of(advection_diffusion.AdvectionDiffusion)
FisherKpp = field_of(fisher_kpp.FisherKpp)
ReactionDiffusion = field_of(reaction_diffusion.ReactionDiffusion)
