"""A block of generated instances as the arrays of a store, and the store that holds them.

Instances are drawn from the prior of a config, many at a time, as they are on the grid of a store. Instance i depends
on the config, the seed and i alone: it has its own random numbers. Units of the store are those that the config states,
and what follows from them.

Shapes: `B` instances of a block, `P` outputs, `L` forces, `T` times, `Q` points of the grid, `n` observed ones, `K`
elements of a parameter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.instance import AXES, Dimension, FloatArray
from distlfm.mechanisms import Parameter, System
from distlfm.runs.folder import identity, versions
from distlfm.runs.settings import GenerateConfig
from distlfm.simulation.fields import Lattice
from distlfm.simulation.instances import check, model_of_prior
from distlfm.simulation.series import ATTEMPTS, Drawn, Trajectories
from distlfm.store import STATUSES, StoreSpec
from distlfm.store.layout import variables

Draws = Trajectories | Lattice
"""The prior of a config on its grid."""


def open_draws(config: GenerateConfig) -> Draws:
    """The prior of a config, ready to be drawn from."""
    model = model_of_prior(config)
    check(model, config.instances, config.missing)
    if config.noise is not None and not model.likelihood.gaussian:
        raise UsageError(
            f"noise is {config.noise:g}, and a {model.likelihood.options.kind} likelihood has none.", "Leave noise out."
        )
    times = np.linspace(config.start, config.stop, config.points)
    if not model.is_field:
        return Trajectories(model, times)
    begins = model.field.field.start
    if begins is not None and begins != config.start:
        raise UsageError(
            f"mechanism.start is {begins:g}, and fields are generated from start = {config.start:g} on.",
            "Make them equal, or leave mechanism.start out.",
        )
    return Lattice(model, times, config.places)


def store_units(
    given: Mapping[str, str], system: System, space: Sequence[str], parameters: Sequence[Parameter]
) -> dict[str, str]:
    """`value` holds for all outputs, `position` for all axes, and a whole parameter for each of its elements.

    Where the equation says what its force and its parameters are measured in, they follow from times, values and
    positions, unless the config says otherwise.
    """
    names = {name: [name] for name in ("time", *space, *system.outputs, *system.force_names)}
    elements = {"value": list(system.outputs), "position": list(space)} | names
    dimensions: dict[str, Dimension | None] = dict.fromkeys(system.force_names, system.force_dimension)
    for one in parameters:
        labelled = {element_name(one, label): one.dimension_of(label) for label in one.labels}
        dimensions |= labelled
        elements |= {name: [name] for name in labelled} | {one.name: list(labelled)}
    for name in given:
        if name not in elements:
            raise UsageError(f"units names {name!r}, which this model does not have.", nearest(name, list(elements)))
    whole_first = sorted(given, key=lambda name: (name not in ("value", "position"), -len(elements[name])))
    stated = {element: given[name] for name in whole_first for element in elements[name]}
    known = {"time": stated.get("time"), "value": _one(stated, system.outputs), "position": _one(stated, space)}
    derived = {name: unit for name, of in dimensions.items() if of is not None and (unit := of.unit(known)) is not None}
    return derived | stated


def element_name(parameter: Parameter, label: str) -> str:
    """As `ParameterSpace.free_names` and estimates have it."""
    return f"{parameter.name}[{label}]" if len(parameter.labels) > 1 else parameter.name


def _one(stated: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The unit that all of them share."""
    units = {stated.get(name) for name in names}
    return units.pop() if len(units) == 1 else None


FEWEST = 2
"""Values that are always left, however much is missing."""

DIVERGED = "It diverges, however often it is drawn. Narrow the priors of the mechanism, or shorten the times."

Arrays = dict[str, NDArray[Any]]


def store_spec(config: GenerateConfig, draws: Draws) -> StoreSpec:
    """The store of a config. Its parameters are all there are, known ones too: the truth is whole."""
    system, parameters = draws.model.system, draws.model.space.parameters
    names = tuple(element_name(one, label) for one in parameters for label in one.labels)
    space, candidates = AXES[: len(draws.axes)], _candidates(config, draws)
    return StoreSpec(
        kind="generate",
        instances=config.instances,
        block=min(config.run.block, config.instances),
        outputs=system.outputs,
        forces=system.force_names,
        parameters=names,
        parameter_kinds=tuple(one.kind for one in parameters for _ in one.labels),
        samples=config.sampling.count or len(candidates),
        steps=len(draws.times),
        times=tuple(draws.times.tolist()),
        space=space,
        lattice=tuple(tuple(axis.tolist()) for axis in draws.axes) if space else None,
        units=store_units(config.units, system, space, parameters),
        attributes={
            **identity(config),
            "data": "",
            "seed": config.seed,
            "plugins": list(config.plugins),
            "title": config.title or f"{config.mechanism['kind']}, drawn from its priors",
            "versions": versions(),
        },
    )


def instance_name(index: int) -> str:
    return f"gen-{index:06d}"


