"""Draws from the posteriors of fits: what the bands of an operator have to hold, where a fit stands for the truth.

An operator comes nearer to a fit's mean than the truth is to either: bands that hold the truth as often as they promise
hold these means far more often. Draws are made as for the calibration, point by point.

Shapes: `L` forces, `K` parameters.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Operator
from distlfm.lfo.calibrate import SEED
from distlfm.store import Store
from distlfm.store.observed import named_parameters


class Draws:
    """The instances of a store of fits, with a draw from each one's posterior for the truth."""

    def __init__(self, operator: Operator, store: Store) -> None:
        self.operator, self.store = operator, store
        self._row = {str(name): row for row, name in enumerate(store.read("id"))}
        self._held: dict[tuple[str, int], FloatArray] = {}

    def of(self, instance: Instance) -> Instance:
        """The same draw of the same instance, whatever else is looked at."""
        truth, row = instance.truth, self._row[instance.id]
        if truth is None or truth.force is None:
            return instance
        random = np.random.default_rng([SEED, row])
        spread = self._read("force_var", row).reshape(len(self.store.spec.forces), len(self._times(row)), -1)
        spread = spread[:, np.isfinite(self._times(row))].reshape(truth.force.shape)
        force = truth.force + np.sqrt(np.nan_to_num(spread).clip(0.0)) * random.standard_normal(truth.force.shape)
        return replace(instance, truth=replace(truth, force=force, parameters=self._parameters(row, random)))

    def _parameters(self, row: int, random: np.random.Generator) -> dict[str, FloatArray]:
        """Those that are learned are drawn where they are learned, as some are by their logarithm."""
        spec, normal = self.store.spec, self.operator.model.normal
        mean, variance = (self._read(name, row) for name in ("params_mean", "params_var"))
        names = [name for name in self.operator.schema.parameters if name in spec.parameters]
        at = [spec.parameters.index(name) for name in names]
        learned = [self.operator.schema.parameters.index(name) for name in names]
        every = torch.full((2, 1, len(self.operator.schema.parameters)), torch.nan)
        every[:, 0, learned] = torch.from_numpy(np.stack([mean[at], variance[at]])).to(every)
        sd = normal.standardised_variance(every[0], every[1]).sqrt()
        noise = torch.from_numpy(random.standard_normal(sd.shape)).to(sd)
        drawn = normal.physical(normal.standardised(every[0]) + sd * noise)[0, learned]
        values = mean.copy()
        values[at] = np.where(variance[at] > 0, drawn.double().numpy(), mean[at])
        return named_parameters(spec, values)

    def _times(self, row: int) -> FloatArray:
        return self._read("time", row) if self.store.spec.times is None else np.array(self.store.spec.times)

    def _read(self, name: str, row: int) -> FloatArray:
        block, place = divmod(row, self.store.spec.block)
        if (name, block) not in self._held:
            rows = self.store.block_range(block)
            self._held = {key: array for key, array in self._held.items() if key[1] == block}
            self._held[name, block] = np.asarray(self.store.read(name, rows.start, rows.stop), dtype=np.float64)
        found: FloatArray = self._held[name, block][place]
        return found
