"""What an operator answers: the force on a grid with its bands, and parameters with their intervals.

Shapes: `L` forces; `n` points of the grid, `m` other points, `d` dimensions, time first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from distlfm.answer import Answer, Band
from distlfm.answer.parameters import COLUMNS, Estimated
from distlfm.errors import UsageError
from distlfm.instance import FloatArray, Instance
from distlfm.lfo.grid import joined_points, lattice


@dataclass(frozen=True, repr=False, eq=False)
class OperatorAnswer(Answer):
    """The answer of an operator for one instance.

    id: of the instance. forces: names of the L forces. dims, axes: names and coordinates of each dimension of the grid,
    time first. mean, sd, lower68, upper68, lower95, upper95: of the forces, [L, *grid]. estimates: of the parameters.
    novelty: how unlike the training data the input is, 1 is the limit, NaN if that is not known; warning: a sentence if
    it is beyond, or None. output_names: of the outputs that were observed. instance: what was asked about.
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
    estimates: Sequence[Estimated]
    novelty: float
    warning: str | None
    output_names: tuple[str, ...] = ()
    instance: Instance | None = None

    @property
    def force_names(self) -> tuple[str, ...]:
        return self.forces

    @property
    def times(self) -> FloatArray:
        return self.points[:, 0]

    @property
    def positions(self) -> FloatArray | None:
        return None if len(self.axes) == 1 else self.points[:, 1:]

    @property
    def force(self) -> Band:
        return Band(*(getattr(self, name).reshape(len(self.forces), -1) for name in COLUMNS))

    @property
    def outputs(self) -> NoReturn:
        raise UsageError(
            "An operator answers with the force and the parameters, and not with outputs.",
            f"Fit {self.id!r} for those: model.fit(instance).",
        )

    @property
    def has_outputs(self) -> bool:
        return False

    @property
    def trustworthy(self) -> bool:
        return self.warning is None

    @property
    def advice(self) -> str:
        return self.warning or ""

    def draws(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the bands of an operator hold for each time alone, and joint draws cannot be made of them."""
        raise UsageError(
            "An operator knows the band of the force at each time, and not how times and parameters vary together: it "
            "has no joint draws.",
            f"Fit {self.id!r} for those: model.fit(instance).",
        )

    def _headline(self) -> str:
        return "operator" if self.novelty != self.novelty else f"operator, novelty {self.novelty:.2g} (limit 1)"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    @cached_property
    def points(self) -> FloatArray:
        """All points of the grid, [n, d], time first."""
        return lattice(self.axes)

    def at(self, times: FloatArray, positions: FloatArray | None = None) -> dict[str, FloatArray]:
        """Return `mean`, `sd`, `lower68`, … `upper95`, each [L, m], at other points, linear in between.

        times: [m]. positions: [m, d], of a field. Points beyond the grid get the values at its edge.
        """
        ends = [axis[0] for axis in self.axes], [axis[-1] for axis in self.axes]
        places = None if positions is None else np.asarray(positions, float).reshape(len(times), -1)
        wanted = np.clip(joined_points(np.asarray(times, float), places), *ends)
        curves = {name: np.moveaxis(getattr(self, name), 0, -1) for name in COLUMNS}
        return {name: RegularGridInterpolator(self.axes, values)(wanted).T for name, values in curves.items()}
