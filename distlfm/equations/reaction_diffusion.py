"""Reaction–diffusion: ∂_t y = S f − λ y + D ∇²y, in any number of dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distlfm.equations.base import Equation, positive, register_equation
from distlfm.instance import NUMBER, POSITION, RATE, TIME


@register_equation("reaction_diffusion")
class ReactionDiffusion(Equation):
    """A product that is made where the force is, decays, and spreads."""

    coefficients = {  # noqa: RUF012
        "sensitivity": positive(1.0, dimension=NUMBER, meaning="S, effect of the force"),
        "decay": positive(0.3, dimension=TIME**-1, meaning="λ, share that decays"),
        "diffusion": positive(0.03, dimension=POSITION**2 / TIME, meaning="D, how fast it spreads"),
    }
    force_dimension = RATE

    def form(self, y: Any, v: Any, f: Any, p: Mapping[str, Any]) -> Any:
        from ufl import dx, grad, inner

        return (p["sensitivity"] * f * v - p["decay"] * y * v - p["diffusion"] * inner(grad(y), grad(v))) * dx
