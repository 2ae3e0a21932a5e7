"""ODEs forward in time, every sample of every instance in the same tensor operations.

States are computed on a uniform grid of τ (`solvers/base.py`) and read at each instance's own times by cubic Hermite
interpolation from states and slopes, whose error is O(step⁴), as that of `rk4`.

Fixed steps are taken here, which is twice as fast as by torchdiffeq, with the same numbers; adaptive steps and adjoint
gradients are torchdiffeq's. Fixed-step trajectories know nothing of each other. Adaptive ones share their steps, which
are short enough for the one that needs the shortest: neighbours change an answer within its tolerance only.

torchdiffeq's adjoint wants the tensors of its vector field as a list, and takes them for independent of each other.
Ours are not: a draw's weights depend on the hyperparameters that its features hold too. So the solve runs on detached
copies of all of them, and their gradients go on to the originals as those of one operation.

Shapes: `S` samples, `B` instances, `T` times, `D` states, `G` grid points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torchdiffeq import odeint, odeint_adjoint

from distlfm.errors import UsageError
from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.priors import Values
from distlfm.solvers.base import Force, OdeProblem, SolverConfig, Trajectory, VectorField


def _by_adjoint(problem: OdeProblem, table: Tensor | None, steps: int, config: SolverConfig) -> Tensor:
    """States on the grid, by copies of all tensors that take gradients; the gradients reach the originals."""
    problem = replace(problem, force=_see_through(problem.force) if table is None else _never)
    originals: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            originals.append(tensor)
        return tensor

    _map_tensors((problem, table), note)

    def on_copies(copies: Sequence[Tensor]) -> Tensor:
        rest = iter(copies)
        mine, its_table = _map_tensors((problem, table), lambda tensor: next(rest) if tensor.requires_grad else tensor)
        return _by_torchdiffeq(mine, its_table, copies, steps, config)

    result: Tensor = _SetApart.apply(on_copies, *originals)  # type: ignore[no-untyped-call]
    return result


class _SetApart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[Sequence[Tensor]], Tensor], *originals: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.copies = [original.detach().requires_grad_() for original in originals]
            result = ctx.result = function(ctx.copies)
        return result.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_copy = torch.autograd.grad(ctx.result, ctx.copies, gradients[0], allow_unused=True)
        return None, *by_copy


@dataclass(frozen=True)
class _Functional:
    """A module as a function of its parameters."""

    module: torch.nn.Module
    parameters: Mapping[str, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(self.module, dict(self.parameters), (x,))
        return result


def _see_through(force: Force) -> Force:
    if isinstance(force, torch.nn.Module):
        return _Functional(force, dict(force.named_parameters()))
    if is_dataclass(force):
        return force
    raise UsageError(
        "The adjoint gradient cannot see which tensors the force is made of.",
        "Give the force as a draw, a dataclass or a torch.nn.Module, or set solver.gradient=backprop.",
    )


def _never(x: Tensor) -> Tensor:
    raise AssertionError(f"a tabulated force was asked for values at {tuple(x.shape)}")


def _map_tensors(thing: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of nested dataclasses, tuples and mappings with each tensor changed, in one fixed order."""
    if isinstance(thing, Tensor):
        return change(thing)
    if isinstance(thing, Mapping):
        return {key: _map_tensors(value, change) for key, value in thing.items()}
    if isinstance(thing, tuple):
        parts = [_map_tensors(part, change) for part in thing]
        return type(thing)(*parts) if hasattr(thing, "_fields") else tuple(parts)
    if is_dataclass(thing) and not isinstance(thing, type):
        return replace(
            thing, **{field.name: _map_tensors(getattr(thing, field.name), change) for field in fields(thing)}
        )
    return thing


LIMIT = 1e15
"""A state beyond this counts as diverged, in any unit that data come in."""

STEEPEST = 1e25
"""Rates are kept within this where steps are adaptive, so that a step of `SHORTEST` passes `LIMIT` and stays finite."""

SHORTEST = 1e-5
"""The shortest adaptive step, as a part of the time span: work is bounded, however stiff an instance is."""

STEPS_PER_GAP = 4
"""Steps from one observation to the next, if they are at the median distance."""

ADAPTIVE_REFINEMENT = 4
"""Times finer is the grid of an adaptive method, which costs it little: interpolation must not spoil its tolerance."""

MIN_STEPS, MAX_STEPS = 32, 512
"""Bounds on the number of steps that is chosen from data."""

