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
from distlfm.instance import AXES, BoolArray, FloatArray, Instance, Truth
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

    @staticmethod
    def at(source: Instance | Truth, values: FloatArray, here: BoolArray) -> Cloud:
        """Values [Q] at some of the points of an instance or of its truth."""
        assert source.positions is not None
        return Cloud(source.times[here], source.positions[here], values[here])

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
        self._row = instance_row(result, self.output)
        truth = result.instance.truth
        self._truth = None if truth is None or truth.positions is None else truth

    @property
    def time_label(self) -> str:
        return quantity("time", self.instance.metadata.get("time_unit"))

    @property
    def value_unit(self) -> str | None:
        return self.instance.metadata.get("value_unit")

    def position_label(self, axis: int) -> str:
        name = "position" if self.dims == 1 else AXES[axis]
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
        row = self._row or 0
        return Cloud.at(self.instance, self.instance.values[row], self.instance.mask[row])

    @property
    def held_out(self) -> Cloud | None:
        """Where outputs are scored: measurements that were held back, or the truth beside the data."""
        truth = self._truth
        if truth is None or truth.outputs is None or truth.scored is None or self._row is None:
            return None
        here = truth.scored & np.isfinite(truth.outputs[self._row])
        return Cloud.at(truth, truth.outputs[self._row], here) if here.any() else None

    # ---- what is known to be true ------------------------------------------------------------------------------------

    @cached_property
    def _compared(self) -> tuple[BoolArray, Prediction] | None:
        """Points of the truth where it is compared, and what the fit says there."""
        truth = self._truth
        if truth is None or not self.result.ok or (truth.force is None and self._true_outputs is None):
            return None
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
    def _true_outputs(self) -> FloatArray | None:
        """Outputs that are known without noise, in the order of the instance."""
        return None if self._truth is None or self._truth.measured else self._truth.outputs

    def _true(self, values: FloatArray | None, row: int | None) -> Cloud | None:
        """A row of true values where they are compared with the fit, if they are known."""
        if self._compared is None or values is None or row is None:
            return None
        assert self._truth is not None
        return Cloud.at(self._truth, values[row], self._compared[0])

    @property
    def at_truth(self) -> Prediction | None:
        """The fit at the points of the truth."""
        return None if self._compared is None else self._compared[1]

    @property
    def true_force(self) -> Cloud | None:
        force = None if self._truth is None else self._truth.force
        return None if force is None else self._true(self.truth_factor * force, 0)

    @cached_property
    def truth_factor(self) -> float:
        """What the true force is multiplied by: 1, unless it has the shape of the inferred one at quite another scale.

        A force has no scale of its own where the equation's sensitivity is not known.
        """
        truth = self._truth
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
        return self._true(self._true_outputs, self._row)

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
        discretised = getattr(field, "discretised", None)
        if field is None or discretised is None:
            return None
        grid, count = field.grid, f"{len(discretised.nodes)} nodes and {len(discretised.cells)} cells"
        words = f"{count}, {grid.steps} steps of {grid.dt:.4g}"
        return Mesh(discretised.nodes, discretised.cells, np.asarray(field.inducing.places), words)


def _spread(times: FloatArray, count: int) -> FloatArray:
    """Evenly chosen times, to the last; the start, where nothing has happened yet, only if all are taken."""
    if len(times) <= count:
        return times
    return times.take(np.linspace(0, len(times) - 1, count + 1).round().astype(int)[1:])
