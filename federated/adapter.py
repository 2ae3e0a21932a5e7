"""The few weights that differential privacy can bear: the last projection of an operator, on features that are frozen.

A site has tens of patients, and noise grows with the number of weights it is added to. So only the end of the network
is tuned, and what comes before it is computed once. The tuned weights are the network's own: a checkpoint holds them
as any other.

Shapes: `B` windows, `L` forces, `K` parameters, `H` hidden channels of the last projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from distlfm.lfo.derivatives import along, spline
from distlfm.lfo.heads import Found, Stage
from distlfm.lfo.model import FourierOperator, Prediction, soft_limits

Adapter = Literal["none", "head", "shift"]
"""head: the last projection and the shifts of the parameters, some two hundred weights. shift: only what is added to
forces, parameters and their log-variances."""


def last_stage(model: FourierOperator) -> tuple[str, Stage]:
    """The stage whose answer is given, and its name."""
    name = "second" if model.equation is not None else "first"
    stage = model.get_submodule(name)
    assert isinstance(stage, Stage)
    return name, stage


def adapter_names(model: FourierOperator, kind: Adapter) -> tuple[str, ...]:
    """The weights that an adapter tunes."""
    name, _ = last_stage(model)
    shifts = (f"{name}.project.outer.bias", f"{name}.estimate.bias")
    if kind == "shift":
        return shifts
    return (f"{name}.project.outer.weight", *shifts)


@dataclass(frozen=True)
class Features:
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

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Tail:
    """The end of a network as a function of its weights."""

    def __init__(self, model: FourierOperator) -> None:
        self.model = model
        self.name, self.stage = last_stage(model)

    @torch.no_grad()
    def features(self, values: Tensor, mask: Tensor) -> Features:
        """Run the frozen part; values, mask: [B, P, *grid]."""
        seen: dict[str, Any] = {}

        def keep(name: str, what: str) -> Any:
            def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
                del module
                seen[name] = inputs[0] if what == "input" else output

            return hook

        stage = self.stage
        hooks = [
            self.model.first.register_forward_hook(keep("first", "output")),
            stage.project.outer.register_forward_hook(keep("hidden", "input")),
            stage.level.register_forward_hook(keep("level", "output")),
            stage.estimate.register_forward_hook(keep("estimate", "output")),
        ]
        try:
            whole = self.model(values, mask)
        finally:
            for hook in hooks:
                hook.remove()
        level, first = seen["level"], seen["first"]
        assert isinstance(first, Found)
        params, params_logvar = (seen["estimate"] - stage.estimate.bias).chunk(2, -1)
        force = level.view(*level.shape, *(1,) * self.model.num_dims)
        if self.name == "second":
            force, params = first.force + force, first.params + params
        else:
            force = force.expand_as(first.force)
        return Features(seen["hidden"], force, params, params_logvar, whole.unit, whole.summary)

    def predict(self, weights: Mapping[str, Tensor], seen: Features, grid: tuple[int, ...]) -> Prediction:
        """The network's prediction with these weights, by their names in the model; others are the model's own."""
        own = self.stage.project.outer
        weight = weights.get(f"{self.name}.project.outer.weight", own.weight)
        bias = weights.get(f"{self.name}.project.outer.bias", own.bias)
        shift, shift_logvar = weights.get(f"{self.name}.estimate.bias", self.stage.estimate.bias).chunk(2, -1)
        force, logvar = (seen.hidden @ weight.T + bias).movedim(-1, 1).chunk(2, 1)
        sd = seen.unit.view(*seen.unit.shape, *(1,) * len(grid))
        centre = self.model.normal.force_mean.view(-1, *(1,) * len(grid))
        return Prediction(
            force=self._shown(seen.force + force, grid) * sd + centre,
            force_logvar=soft_limits(self._shown(logvar, grid)) + 2 * sd.log(),
            params=seen.params + shift,
            params_logvar=soft_limits(seen.params_logvar + shift_logvar),
            unit=seen.unit,
            summary=seen.summary,
        )

    def _shown(self, v: Tensor, grid: tuple[int, ...]) -> Tensor:
        """v [B, L, *points] on the grid of the data, as the network does it."""
        for dim, (points, n) in enumerate(zip(self.model.points, grid, strict=True)):
            if n != points:
                v = along(spline(points, n, v.dtype, v.device), v, dim + 2)
        return v