Rule = tuple[tuple[float, ...], ...]

RULES: dict[str, Rule] = {
    "rk4": ((1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0), (1 / 8, 3 / 8, 3 / 8, 1 / 8)),
    "heun3": ((1 / 3,), (0.0, 2 / 3), (1 / 4, 0.0, 3 / 4)),
    "heun2": ((1.0,), (1 / 2, 1 / 2)),
    "midpoint": ((1 / 2,), (0.0, 1.0)),
    "euler": ((1.0,),),
}
"""Butcher's tableau: coefficients a_ij of stages 2, 3, …, each at the time of their sum, then the weights b_j.

`rk4` is Kutta's 3/8 rule, as in torchdiffeq.
"""

CLASSICAL: Rule = ((1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6))
"""The classical rule of order 4, whose stages lie at the ends and in the middle of a step."""

PARTS = {"rk4": 3, "heun3": 3, "heun2": 1, "midpoint": 2, "euler": 1}
"""Equal parts of a step at whose ends all stages lie."""


def solve(mechanism: Mechanism, force: Force, values: Values, times: Tensor, config: SolverConfig) -> Trajectory:
    """States at `times` [B, T] of the mechanism driven by `force`, from the mechanism's start at `times[:, 0]`.

    values: each [B, K], or [S, B, K] where samples differ. times: not decreasing; padding repeats the last.
    With `config.steps` unset, the number of steps is that of the instance that needs most (`choose_steps`).
    """
    steps = config.steps or int(choose_steps(times, adaptive=config.method not in RULES).max())
    problem = OdeProblem.of(mechanism, force, values, times)
    grid = _integrate(problem, steps, config)
    ok = _bounded(grid)
    if not bool(ok.all()):
        # What diverged is held at its start from the beginning: no gradient, nothing infinite, no short steps for it.
        problem = problem.holding(~ok)
        grid = _integrate(problem, steps, config)
        ok = ok & _bounded(grid)
    return Trajectory(_interpolate(grid, problem.slopes(grid), problem.fractions(times)), ok)


def choose_steps(times: Tensor, mask: Tensor | None = None, *, adaptive: bool = False) -> Tensor:
    """Number of steps of each instance, [B] of int.

    It needs `STEPS_PER_GAP` for its median gap between observed times [B, T] (mask [B, T], or [B, P, T] for several
    outputs), and as many for as many such gaps as its span holds; bounded by `MIN_STEPS` and `MAX_STEPS`.
    """
    if mask is not None and mask.dim() == 3:
        mask = mask.any(-2)
    refinement = ADAPTIVE_REFINEMENT if adaptive else 1
    needed = torch.full((len(times),), MIN_STEPS)
    for b, row in enumerate(times.detach()):
        gaps = torch.diff(torch.unique(row if mask is None else row[mask[b]]))
        if len(gaps):
            needed[b] = max(MIN_STEPS, math.ceil(STEPS_PER_GAP * float((row[-1] - row[0]) / gaps.median())))
    return needed.clamp(max=MAX_STEPS) * refinement


def check_step(mechanism: Mechanism, force: Force, values: Values, times: Tensor, config: SolverConfig) -> Tensor:
    """How much the outputs change when the steps are halved, [B]: the largest change over samples, outputs and times,

    relative to the largest value of that output in that sample. Infinite for an instance of which all samples diverge;
    those that do so are otherwise left out. Where it is too large, double `config.steps` and check again.
    """
    steps = config.steps or int(choose_steps(times, adaptive=config.method not in RULES).max())
    rows = {name: value.unsqueeze(-2) for name, value in values.items()}
    with torch.no_grad():
        coarse, fine = (
            solve(mechanism, force, values, times, config.model_copy(update={"steps": count}))
            for count in (steps, 2 * steps)
        )
        y, finer = mechanism.observe(coarse.states, rows), mechanism.observe(fine.states, rows)
        size = finer.abs().amax(-2).clamp_min(torch.finfo(finer.dtype).tiny)
        change = ((y - finer).abs().amax(-2) / size).amax(-1)
        ok = coarse.ok & fine.ok
        return torch.where(ok, change, 0.0).amax(0).where(ok.any(0), torch.inf)


def _bounded(grid: Tensor) -> Tensor:
    """Which trajectories [S, B, G, D] are finite and within `LIMIT`, [S, B]; NaN compares as False."""
    return (grid.detach().abs() <= LIMIT).all(-1).all(-1)


