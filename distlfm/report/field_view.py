"""A fitted field as maps see it: values at points, what is known to be true there, labels, and the mesh.

Shapes: `Q` points, `T` times, `X` places, `d` space dimensions, `C` cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.answer import Band
from distlfm.errors import UsageError
from distlfm.inference.result import FitResult, Prediction
from distlfm.instance import BoolArray, FloatArray
from distlfm.report.style import quantity
from distlfm.report.words import instance_row, output_names

NUM_SNAPSHOTS = 4
COMPARABLE = 3.0
"""Two fields can be shown in the same colours while neither range is this many times the other."""

SAME_SHAPE = 0.6
"""A true force that correlates with the inferred one by more than this has its shape."""

MAX_COMPARED = 900
"""The truth is compared with the fit at about this many points at most: predictions cost time."""


@dataclass(frozen=True)
class Cloud:
    """Values [Q] at times [Q] and positions [Q, d]."""

    times: FloatArray
    positions: FloatArray
    values: FloatArray

    def lattice(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Times [T], positions [X] on a line and values [X, T], if there is one value for every pair of them."""
        times, i = np.unique(self.times, return_inverse=True)
        places, j = np.unique(self.positions[:, 0], return_inverse=True)
        if len(times) < 2 or len(places) < 2 or len(times) * len(places) != len(self.values):
            return None
        taken = np.zeros((len(places), len(times)), dtype=bool)
        taken[j, i] = True
        whole = np.full(taken.shape, np.nan)
        whole[j, i] = self.values
        return (times, places, whole) if taken.all() else None

    def near(self, time: float) -> Cloud:
        """What is known at the time that is nearest to this one."""
        here = self.times == self.times[np.argmin(np.abs(self.times - time))]
        return Cloud(self.times[here], self.positions[here], self.values[here])


@dataclass(frozen=True)
class Mesh:
    """nodes: [X, d]; cells: [C, d + 1]; inducing: places of the force's inducing points [M, d], where it has any."""

    nodes: FloatArray
    cells: NDArray[Any]
    inducing: FloatArray | None
    words: str


