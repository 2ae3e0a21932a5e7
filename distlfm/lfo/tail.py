"""The end of a network as a function of its weights, on features that are frozen and computed once.

An adapter tunes no more than that. Whoever changes the head of the network changes `heads.py` and this file.

Shapes: `B` instances, `L` forces, `K` parameters, `H` hidden channels of the last projection.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from distlfm.instance import FloatArray
from distlfm.lfo.heads import HeadOutput, Stage
from distlfm.lfo.model import FourierOperator, OperatorOutput

Adapter = Literal["none", "head", "shift"]
"""head: the last projection and the shifts of the parameters, some two hundred weights. shift: only what is added to
forces, parameters and their log-variances."""


GATE, HIDDEN = "first.project.modulate.bias", "first.project.inner.weight"
"""Weights of the first projection: the gains, then shifts, of its hidden units, and what these see of the channels."""
PROJECTION = ("first.project.inner.*", "first.project.outer.*", "first.project.modulate.weight")
"""All other weights of that projection, as patterns."""


def last_stage(model: FourierOperator) -> tuple[str, Stage]:
    """The stage whose answer is given, and its name."""
    name = "second" if model.equation is not None else "first"
    stage = model.get_submodule(name)
    assert isinstance(stage, Stage)
    return name, stage


def adapter_parameters(model: FourierOperator, kind: Adapter) -> tuple[str, ...]:
    """The weights that an adapter tunes."""
    name, _ = last_stage(model)
    shifts = (f"{name}.project.outer.bias", f"{name}.estimate.bias")
    if kind == "shift":
        return shifts
    return (f"{name}.project.outer.weight", *shifts)


class Projection(NamedTuple):
    """Weights of the first projection, as they are in a network.

    inner: [H, W]; bias: [H]; outer: [2 L, H]; last: [2 L]; modulate: [2 H, S]; gate: [2 H], gains, then shifts.
    """

    inner: Tensor
    bias: Tensor
    outer: Tensor
    last: Tensor
    modulate: Tensor
    gate: Tensor


def projection_of(model: FourierOperator) -> Projection:
    """Return these weights of a network; who writes into them changes it."""
    one = model.first.project
    parts = (one.inner.weight, one.inner.bias, one.outer.weight, one.outer.bias, one.modulate.weight, one.modulate.bias)
    return Projection(*parts)


def with_projection(
    model: FourierOperator, inner: FloatArray, bias: FloatArray, outer: FloatArray, last: FloatArray
) -> FourierOperator:
    """Return a copy whose first projection has these layers and is not modulated, but for its `GATE`.

    inner: [H, W]; bias: [H]; outer: [2 L, H]; last: [2 L].
    """
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for weight, value in zip(projection_of(changed), (inner, bias, outer, last, 0.0), strict=False):
            weight.copy_(torch.as_tensor(value))
    return changed


class Features(NamedTuple):
    """All that the end of a network needs of B windows, with the adapter's weights left out.

    hidden: [B, *points, H]; force: [B, L, *points], the part of the force that is not tuned; params, params_logvar:
    [B, K] without their shifts; unit: [B, L]; summary: [B, S].
    """

    hidden: Tensor
    force: Tensor
    params: Tensor
    params_logvar: Tensor
    unit: Tensor
    summary: Tensor


class Tail:
    """The end of a network as a function of its weights."""

    def __init__(self, model: FourierOperator) -> None:
        self.model = model
        self.name, self.stage = last_stage(model)

    @torch.no_grad()
    def features(self, values: Tensor, mask: Tensor) -> Features:
        """Run the frozen part; values, mask: [B, P, *grid]."""
        seen: dict[nn.Module, Any] = {}

        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            seen[module] = inputs[0] if module is stage.project.outer else output

        stage, first = self.stage, self.model.first
        watched = (first, stage.project.outer, stage.level, stage.estimate)
        hooks = [module.register_forward_hook(keep) for module in watched]
        try:
            whole = self.model(values, mask)
        finally:
            for hook in hooks:
                hook.remove()
        level, before = seen[stage.level], seen[first]
        assert isinstance(before, HeadOutput)
        params, params_logvar = (seen[stage.estimate] - stage.estimate.bias).chunk(2, -1)
        force = level.view(*level.shape, *(1,) * self.model.num_dims)
        if self.name == "second":
            force, params = before.force + force, before.params + params
        else:
            force = force.expand_as(before.force)
        return Features(seen[stage.project.outer], force, params, params_logvar, whole.unit, whole.summary)

    def predict(self, weights: Mapping[str, Tensor], seen: Features, grid: tuple[int, ...]) -> OperatorOutput:
        """The network's prediction with these weights, by their names in the model; others are the model's own."""
        own = self.stage.project.outer
        weight = weights.get(f"{self.name}.project.outer.weight", own.weight)
        bias = weights.get(f"{self.name}.project.outer.bias", own.bias)
        shift, shift_logvar = weights.get(f"{self.name}.estimate.bias", self.stage.estimate.bias).chunk(2, -1)
        force, logvar = (seen.hidden @ weight.T + bias).movedim(-1, 1).chunk(2, 1)
        params, params_logvar = seen.params + shift, seen.params_logvar + shift_logvar
        output = HeadOutput(seen.force + force, logvar, params, params_logvar, seen.summary)
        return self.model.answer(output, seen.unit, grid)
