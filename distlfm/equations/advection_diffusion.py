"""Advection–diffusion: ∂_t y = S f − λ y − u·∇y + D ∇²y, with a velocity u a dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distlfm.equations.base import Coefficient, Equation, positive, real, register_equation


@register_equation("advection_diffusion")
class AdvectionDiffusion(Equation):
    """A product that is carried along by a flow while it decays and spreads."""

    coefficients = {  # noqa: RUF012
        "sensitivity": positive(1.0),
        "decay": positive(0.3),
        "diffusion": positive(0.03),
    }

    def named(self, dims: int) -> Mapping[str, Coefficient]:
        return {**self.coefficients, **{f"velocity_{i}": real(0.0, 0.5) for i in range(dims)}}

    def form(self, y: Any, v: Any, f: Any, p: Mapping[str, Any]) -> Any:
        from ufl import dx, grad, inner

        carried = sum(p[f"velocity_{i}"] * y.dx(i) for i in range(y.geometric_dimension()))
        source = p["sensitivity"] * f - p["decay"] * y - carried
        return source * v * dx - p["diffusion"] * inner(grad(y), grad(v)) * dx
