"""A trained operator: from an instance's observations to its force and parameters in milliseconds.

Shapes: `B` instances, `P` outputs, `L` forces, `K` parameters; `d` dimensions, time first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from distlfm.answer.parameters import Estimated
from distlfm.errors import DistlfmError, UsageError
from distlfm.instance import FloatArray, Instance
from distlfm.lfo.answer import OperatorAnswer
from distlfm.lfo.calibrate import LEVELS, Calibration
from distlfm.lfo.checkpoint import load_checkpoint, save_checkpoint
from distlfm.lfo.grid import ON_GRID, grid_points, joined_points, own_shape, to_grid
from distlfm.lfo.model import FourierOperator, OperatorOutput
from distlfm.lfo.novelty import SENTENCES, Novelty, features
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import OperatorConfig
from distlfm.lfo.spectral import LARGEST, table
from distlfm.mechanisms.build import known_systems

TOGETHER = 32
"""Instances that go through the network at once."""


@dataclass(repr=False)
class Operator:
    """A trained network with what it needs to answer. `Operator.load(path)(instance)` answers.

    schema: its outputs, forces, parameters and grid, with their units. config: the size of the network. model: the
    network itself. calibration: how its bands are widened. novelty: what tells that data are unlike those of the
    training, or None. training: settings, figures and coverage of the run that made it.
    """

    schema: OperatorSchema
    config: OperatorConfig
    model: FourierOperator
    calibration: Calibration
    novelty: Novelty | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        what = f"{', '.join(self.schema.outputs[:4])} over {', '.join(dim.name for dim in self.schema.dims)}"
        return f"<Operator of {self.schema.mechanism['kind']}: {what}; {len(self.schema.parameters)} parameters>"

    @classmethod
    def load(cls, path: str | Path) -> Operator:
        """Return the operator of a checkpoint; nothing in it is executed.

        path: of a file that `save` or `distlfm train` wrote. Raises `UsageError` if it is not one or its equation is
        not registered here, and `OtherWork` if another version wrote it.
        """
        content = load_checkpoint(path)
        try:
            schema = OperatorSchema.model_validate(content["schema"])
            config = OperatorConfig.model_validate(content["operator"])
            model = FourierOperator(config, schema)
            model.load_state_dict(content["weights"])
            return cls(
                schema=schema,
                config=config,
                model=model.eval().requires_grad_(False).settled(),
                calibration=Calibration.model_validate(content["calibration"]),
                novelty=Novelty.of(content["novelty"]),
                training=content["training"],
            )
        except DistlfmError:
            _refuse_unknown(path, content)
            raise
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"{path} does not hold the network that its settings describe ({_first_line(error)}).",
                "It was changed, or written by another distlfm: use that one, or train again.",
            ) from error

    def save(self, path: str | Path) -> Path:
        """Write the checkpoint that `load` reads. It appears whole or not at all.

        path: of the file; one that is there is replaced. Returns the path. Raises `StorageError` if it cannot be
        written.
        """
        return save_checkpoint(
            path,
            {
                "schema": self.schema.model_dump(mode="json"),
                "operator": self.config.model_dump(mode="json"),
                "weights": self.model.state_dict(),
                "calibration": self.calibration.model_dump(mode="json"),
                "novelty": {} if self.novelty is None else self.novelty.state(),
                "training": dict(self.training),
            },
        )

    @overload
    def __call__(self, instances: Instance) -> OperatorAnswer: ...
    @overload
    def __call__(self, instances: Sequence[Instance]) -> list[OperatorAnswer]: ...
    def __call__(self, instances: Instance | Sequence[Instance]) -> OperatorAnswer | list[OperatorAnswer]:
        """Return the answer of an instance, or a list with that of each.

        instances: one, or a sequence, whose members on the same grid are computed together. Raises `UsageError` if one
        has outputs or space dimensions that the operator does not know.
        """
        if isinstance(instances, Instance):
            return self._answers([instances])[0]
        return self._answers(list(instances))

    def grid_of(self, one: Instance) -> tuple[int, ...]:
        """Return the sizes of the grid, time first, on which an instance is answered.

        one: the instance; its own grid is taken if that is even and at least as fine as the training's. A very fine
        grid is thinned to as many points as tables are made for; observations are interpolated onto those.
        """
        points = self._points(one)
        if self._on_grid(points):
            return self.schema.shape
        own = own_shape(points, self.schema.dims)
        if own is not None and all(n >= dim.size for n, dim in zip(own, self.schema.dims, strict=True)):
            return tuple(min(n, max(dim.size, LARGEST)) for n, dim in zip(own, self.schema.dims, strict=True))
        return self.schema.shape

    def arrays(self, instances: Sequence[Instance], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return values and mask, each [B, P, *shape], of instances on a grid.

        instances: B of them; outputs that one does not have are not observed. shape: sizes of the grid, time first.
        """
        size = (len(instances), len(self.schema.outputs), *shape)
        values = np.broadcast_to(self.model.normal.value_mean.numpy().reshape(-1, *(1,) * len(shape)), size).copy()
        mask = np.zeros(size, np.float32)
        for row, one in enumerate(instances):
            points = self._points(one)
            if one.outputs == self.schema.outputs and one.mask.all() and self._on_grid(points):
                values[row], mask[row] = one.values.reshape(size[1:]), 1.0
                continue
            order = [self.schema.outputs.index(name) for i, name in enumerate(one.outputs) if one.mask[i].any()]
            there = one.mask.any(-1)
            values[row, order], mask[row, order] = to_grid(
                points, one.values[there], one.mask[there], self.schema.dims, shape
            )
        return torch.from_numpy(values), torch.from_numpy(mask)

    @torch.no_grad()
    def predict(self, values: Tensor, mask: Tensor) -> OperatorOutput:
        """Return the calibrated prediction for any number of instances and points.

        values, mask: [B, P, *grid], as `arrays` gives them. Forces are inferred from all points. Parameters are, of a
        grid that is finer than the trained one, from the points of that alone: so they do not move with the resolution,
        and their intervals are what was calibrated.
        """
        pieces = [
            self.calibration.apply(self._found(v, m))
            for v, m in zip(values.split(TOGETHER), mask.split(TOGETHER), strict=True)
        ]
        return pieces[0] if len(pieces) == 1 else OperatorOutput(*(torch.cat(one) for one in zip(*pieces, strict=True)))

    def _found(self, values: Tensor, mask: Tensor) -> OperatorOutput:
        found: OperatorOutput = self.model(values, mask)
        if values.shape[2:] == self.schema.shape:
            return found
        for dim, n in enumerate(self.schema.shape, 2):
            if mask.shape[dim] > n:
                mask = mask.index_select(dim, torch.linspace(0, mask.shape[dim] - 1, n).round().long())
        trained: OperatorOutput = self.model(self.model.thinned(values), mask)
        return found._replace(params=trained.params, params_logvar=trained.params_logvar)

    @torch.no_grad()
    def strangeness(self, values: Tensor, mask: Tensor, found: OperatorOutput) -> tuple[list[float], list[str]]:
        """Return the novelty score of each instance, and the kind of features that it comes from; NaN if not known.

        values, mask: [B, P, *grid], as `arrays` gives them. found: what `predict` gave for them.
        """
        if self.novelty is None:
            return [math.nan] * len(values), [""] * len(values)
        score, kinds = self.novelty.score(features(self.model, values, mask, found))
        return score.tolist(), kinds

    @property
    def notices(self) -> tuple[str, ...]:
        """What to know of the operator itself before its answers are relied on."""
        sentences = []
        if not self.calibration.instances:
            sentences.append(
                "The operator is not calibrated, as too few instances were held out for that: nothing has checked its"
                " intervals. Train with more instances, or a larger split.calibration."
            )
        elif self.training.get("calibrated_before"):
            sentences.append(
                "The operator learned without labels after it had been calibrated: nothing has checked its intervals"
                " since. Evaluate it on a store, or learn from labelled instances too."
            )
        if self.novelty is None:
            sentences.append("It is not known what is unlike its training data, so that no answer warns of it.")
        return tuple(sentences)

    def _answers(self, instances: list[Instance]) -> list[OperatorAnswer]:
        shapes = [self.grid_of(one) for one in instances]
        answers: dict[int, OperatorAnswer] = {}
        for shape in dict.fromkeys(shapes):
            rows = [i for i, other in enumerate(shapes) if other == shape]
            answers |= dict(zip(rows, self._same_grid([instances[i] for i in rows], shape), strict=True))
        return [answers[i] for i in range(len(instances))]

    def _same_grid(self, instances: list[Instance], shape: tuple[int, ...]) -> list[OperatorAnswer]:
        values, mask = self.arrays(instances, shape)
        with torch.inference_mode():
            prediction = self.predict(values, mask)
            scores, kinds = self.strangeness(values, mask, prediction)
            estimates = self._estimates(prediction)
            mean, sd = prediction.force.double().numpy(), (0.5 * prediction.force_logvar.double()).exp().numpy()
        wide = (-1, *(1,) * len(shape))
        bands: dict[str, Any] = {"mean": mean, "sd": sd}
        for level in LEVELS:
            half = sd * np.array([one.width(level) for one in self.calibration.forces]).reshape(wide)
            bands |= {f"lower{level}": mean - half, f"upper{level}": mean + half}
        axes = tuple(dim.points(size) for dim, size in zip(self.schema.dims, shape, strict=True))
        names = tuple(dim.name for dim in self.schema.dims)
        answers = []
        for row, one in enumerate(instances):
            score, warning = self._warned(one, scores[row], kinds[row])
            answers.append(
                OperatorAnswer(
                    id=one.id,
                    forces=self.schema.forces,
                    dims=names,
                    axes=axes,
                    **{name: band[row] for name, band in bands.items()},
                    estimates=estimates[row],
                    novelty=score,
                    warning=warning,
                    output_names=one.outputs,
                    instance=one,
                )
            )
        return answers

    def _estimates(self, found: OperatorOutput) -> list[tuple[Estimated, ...]]:
        """The parameters of each instance; intervals are made where parameters are learned, then brought back."""
        sd = (0.5 * found.params_logvar).exp()
        # Of the mean, one standard deviation to both sides, and both ends of both intervals: [7, B, K].
        widths = (tuple(one.width(level) for one in self.calibration.parameters) for level in LEVELS)
        ends = self.model.normal.physical(found.params + sd * _ends(*widths)).double().numpy()
        columns = [ends[0], (ends[2] - ends[1]) / 2, *ends[3:]]
        columns = [column.tolist() for column in columns]
        names = list(zip(self.schema.parameters, self.schema.parameter_kinds, strict=True))
        return [
            tuple(Estimated(*name, *(column[row][k] for column in columns)) for k, name in enumerate(names))
            for row in range(len(found.params))
        ]

    def _warned(self, one: Instance, score: float, kind: str) -> tuple[float, str | None]:
        """Score and warning of an instance; one that is partly outside the domain is new in any case."""
        points, (low, high) = self._points(one), self._domain
        outside = float(((points < low) | (points > high)).any(-1).mean())
        why = SENTENCES.get(kind, "")
        if outside > 0:
            score = max(1.0 + outside, score)  # which may not be known
            why = f"{outside:.0%} of its observations are outside of the times and places that it was trained on"
        if not score > 1:
            return score, None
        return score, (
            f"{one.id} is unlike the data that the operator was trained on (score {score:.2g}, limit 1): {why}. "
            "Do not rely on this answer; fit the instance instead."
        )

    @cached_property
    def _grid(self) -> FloatArray:
        return grid_points(self.schema.dims)

    def _on_grid(self, points: FloatArray) -> bool:
        """Whether the points are those of the training grid, in its order."""
        slack = ON_GRID * min(dim.step for dim in self.schema.dims)
        return points.shape == self._grid.shape and bool(np.abs(points - self._grid).max() <= slack)

    @cached_property
    def _domain(self) -> tuple[FloatArray, FloatArray]:
        """The ends of each dimension, and a step beyond."""
        dims = self.schema.dims
        return np.array([dim.start - dim.step for dim in dims]), np.array([dim.stop + dim.step for dim in dims])

    def _points(self, one: Instance) -> FloatArray:
        """Where an instance was observed, [N, d]."""
        dims = 0 if one.positions is None else one.positions.shape[1]
        missing = set(one.outputs) - set(self.schema.outputs)
        if missing or dims != len(self.schema.dims) - 1:
            what = f"the output {sorted(missing)[0]}" if missing else f"{dims} space dimensions"
            raise UsageError(
                f"{one.id!r} has {what}, which the operator does not know.",
                f"It takes {', '.join(self.schema.outputs)} over {', '.join(dim.name for dim in self.schema.dims)}.",
            )
        return joined_points(one.times, one.positions)


