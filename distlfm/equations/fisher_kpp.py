"""Fisher–KPP growth with a force: ∂_t y = r y (1 − y / K) + S f + D ∇²y."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distlfm.equations.base import Equation, positive, register_equation
from distlfm.instance import NUMBER, POSITION, RATE, TIME, VALUE


@register_equation("fisher_kpp")
class FisherKpp(Equation):
    """A population that spreads, grows to its capacity, and is fed by an unseen source. It is not linear in y."""

    coefficients = {  # noqa: RUF012
        "sensitivity": positive(1.0, dimension=NUMBER, meaning="S, effect of the force"),
        "growth": positive(1.0, dimension=TIME**-1, meaning="r, while it is far below its capacity"),
        "capacity": positive(1.0, dimension=VALUE, meaning="K, where growth ends"),
        "diffusion": positive(0.03, dimension=POSITION**2 / TIME, meaning="D, how fast it spreads"),
    }
    force_dimension = RATE

    def form(self, y: Any, v: Any, f: Any, p: Mapping[str, Any]) -> Any:
        from ufl import dx, grad, inner

        growth = p["growth"] * y * (1 - y / p["capacity"])
        return ((growth + p["sensitivity"] * f) * v - p["diffusion"] * inner(grad(y), grad(v))) * dx