class Block:
    """The instances `indices` in the making. arrays: each [B, …], as a store takes them; rows: one per instance.

    candidates: points of the grid, at some or all of which an instance is observed.
    """

    def __init__(self, config: GenerateConfig, draws: Draws, spec: StoreSpec, indices: Sequence[int]) -> None:
        self.config, self.draws, self.candidates = config, draws, _candidates(config, draws)
        self.arrays = {one.name: one.filled(len(indices)) for one in variables(spec)}
        self.arrays["id"][:] = [instance_name(index) for index in indices]
        self.arrays["seed"][:] = config.seed
        self.rows: list[dict[str, Any]] = [{} for _ in indices]

    def put(self, place: int, drawn: Drawn, row: int, generator: np.random.Generator, attempt: int) -> None:
        """Row `row` of a batch becomes instance `place` of the block."""
        arrays, shape = self.arrays, (len(self.draws.times), *(len(axis) for axis in self.draws.axes))
        parameters = {name: value[row].numpy() for name, value in drawn.values.items()}
        outputs = drawn.outputs[row].numpy()
        points, arrays["observed"][place] = self._observe(outputs, parameters, generator)
        arrays["observed_time"][place] = self.draws.points[points, 0]
        for i, axis in enumerate(AXES[: len(self.draws.axes)], 1):
            arrays[f"observed_{axis}"][place] = self.draws.points[points, i]
        arrays["solution_mean"][place] = outputs.reshape(-1, *shape)
        arrays["force_mean"][place] = drawn.forces[row].numpy().reshape(-1, *shape)
        arrays["params_mean"][place] = np.concatenate(
            [parameters[one.name] for one in self.draws.model.space.parameters]
        )
        for name in ("solution_var", "force_var", "params_var"):
            arrays[name][place] = 0.0
        arrays["status"][place] = STATUSES["generated"]
        self.rows[place] = {"id": str(arrays["id"][place]), "status": "generated"}
        if attempt:
            self.rows[place]["attempts"] = attempt + 1

    def _observe(
        self, outputs: FloatArray, parameters: Mapping[str, FloatArray], generator: np.random.Generator
    ) -> tuple[NDArray[np.intp], FloatArray]:
        """Points [n] and values [P, n] of an instance with noise-free outputs [P, Q]; NaN where nothing is observed."""
        config, points, count = self.config, self.candidates, self.config.sampling.count
        if count is not None:
            # A trajectory's first time is where its start is known: a fit begins at the first observation.
            kept = 0 if self.draws.model.is_field else 1
            drawn = generator.choice(points[kept:], count - kept, replace=False)
            points = np.sort(np.concatenate([points[:kept], drawn]))
        clean = outputs[:, points]
        if config.noise is None:
            seen = self.draws.model.likelihood.observe(parameters, clean, self.draws.points[points, 0], generator)
        else:
            seen = clean + config.noise * generator.standard_normal(clean.shape)
        mask = generator.random(seen.shape) >= config.missing
        if config.gaps is not None:
            number = generator.poisson(config.gaps.number)
            starts = generator.uniform(config.start, config.stop, number)
            ends = starts + generator.exponential(config.gaps.length, number)
            times = self.draws.points[points, :1]
            mask &= ~((starts <= times) & (times <= ends)).any(-1)
        if mask.sum() < FEWEST:
            mask.flat[generator.choice(mask.size, FEWEST, replace=False)] = True
        return points, np.where(mask, seen, np.nan)

    def refuse(self, place: int, status: str, reason: str) -> None:
        """Instance `place` has a reason and no numbers."""
        self.arrays["status"][place] = STATUSES[status]
        self.rows[place] = {"id": str(self.arrays["id"][place]), "status": status, "reason": reason}


def generate_block(
    config: GenerateConfig,
    draws: Draws,
    spec: StoreSpec,
    indices: Sequence[int],
    left_out: Mapping[int, str] | None = None,
) -> tuple[Arrays, list[dict[str, Any]]]:
    """The instances `indices` as arrays [B, …] and rows. left_out: places in `indices` with the reason to skip them.

    A draw that diverges is drawn anew, at most `ATTEMPTS` times in all: what is generated is the prior of what stays.
    """
    began = time.perf_counter()
    block = Block(config, draws, spec, indices)
    for place, reason in (left_out or {}).items():
        block.refuse(place, "failed", reason)
    waiting = [place for place in range(len(indices)) if place not in (left_out or {})]
    for attempt in range(ATTEMPTS):
        diverged: list[int] = []
        for first in range(0, len(waiting), draws.batch):
            places = waiting[first : first + draws.batch]
            generators = [np.random.default_rng([config.seed, indices[place], attempt]) for place in places]
            drawn = _with_noise(config, draws, draws.draw(generators))
            for row, place in enumerate(places):
                if bool(drawn.ok[row]):
                    block.put(place, drawn, row, generators[row], attempt)
                else:
                    diverged.append(place)
        waiting = diverged
    for place in waiting:
        block.refuse(place, "diverged", DIVERGED)
    block.arrays["wall_s"][:] = (time.perf_counter() - began) / len(indices)
    return block.arrays, block.rows


def _with_noise(config: GenerateConfig, draws: Draws, drawn: Drawn) -> Drawn:
    """The same with the noise that the config states, where it does, among the parameters."""
    if config.noise is None:
        return drawn
    stated = dict.fromkeys(draws.model.likelihood.vanishing, 0.0) | {"noise": config.noise}
    values = {name: torch.full_like(drawn.values[name], size) for name, size in stated.items() if name in drawn.values}
    return replace(drawn, values={**drawn.values, **values})


def _candidates(config: GenerateConfig, draws: Draws) -> NDArray[np.intp]:
    """Points of the grid that may be observed: those of each `sampling.every`-th time."""
    steps = np.unique(draws.points[:, 0], return_inverse=True)[1]
    candidates = np.flatnonzero(steps % config.sampling.every == 0)
    if (config.sampling.count or 0) > len(candidates):
        raise UsageError(
            f"sampling.count is {config.sampling.count}, and there are {len(candidates)} points to draw from.",
            "Lower it, or give more points.",
        )
    return candidates