@table
def _ends(width68: tuple[float, ...], width95: tuple[float, ...]) -> Tensor:
    """Where the sides of `Estimated` are, in standard deviations, [7, 1, K]."""
    w68, w95 = torch.tensor(width68), torch.tensor(width95)
    one = torch.ones_like(w68)
    return torch.stack([0 * one, -one, one, -w68, w68, -w95, w95]).unsqueeze(1)


def _refuse_unknown(path: str | Path, content: Mapping[str, Any]) -> None:
    """Say what is to be imported, if the checkpoint's equation is not registered here.

    The names are those that its training was given; they are shown, and never imported because a file says so.
    """
    kind = content["schema"].get("mechanism", {}).get("kind")
    if not isinstance(kind, str) or kind in known_systems():
        return
    required = [str(name) for name in content.get("training", {}).get("plugins", [])]
    names = [name for name in required if all(part.isidentifier() for part in name.split("."))]
    which = f" ({', '.join(names)})" if names else ""
    plugins = " ".join(f"--plugin {name}" for name in names or ["NAME"])
    raise UsageError(
        f"{path} is an operator of the equation {kind!r}, which is not known here.",
        f"Import the module that registers it{which}; on the command line: {plugins}.",
    ) from None


def _first_line(error: Exception) -> str:
    """What went wrong, in one line: torch lists every weight."""
    required = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(required[:2])[:200] if required else type(error).__name__
