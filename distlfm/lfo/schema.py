"""What an operator takes and gives: names, grid and units, made from the stores that it learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.instance import FloatArray
from distlfm.lfo.alike import check_alike, known_elements, mechanism_in
from distlfm.lfo.units import check_store_units
from distlfm.store import Store
from distlfm.store.layout import UNKNOWN_UNIT, unit

SCHEMA = 2
"""Raised when a checkpoint of the old form can no longer be read by this code."""

SCARCELY = 0.1
"""Of the operator's range, so much at least must be in a store that it goes on with; less is another unit."""

OTHER = "Give what the operator was trained on, or an operator that was trained on this."

CONSTANT = 1e-9
"""A parameter whose values spread less than this, relative to their size, is known, and not learned."""


class GridDim(Config):
    """One dimension of the training grid: `size` even points from `start` to `stop`, both included."""

    name: str
    size: int = Field(ge=2)
    start: float
    stop: float

    @property
    def step(self) -> float:
        return (self.stop - self.start) / (self.size - 1)

    def points(self, size: int | None = None) -> FloatArray:
        """The coordinates [size] of so many even points."""
        return np.linspace(self.start, self.stop, size or self.size)


class OperatorSchema(Config):
    """mechanism: the section of the stores' config. dims: time first. fixed: parameters that are known or never vary.

    units: of `time`, of the axes, and of outputs, forces and parameters by name.
    """

    version: int = SCHEMA
    mechanism: Mapping[str, Any]
    outputs: tuple[str, ...]
    forces: tuple[str, ...]
    parameters: tuple[str, ...]
    parameter_kinds: tuple[str, ...]
    fixed: Mapping[str, float] = {}
    dims: tuple[GridDim, ...]
    units: Mapping[str, str] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """Points of each dimension of the training grid."""
        return tuple(dim.size for dim in self.dims)

    def known_unit(self, name: str) -> str | None:
        """The unit of `time`, of an axis, an output, a force or a parameter, where it is known and not one."""
        found = self.units.get(name)
        return None if found in (None, "1", UNKNOWN_UNIT) else found

    def check(self, store: Store) -> None:
        """Refuse a store of something else than this operator was made for."""
        spec = store.spec
        for what, here, there in (
            ("mechanism", spec.attributes.get("mechanism"), self.mechanism.get("kind")),
            ("outputs", spec.outputs, self.outputs),
            ("forces", spec.forces, self.forces),
            ("axes", spec.space, tuple(dim.name for dim in self.dims[1:])),
        ):
            # The name of a single output is that of a column: it tells nothing apart.
            alone = what == "outputs" and len(spec.outputs) == len(self.outputs) == 1
            if here != there and not alone:
                raise UsageError(
                    f"The {what} of {store.path} are {_words(here)}, and those of the operator {_words(there)}.", OTHER
                )
        check_store_units(self, store)
        for mine, its in zip(self.dims, _dims(store), strict=True):
            both = min(mine.stop, its.stop) - max(mine.start, its.start)
            if both < SCARCELY * (mine.stop - mine.start):
                raise UsageError(
                    f"{mine.name} runs from {its.start:g} to {its.stop:g} in {store.path}, and from {mine.start:g} to "
                    f"{mine.stop:g} for the operator.",
                    "Give it in the operator's unit.",
                )

    @staticmethod
    def of(stores: Sequence[Store]) -> OperatorSchema:
        """The schema that all stores share. Their grids may differ in number of points; the first one's is taken."""
        if not stores:
            raise UsageError("There is no store to learn from.", "Give at least one in data.stores.")
        first, dims = stores[0].spec, [_dims(store) for store in stores]
        for store, there in zip(stores[1:], dims[1:], strict=True):
            check_alike(stores[0], store, dims[0], there)
        mechanism = next((found for store in stores if (found := mechanism_in(store.spec))), {})
        values = [_values(store) for store in stores]
        common = [name for name in first.parameters if all(name in one for one in values)]
        fixed, learned = {}, []
        for name in common:
            known = np.concatenate([one[name] for one in values])
            known = known[np.isfinite(known)]
            if len(known) and np.ptp(known) > CONSTANT * max(1e-12, float(np.abs(known).max())):
                learned.append(name)
            elif len(known):
                fixed[name] = float(known[0])
        for name, value in known_elements(mechanism, first.outputs).items():
            if name not in learned:
                fixed.setdefault(name, value)
        kinds = dict(zip(first.parameters, first.parameter_kinds, strict=True))
        named = ["time", *first.space, *first.outputs, *first.forces, *learned]
        return OperatorSchema(
            mechanism=mechanism,
            outputs=first.outputs,
            forces=first.forces,
            parameters=tuple(learned),
            parameter_kinds=tuple(kinds[name] for name in learned),
            fixed=fixed,
            dims=dims[0],
            units={name: _unit(stores, name) for name in named},
        )


def _words(found: object) -> str:
    return ", ".join(found) if isinstance(found, tuple) else str(found)


def _dims(store: Store) -> tuple[GridDim, ...]:
    spec = store.spec
    if spec.times is not None:
        start, stop = spec.times[0], spec.times[-1]
    else:
        times = store.read("time")
        start, stop = float(np.nanmin(times)), float(np.nanmax(times))
    found = [GridDim(name="time", size=spec.steps, start=start, stop=stop)]
    if spec.lattice is not None:
        for axis, points in zip(spec.space, spec.lattice, strict=True):
            found.append(GridDim(name=axis, size=len(points), start=min(points), stop=max(points)))
    elif spec.nodes is not None:
        nodes = np.array(spec.nodes)
        size = max(2, round(len(nodes) ** (1 / nodes.shape[1])))
        for i, axis in enumerate(spec.space):
            found.append(GridDim(name=axis, size=size, start=nodes[:, i].min(), stop=nodes[:, i].max()))
    return tuple(found)


def _unit(stores: Sequence[Store], name: str) -> str:
    """What the first store says that knows it: fits are told fewer units than generated instances."""
    told = [unit(store.spec, name) for store in stores]
    return next((one for one in told if one != UNKNOWN_UNIT), UNKNOWN_UNIT)


def _values(store: Store) -> dict[str, FloatArray]:
    values = store.read("params_mean")
    return {name: values[:, i] for i, name in enumerate(store.spec.parameters)}