def _integrate(problem: OdeProblem, steps: int, config: SolverConfig) -> Tensor:
    """States [S, B, steps + 1, D] on the uniform grid."""
    fixed = config.method in RULES
    table = problem.tabulate(PARTS[config.method] * steps) if fixed and not problem.state_driven else None
    if config.gradient == "adjoint":
        return _by_adjoint(problem, table, steps, config)
    if not fixed:
        return _by_torchdiffeq(problem, None, None, steps, config)
    field = problem.direct if table is None else problem.tabulated(table)
    return march(field, problem.start, steps, RULES[config.method])


def march(field: VectorField, start: Tensor, steps: int, rule: Rule) -> Tensor:
    """States [..., steps + 1, D] by explicit Runge–Kutta steps of equal length from start [..., D], τ = 0 to 1."""
    *stages, weights = rule
    length = 1 / steps
    y, states = start, [start]
    for i in range(steps):
        slopes = [field(i / steps, y)]
        for row in stages:
            slopes.append(field((i + sum(row)) / steps, _combine(y, slopes, row, length)))
        y = _combine(y, slopes, weights, length)
        states.append(y)
    return torch.stack(states, -2)


def _combine(y: Tensor, slopes: list[Tensor], row: tuple[float, ...], length: float) -> Tensor:
    for slope, coefficient in zip(slopes, row, strict=True):
        if coefficient:
            y = torch.add(y, slope, alpha=length * coefficient)
    return y


def _by_torchdiffeq(
    problem: OdeProblem, table: Tensor | None, parameters: Sequence[Tensor] | None, steps: int, config: SolverConfig
) -> Tensor:
    """States on the grid; given `parameters`, their gradients come from the adjoint equation."""
    inner = problem.direct if table is None else problem.tabulated(table)

    def field(tau: Tensor, y: Tensor) -> Tensor:
        return inner(tau.item(), y)

    def guarded(tau: Tensor, y: Tensor) -> Tensor:
        # A trajectory beyond the limit stays where it is: it is flagged afterwards, and holds nobody up.
        beyond = (y.abs() > LIMIT).any(-1, keepdim=True)
        rate = inner(tau.item(), y.clamp(-LIMIT, LIMIT))
        rate = torch.nan_to_num(rate, STEEPEST, STEEPEST, -STEEPEST).clamp(-STEEPEST, STEEPEST)
        return torch.where(beyond, torch.zeros_like(rate), rate)

    tau = torch.arange(steps + 1, dtype=problem.start.dtype, device=problem.start.device) / steps
    start = problem.start
    settings: dict[str, Any] = {"method": config.method}
    if config.method not in RULES:
        # Steps end on the grid: torchdiffeq's interpolants are less accurate than its steps, and a longer step could
        # jump over a short pulse of the force.
        options = {"norm": _worst_row, "min_step": SHORTEST, "step_t": tau[1:-1]}
        settings |= {"rtol": config.rtol, "atol": config.atol, "options": options}
        start = torch.nan_to_num(start, 2 * LIMIT, 2 * LIMIT, -2 * LIMIT)
        field = guarded
    if parameters is None:
        states: Tensor = odeint(field, start, tau, **settings)
    else:
        backwards = {} if config.method in RULES else {"min_step": SHORTEST}
        states = odeint_adjoint(field, start, tau, **settings, adjoint_params=parameters, adjoint_options=backwards)
    return states.movedim(0, -2)


def _worst_row(error: Tensor) -> Tensor:
    """The norm that accepts a step: root mean square over the states of the worst sample of the worst instance."""
    return error.detach().square().mean(-1).sqrt().amax()


def _interpolate(grid: Tensor, slopes: Tensor, tau: Tensor) -> Tensor:
    """Cubic Hermite interpolation of states and slopes [S, B, G, D] on the uniform grid at τ [B, T]: [S, B, T, D]."""
    steps = grid.shape[-2] - 1
    left = (tau * steps).floor().clamp(max=steps - 1)
    s = (tau * steps - left).unsqueeze(-1)
    index = left.long().unsqueeze(-1).expand(len(grid), *tau.shape, grid.shape[-1])
    y0, y1 = grid.gather(-2, index), grid.gather(-2, index + 1)
    d0, d1 = slopes.gather(-2, index) / steps, slopes.gather(-2, index + 1) / steps
    rise, rest = s * s * (3 - 2 * s), 1 - s
    return y0 + rise * (y1 - y0) + s * rest * (rest * d0 - s * d1)
