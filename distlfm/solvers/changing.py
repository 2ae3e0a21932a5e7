"""Linear mechanisms whose coefficients change in time, solved without stepping, as in `solvers.linear`.

Where `ẏ = A(t) y + B(t) f + c(t)`, what is left of a state after a piece of a panel is e^Ω, with Ω of Magnus' expansion
to fourth order (Blanes et al. 2009) for A that goes as a straight line between two Gauss nodes of the panel. Panels end
where coefficients jump, which is found by bisection; how fine they must be elsewhere is found by halving.

Shapes: leading dimensions `…` are free, `D` states, `P` outputs, `L` forces, `T` times, `n` panels, `G` nodes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.priors import ParameterSpace, Values
from distlfm.solvers.linear import LinearSystem, Panels, carry, extract, is_affine

LOOKED_AT = 4096
"""Even times at which coefficients are looked at: what is shorter than a part of the span of this size is not seen."""

JUMP = 1e-3
"""Change of a coefficient over no time at all, relative to its largest size, that a panel must end at."""

HALVINGS = 40
DRAWS = 6
MOST_JUMPS = 1000


def changing_response(mechanism: Mechanism, values: Values, times: Tensor, grid: Panels) -> tuple[Tensor, Tensor]:
    """Outputs at `times` [..., T] as offset [..., P, T] + Σ_l weight [..., L, P, T, G] · force at the nodes.

    values: each [..., K]. The times are some of the grid's breaks, and the system starts at the first break.
    """
    rows = {name: value.unsqueeze(-2) for name, value in values.items()}
    length = torch.diff(grid.breaks, dim=-1)
    middle = 0.5 * (grid.breaks[..., 1:] + grid.breaks[..., :-1])
    apart = length / math.sqrt(12)
    early, late = (extract(mechanism, rows, middle + side * apart).A for side in (-1, 1))
    level = 0.5 * (early + late)
    slope = (late - early) / (2 * apart).clamp_min(1e-300)[..., None, None]
    steps = torch.linalg.matrix_exp(_magnus(level, slope, -0.5 * length, 0.5 * length))

    each = grid.nodes.shape[-1] // length.shape[-1]
    at_nodes = extract(mechanism, rows, grid.nodes)
    level, slope = (one.repeat_interleave(each, -3) for one in (level, slope))
    length, middle = (one.repeat_interleave(each, -1) for one in (length, middle))
    arriving = torch.linalg.matrix_exp(_magnus(level, slope, grid.nodes - middle, 0.5 * length))
    columns = torch.cat([at_nodes.B, at_nodes.c.unsqueeze(-1)], -1)
    driven, rest = carry(_first(at_nodes).start, steps, grid.weights[..., None, None] * arriving @ columns, times, grid)
    seen = torch.einsum("...pd,...dktg->...kptg", _first(at_nodes).C, driven)
    start = torch.einsum("...pd,...dt->...pt", _first(at_nodes).C, rest)
    offset = start + seen[..., -1, :, :, :].sum(-1) + _first(at_nodes).e.unsqueeze(-1)
    return offset, seen[..., :-1, :, :, :]


def _first(system: LinearSystem) -> LinearSystem:
    """The system at its first time: its start, and how it is observed, are the same at all."""
    places = (system.A[..., 0, :, :], system.B[..., 0, :, :], system.c[..., 0, :], system.C[..., 0, :, :])
    return LinearSystem(*places, system.e[..., 0, :], system.start[..., 0, :])


def _magnus(level: Tensor, slope: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Ω [..., D, D] over (start, end) [...], times from where A = level + slope · time."""
    length, middle = (end - start)[..., None, None], 0.5 * (end + start)[..., None, None]
    between = level + slope * middle
    return length * between + length**3 / 12 * (slope @ between - between @ slope)


@torch.no_grad()
def jumps(mechanism: Mechanism, space: ParameterSpace, first: float, last: float) -> tuple[float, ...] | None:
    """Times at which coefficients jump between two times.

    None where the equation cannot be solved so: it is not linear at some time, jumps are too many, or where they are
    depends on the unknowns.
    """
    stream = torch.Generator().manual_seed(0)
    z = torch.randn(DRAWS, 1, space.num_free, generator=stream, dtype=torch.float64)
    values = space.unpack(z)
    even = torch.linspace(first, last, LOOKED_AT + 1, dtype=torch.float64).expand(DRAWS, -1)
    system = extract(mechanism, values, even)
    y = torch.randn(*even.shape, mechanism.num_states, generator=stream, dtype=torch.float64)
    f = torch.randn(*even.shape, len(mechanism.force_names), generator=stream, dtype=torch.float64)
    if not is_affine(mechanism, values, even, y, f, system):
        return None

    def coefficients(at: Tensor) -> Tensor:
        system = extract(mechanism, values, at)
        return torch.cat([system.A.flatten(-2), system.B.flatten(-2), system.c], -1)

    seen = coefficients(even)
    limit = JUMP * seen.abs().amax(1, keepdim=True)
    high = (((seen[:, 1:] - seen[:, :-1]).abs() > limit).any(-1)).any(0).nonzero().squeeze(-1) + 1
    low, left, right = high - 1, seen[:, high - 1], seen[:, high]
    before, after = even[:1, low], even[:1, high]
    for _ in range(HALVINGS):
        if before.shape[-1] == 0:
            return ()
        middle = 0.5 * (before + after)
        found = coefficients(middle.expand(DRAWS, -1))
        # The half that changes more, in units of what counts, for whichever draw changes most.
        scale = limit.clamp_min(1e-300)
        early, late = ((one / scale).abs().amax((0, -1)) for one in (found - left, right - found))
        lower = early > late
        before, after = torch.where(lower, before, middle), torch.where(lower, middle, after)
        left = torch.where(lower[:, None], left, found)
        right = torch.where(lower[:, None], found, right)
        still = ((right - left).abs() > limit).any(-1).any(0)
        before, after, left, right = before[:, still], after[:, still], left[:, still], right[:, still]
    places = torch.unique(after[0])
    if len(places) > MOST_JUMPS:
        return None
    # Every draw must jump where one does, else where the others jump is unknown.
    common = ((right - left).abs() > limit).any(-1).all(0)
    return tuple(places.tolist()) if bool(common.all()) else None
