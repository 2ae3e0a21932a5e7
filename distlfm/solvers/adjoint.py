"""Gradients by the adjoint equation: every tensor that a solve depends on, found and set apart.

torchdiffeq's adjoint wants the tensors of its vector field as a list, and takes them for independent of each other.
Ours are not: a draw's weights depend on the hyperparameters that its features hold too. So the solve runs on detached
copies of all of them, and their gradients go on to the originals as those of one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.solvers.base import Force
from distlfm.solvers.problem import Problem

Run = Callable[[Problem, Tensor | None, Sequence[Tensor]], Tensor]
"""(problem, table of the force or None, tensors that take gradients) → states."""


def run_set_apart(problem: Problem, table: Tensor | None, run: Run) -> Tensor:
    """`run` on copies of all tensors of the problem that take gradients; its gradients reach the originals."""
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
        return run(mine, its_table, copies)

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
        found = torch.autograd.grad(ctx.result, ctx.copies, gradients[0], allow_unused=True)
        return None, *found


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
