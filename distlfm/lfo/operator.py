"""A trained operator: from an instance's observations to its force and parameters in milliseconds.

Shapes: `L` forces, `K` parameters; `n` points of the grid that the answer is given on, in the order of its dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from scipy.interpolate import RegularGridInterpolator

from distlfm.errors import UsageError
from distlfm.instance import FloatArray, Instance
from distlfm.lfo.checkpoint import load_checkpoint, save_checkpoint
from distlfm.lfo.grid import own_shape, to_grid
from distlfm.lfo.model import FourierOperator, Prediction
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import OperatorConfig, TrainSettings

Z68, Z95 = 0.9944578832097532, 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A parameter: its mean (median where it is learned by its logarithm), sd, and central intervals."""

    name: str
    kind: str
    mean: float
    sd: float
    lower68: float
    upper68: float
    lower95: float
    upper95: float


@dataclass(frozen=True)
class Answer:
    """axes: coordinates of each dimension of the grid, time first. mean, sd, lower and upper: [L, *grid].

    novelty: how unlike the training data the input is, 1 is the limit; warning: a sentence if it is beyond, or None.
    """

    id: str
    forces: tuple[str, ...]
    dims: tuple[str, ...]
    axes: tuple[FloatArray, ...]
    mean: FloatArray
    sd: FloatArray
    lower68: FloatArray
    upper68: FloatArray
    lower95: FloatArray
    upper95: FloatArray
    parameters: tuple[Estimate, ...]
    novelty: float
    warning: str | None

    @property
    def times(self) -> FloatArray:
        return self.axes[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    @cached_property
    def points(self) -> FloatArray:
        """All points of the grid, [n, d], time first."""
        return np.stack([one.ravel() for one in np.meshgrid(*self.axes, indexing="ij")], -1)

    def at(self, times: FloatArray, positions: FloatArray | None = None) -> dict[str, FloatArray]:
        """mean, sd, lower68 … upper95 [L, m] at other points (times [m], positions [m, d]), linear in between."""
        wanted = np.asarray(times, float)[:, None]
        if positions is not None:
            wanted = np.concatenate([wanted, np.asarray(positions, float).reshape(len(wanted), -1)], -1)
        wanted = np.clip(wanted, [axis[0] for axis in self.axes], [axis[-1] for axis in self.axes])
        found = {}
        for name in ("mean", "sd", "lower68", "upper68", "lower95", "upper95"):
            values = np.moveaxis(getattr(self, name), 0, -1)
            found[name] = RegularGridInterpolator(self.axes, values)(wanted).T
        return found


@dataclass
class Operator:
    """A model with its schema, calibration and novelty score. `Operator.load(path)(instance)` answers."""

    schema: OperatorSchema
    config: OperatorConfig
    model: FourierOperator
    calibration: Mapping[str, Any] = field(default_factory=dict)
    novelty: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Operator:
        content = load_checkpoint(path)
        schema = OperatorSchema.model_validate(content["schema"])
        config = OperatorConfig.model_validate(content["operator"])
        model = FourierOperator(config, schema)
        model.load_state_dict(content["weights"])
        return cls(schema, config, model.eval(), content["calibration"], content["novelty"], content["training"])

    def save(self, path: str | Path) -> Path:
        """Write the checkpoint that `load` reads."""
        return save_checkpoint(
            path,
            {
                "schema": self.schema.model_dump(mode="json"),
                "operator": self.config.model_dump(mode="json"),
                "weights": self.model.state_dict(),
                "calibration": dict(self.calibration),
                "novelty": dict(self.novelty),
                "training": dict(self.training),
            },
        )

    @overload
    def __call__(self, instances: Instance) -> Answer: ...
    @overload
    def __call__(self, instances: Sequence[Instance]) -> list[Answer]: ...
    def __call__(self, instances: Instance | Sequence[Instance]) -> Answer | list[Answer]:
        """Answers of one or many instances; those on the same grid are computed together."""
        if isinstance(instances, Instance):
            return self._answers([instances])[0]
        return self._answers(list(instances))

    def _answers(self, instances: list[Instance]) -> list[Answer]:
        shapes = [self.grid_of(one) for one in instances]
        found: dict[int, Answer] = {}
        for shape in dict.fromkeys(shapes):
            rows = [i for i, other in enumerate(shapes) if other == shape]
            found |= dict(zip(rows, self._same_grid([instances[i] for i in rows], shape), strict=True))
        return [found[i] for i in range(len(instances))]

    def grid_of(self, one: Instance) -> tuple[int, ...]:
        """The grid of an instance's answer: its own if that is even and at least as fine as the training's."""
        own = own_shape(self._points(one), self.schema.dims)
        if own is not None and all(n >= dim.size for n, dim in zip(own, self.schema.dims, strict=True)):
            return own
        return self.schema.shape

    def arrays(self, instances: Sequence[Instance], shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and mask [B, P, *shape] of instances."""
        size = (len(instances), len(self.schema.outputs), *shape)
        values, mask = np.zeros(size, np.float32), np.zeros(size, np.float32)
        for row, one in enumerate(instances):
            order = [self.schema.outputs.index(name) for name in one.outputs]
            values[row, order], mask[row, order] = to_grid(
                self._points(one), one.values, one.mask, self.schema.dims, shape
            )
        return torch.from_numpy(values), torch.from_numpy(mask)

    @torch.inference_mode()
    def predict(self, values: torch.Tensor, mask: torch.Tensor) -> Prediction:
        """The calibrated prediction for values and mask [B, P, *grid]."""
        found = self.model(values, mask)
        force, params = (float(self.calibration.get(name, 0.0)) for name in ("force_shift", "params_shift"))
        return Prediction(found.force, found.force_logvar + force, found.params, found.params_logvar + params)

    def _points(self, one: Instance) -> FloatArray:
        dims = 0 if one.positions is None else one.positions.shape[1]
        missing = set(one.outputs) - set(self.schema.outputs)
        if missing or dims != len(self.schema.dims) - 1:
            what = f"the output {sorted(missing)[0]}" if missing else f"{dims} space dimensions"
            raise UsageError(
                f"{one.id!r} has {what}, which the operator does not know.",
                f"It takes {', '.join(self.schema.outputs)} over {', '.join(dim.name for dim in self.schema.dims)}.",
            )
        times = one.times[:, None]
        return times if one.positions is None else np.concatenate([times, one.positions], -1)

    def _same_grid(self, instances: list[Instance], shape: tuple[int, ...]) -> list[Answer]:
        values, mask = self.arrays(instances, shape)
        found = self.predict(values, mask)
        mean = found.force.double().numpy()
        sd = (0.5 * found.force_logvar.double()).exp().numpy()
        z, z_sd = found.params, (0.5 * found.params_logvar).exp()
        normal = self.model.normal
        bounds = {name: normal.physical(z + k * z_sd).double().numpy() for name, k in _SIDES.items()}
        axes = tuple(dim.points(size) for dim, size in zip(self.schema.dims, shape, strict=True))
        return [
            Answer(
                id=one.id,
                forces=self.schema.forces,
                dims=tuple(dim.name for dim in self.schema.dims),
                axes=axes,
                mean=mean[row],
                sd=sd[row],
                lower68=mean[row] - Z68 * sd[row],
                upper68=mean[row] + Z68 * sd[row],
                lower95=mean[row] - Z95 * sd[row],
                upper95=mean[row] + Z95 * sd[row],
                parameters=tuple(
                    self._estimate(k, {name: one[row, k] for name, one in bounds.items()})
                    for k in range(len(self.schema.parameters))
                ),
                novelty=0.0,
                warning=None,
            )
            for row, one in enumerate(instances)
        ]

    def _estimate(self, k: int, at: dict[str, float]) -> Estimate:
        return Estimate(
            name=self.schema.parameters[k],
            kind=self.schema.parameter_kinds[k],
            sd=float(at["upper68"] - at["lower68"]) / (2 * Z68),
            **{name: float(value) for name, value in at.items()},
        )


_SIDES = {"mean": 0.0, "lower68": -Z68, "upper68": Z68, "lower95": -Z95, "upper95": Z95}


def finish(training: Any) -> Operator:
    """The operator of a training: its best weights; calibrated, with a novelty score, on the calibration split."""
    config: TrainSettings = training.config
    return Operator(
        schema=training.schema,
        config=config.operator,
        model=training.best_model().cpu(),
        training={
            "settings": config.model_dump(mode="json"),
            "best": training.best,
            "step": training.step,
            "seconds": training.seconds,
            "instances": {part: len(getattr(training.split, part)) for part in ("train", "validation", "calibration")},
        },
    )
