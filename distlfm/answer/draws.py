"""Joint draws of a posterior: each has its own parameters, its own force, and the outputs that this force drives.

Shapes: `S` draws, `L` forces, `P` outputs, `Q` times (or points of a field), `d` space dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.instance import FloatArray

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, repr=False)
class Draw:
    """One draw. times: [Q]; force: [L, Q]; outputs: [P, Q]; parameters: a number by name; positions: [Q, d] or None.

    `draw["p21"]` is the curve [Q] of the force or output of that name.
    """

    times: FloatArray
    force: FloatArray
    outputs: FloatArray
    parameters: Mapping[str, float]
    force_names: tuple[str, ...]
    output_names: tuple[str, ...]
    positions: FloatArray | None = None

    def __getitem__(self, name: str) -> FloatArray:
        if name in self.force_names:
            curve: FloatArray = self.force[self.force_names.index(name)]
            return curve
        if name in self.output_names:
            curve = self.outputs[self.output_names.index(name)]
            return curve
        known = [*self.force_names, *self.output_names]
        raise UsageError(f"There is no force or output {name!r}.", nearest(name, known))

    def __repr__(self) -> str:
        return f"<draw of {', '.join([*self.force_names, *self.output_names])} at {len(self.times)} points>"


@dataclass(frozen=True, repr=False)
class Draws(Sequence[Draw]):
    """times: [Q]; force: [S, L, Q]; outputs: [S, P, Q]; parameters: [S] by name; positions: [Q, d] of a field.

    A sequence of `Draw`: `draws[0]` is the first one.
    """

    times: FloatArray
    force: FloatArray
    outputs: FloatArray
    parameters: Mapping[str, FloatArray] = field(default_factory=dict)
    force_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    positions: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.force)

    @overload
    def __getitem__(self, index: int) -> Draw: ...
    @overload
    def __getitem__(self, index: slice) -> Draws: ...
    def __getitem__(self, index: int | slice) -> Draw | Draws:
        names = (self.force_names, self.output_names, self.positions)
        force, outputs = self.force[index], self.outputs[index]
        if isinstance(index, slice):
            some = {name: values[index] for name, values in self.parameters.items()}
            return Draws(self.times, force, outputs, some, *names)
        one = {name: float(values[index]) for name, values in self.parameters.items()}
        return Draw(self.times, force, outputs, one, *names)

    def __repr__(self) -> str:
        named = ", ".join([*self.force_names, *self.output_names])
        return f"<{len(self)} draws of {named} at {len(self.times)} points, and of {len(self.parameters)} parameters>"

    def to_xarray(self) -> xr.Dataset:
        """Return the draws with named dimensions: `force`, `outputs`, and `parameters` by name."""
        from distlfm.answer.tables import draws_to_xarray

        return draws_to_xarray(self)
