"""Advection–diffusion: ∂_t y = S f − λ y − u·∇y + D ∇²y, with one velocity u per dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distlfm.equations.base import Coefficient, Equation, positive, real, register_equation
from distlfm.instance import NUMBER, POSITION, RATE, TIME


@register_equation("advection_diffusion")
class AdvectionDiffusion(Equation):
    """A product that is carried along by a flow while it decays and spreads."""

    coefficients = {  # noqa: RUF012
        "sensitivity": positive(1.0, dimension=NUMBER, meaning="S, effect of the force"),
        "decay": positive(0.3, dimension=TIME**-1, meaning="λ, share that decays"),
        "diffusion": positive(0.03, dimension=POSITION**2 / TIME, meaning="D, how fast it spreads"),
    }
    force_dimension = RATE

    def named(self, dims: int) -> Mapping[str, Coefficient]:
        velocity = real(0.0, 0.5, dimension=POSITION / TIME, meaning="u, of the flow along an axis")
        return {**self.coefficients, **{f"velocity_{i}": velocity for i in range(dims)}}

    def form(self, y: Any, v: Any, f: Any, p: Mapping[str, Any]) -> Any:
        from ufl import dx, grad, inner

        carried = sum(p[f"velocity_{i}"] * y.dx(i) for i in range(y.geometric_dimension()))
        source = p["sensitivity"] * f - p["decay"] * y - carried
        return source * v * dx - p["diffusion"] * inner(grad(y), grad(v)) * dx