class FieldView:
    """One result with positions; what is computed for its figures is computed once."""

    def __init__(self, result: FitResult) -> None:
        if result.instance.positions is None or result.grid.positions is None:
            raise UsageError(
                f"Instance {result.id!r} has no positions, and maps show fields in space.", "Plot it with plot_fit."
            )
        self.result, self.instance = result, result.instance
        self.dims: int = result.instance.positions.shape[1]
        self.output, self.force = output_names(result)[0], result.force_names[0]

    @property
    def time_label(self) -> str:
        return quantity("time", self.instance.metadata.get("time_unit"))

    @property
    def value_unit(self) -> str | None:
        return self.instance.metadata.get("value_unit")

    def position_label(self, axis: int) -> str:
        name = "position" if self.dims == 1 else "xyz"[axis]
        return quantity(name, self.instance.metadata.get("position_unit"))

    def cloud(self, where: Prediction, band: Band, column: str) -> Cloud:
        """One column of a band, `mean` or `sd`, at the points of the prediction."""
        assert where.positions is not None
        values: FloatArray = getattr(band, column)[0]
        return Cloud(where.times, where.positions, values)

    # ---- what was observed -------------------------------------------------------------------------------------------

    @property
    def training(self) -> Cloud:
        """The values that were fitted."""
        assert self.instance.positions is not None
        row = instance_row(self.result, self.output) or 0
        seen = self.instance.mask[row]
        return Cloud(self.instance.times[seen], self.instance.positions[seen], self.instance.values[row, seen])

    @property
    def held_out(self) -> Cloud | None:
        """Where outputs are scored: measurements that were held back, or the truth beside the data."""
        truth, row = self.instance.truth, instance_row(self.result, self.output)
        if truth is None or truth.outputs is None or truth.positions is None or truth.scored is None or row is None:
            return None
        here = truth.scored & np.isfinite(truth.outputs[row])
        return Cloud(truth.times[here], truth.positions[here], truth.outputs[row, here]) if here.any() else None

    # ---- what is known to be true ------------------------------------------------------------------------------------

    @cached_property
    def _compared(self) -> tuple[BoolArray, Prediction] | None:
        """Points of the truth where it is compared, and what the fit says there."""
        truth = self.instance.truth
        known = truth is not None and truth.positions is not None and (truth.force is not None or self._true_output)
        if not known or not self.result.ok:
            return None
        assert truth is not None
        assert truth.positions is not None
        times = np.unique(truth.times)
        if self.dims == 1:
            most = max(2, int(MAX_COMPARED * len(times) / len(truth.times)))
            times = times[np.unique(np.linspace(0, len(times) - 1, most).round().astype(int))]
        else:
            shown = _spread(np.unique(self.result.grid.times), NUM_SNAPSHOTS)
            times = times[np.abs(times[:, None] - shown).argmin(0)]
        here = np.isin(truth.times, times)
        return here, self.result.predict(truth.times[here], truth.positions[here])

    @property
    def _true_output(self) -> bool:
        """Outputs are known without noise."""
        truth = self.instance.truth
        return truth is not None and truth.outputs is not None and not truth.measured

    @property
    def at_truth(self) -> Prediction | None:
        """The fit at the points of the truth."""
        return None if self._compared is None else self._compared[1]

    @property
    def true_force(self) -> Cloud | None:
        truth = self.instance.truth
        if self._compared is None or truth is None or truth.force is None or truth.positions is None:
            return None
        here = self._compared[0]
        return Cloud(truth.times[here], truth.positions[here], self.truth_factor * truth.force[0, here])

    @cached_property
    def truth_factor(self) -> float:
        """What the true force is multiplied by: 1, unless it has the shape of the inferred one at quite another scale.

        A force has no scale of its own where the equation's sensitivity is not known.
        """
        truth = self.instance.truth
        if self._compared is None or truth is None or truth.force is None:
            return 1.0
        mean, true = self._compared[1].force.mean[0], truth.force[0, self._compared[0]]
        spans = float(np.ptp(mean)), float(np.ptp(true))
        if min(spans) <= 0 or 1 / COMPARABLE < spans[0] / spans[1] < COMPARABLE:
            return 1.0
        alike = float(np.corrcoef(mean, true)[0, 1]) > SAME_SHAPE
        return float((mean * true).sum() / (true**2).sum()) if alike else 1.0

    @property
    def truth_name(self) -> str:
        """What the true force is called where it is drawn."""
        return "truth" if self.truth_factor == 1.0 else f"truth × {self.truth_factor:.3g}"

    @property
    def true_output(self) -> Cloud | None:
        truth, row = self.instance.truth, instance_row(self.result, self.output)
        if self._compared is None or not self._true_output or truth is None or truth.positions is None or row is None:
            return None
        assert truth.outputs is not None
        here = self._compared[0]
        return Cloud(truth.times[here], truth.positions[here], truth.outputs[row, here])

    def error(self, true: Cloud, band_name: str) -> Cloud:
        """Posterior mean minus truth; band_name: `force` or `outputs`."""
        assert self.at_truth is not None
        band: Band = getattr(self.at_truth, band_name)
        return Cloud(true.times, true.positions, band.mean[0] - true.values)

    def times_shown(self, count: int) -> FloatArray:
        """Times of snapshots, of the grid, and of profiles, of the truth where it is known; the start is left out."""
        source = self.result.grid if self.at_truth is None or self.dims > 1 else self.at_truth
        return _spread(np.unique(source.times), count)

    @cached_property
    def mesh(self) -> Mesh | None:
        """The mesh, where the posterior has one."""
        field = getattr(getattr(self.result.posterior, "marginal", None), "map", None)
        found = getattr(field, "discretised", None)
        if field is None or found is None:
            return None
        grid, count = field.grid, f"{len(found.nodes)} nodes and {len(found.cells)} cells"
        words = f"{count}, {grid.steps} steps of {grid.dt:.4g}"
        return Mesh(found.nodes, found.cells, np.asarray(field.inducing.places), words)


def _spread(times: FloatArray, count: int) -> FloatArray:
    """Evenly chosen times, to the last; the start, where nothing has happened yet, only if all are taken."""
    if len(times) <= count:
        return times
    chosen: FloatArray = times[np.linspace(0, len(times) - 1, count + 1).round().astype(int)[1:]]
    return chosen
