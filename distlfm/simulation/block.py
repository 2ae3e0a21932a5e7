"""A block of generated instances as the arrays of a store, and the store that holds them.

Instances are drawn from the prior of a config, many at a time, as they are on the grid of a store. Instance i depends
on the config, the seed and i alone: it has its own random numbers. Units of the store are those that the config states,
and what follows from them.

Shapes: `B` instances of a block, `P` outputs, `L` forces, `T` times, `Q` points of the grid, `n` observed ones, `K`
elements of a parameter.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.inference.model import Model
from distlfm.instance import Dimension, FloatArray
from distlfm.mechanisms import Parameter, System
from distlfm.mechanisms.priors import Values
from distlfm.runs.folder import identity, versions
from distlfm.runs.settings import GenerateConfig
from distlfm.simulation.fields import Lattice
from distlfm.simulation.instances import ATTEMPTS, INTERVALS, check, model_of_prior
from distlfm.simulation.observe import Plan, observe
from distlfm.simulation.series import draw, draw_paths
from distlfm.store import STATUSES, StoreSpec
from distlfm.store.layout import variables

ODE_BATCH = 64
"""Trajectories solved together: enough to share the cost of a step, few enough to stay in the cache."""

Mesh = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class Truths:
    """What instances are. values: each [B, K]; forces: [B, L, Q]; outputs: [B, P, Q]; ok: [B], False if diverged."""

    values: Values
    forces: FloatArray
    outputs: FloatArray
    ok: Tensor


class Draws(ABC):
    """The prior of a config on its grid.

    times: [T]; axes: the positions along each dimension of space; points: [Q, 1 + d], times and places of the grid in
    the order of its arrays; batch: how many instances are drawn together at most.
    """

    model: Model
    times: FloatArray
    axes: list[FloatArray]
    points: FloatArray
    batch: int
    mesh: Mesh | None = None

    @abstractmethod
    def draw(self, generators: Sequence[np.random.Generator]) -> Truths:
        """One instance from each generator, which depends on no other."""


class OdeDraws(Draws):
    """Trajectories, computed with their forces at `INTERVALS` or more even breaks, the grid's times among them."""

    def __init__(self, model: Model, config: GenerateConfig) -> None:
        self.model = model
        self.times = np.linspace(config.start, config.stop, config.points)
        self.axes, self.points, self.batch = [], self.times[:, None], ODE_BATCH
        self.parts = -(-INTERVALS // (config.points - 1))
        self.breaks = np.linspace(config.start, config.stop, (config.points - 1) * self.parts + 1)
        self.linearity = model.linearity

    @torch.no_grad()
    def draw(self, generators: Sequence[np.random.Generator]) -> Truths:
        drawn = draw(self.model, self.breaks, self.linearity, generators, _draw_evenly)
        rows = {name: value.unsqueeze(-2) for name, value in drawn.values.items()}
        shown = self.model.mechanism.act(drawn.forces[..., :: self.parts].mT, rows).mT
        return Truths(drawn.values, shown.numpy(), drawn.outputs[..., :: self.parts].numpy(), drawn.ok)


class FieldDraws(Draws):
    """Fields on a lattice of times and places."""

    def __init__(self, model: Model, config: GenerateConfig) -> None:
        begins = model.field.field.start
        if begins is not None and begins != config.start:
            raise UsageError(
                f"mechanism.start is {begins:g}, and fields are generated from start = {config.start:g} on.",
                "Make them equal, or leave mechanism.start out.",
            )
        self.model = model
        self.times = np.linspace(config.start, config.stop, config.points)
        self.lattice = Lattice(model, self.times, config.places)
        self.axes, self.points, self.batch = self.lattice.axes[1:], self.lattice.points, self.lattice.batch
        self.mesh = self.lattice.discretised.nodes, self.lattice.discretised.cells

    def draw(self, generators: Sequence[np.random.Generator]) -> Truths:
        drawn = self.lattice.draw(generators)
        return Truths(drawn.values, drawn.force[:, None], drawn.outputs[:, None], drawn.ok)


def open_draws(config: GenerateConfig) -> Draws:
    """The prior of a config, ready to be drawn from."""
    model = model_of_prior(config)
    check(model, config.instances, config.missing)
    if config.noise is not None and not model.likelihood.gaussian:
        raise UsageError(
            f"noise is {config.noise:g}, and a {model.likelihood.options.kind} likelihood has none.", "Leave noise out."
        )
    return FieldDraws(model, config) if model.is_field else OdeDraws(model, config)


def _draw_evenly(
    model: Model, values: Values, breaks: Tensor, generators: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    return draw_paths(model.kernels, model.hyper(values), breaks, generators)


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
            raise UsageError(f"units names {name!r}, which is nothing of this model.", nearest(name, list(elements)))
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


AXES = ("x", "y", "z")
DIVERGED = "It diverges, however often it is drawn. Narrow the priors of the mechanism, or shorten the times."

Arrays = dict[str, NDArray[Any]]


def store_spec(config: GenerateConfig, draws: Draws) -> StoreSpec:
    """The store of a config. Its parameters are all there are, known ones too: the truth is whole."""
    system, parameters = draws.model.system, draws.model.space.parameters
    names = tuple(element_name(one, label) for one in parameters for label in one.labels)
    space = AXES[: len(draws.axes)]
    return StoreSpec(
        kind="generate",
        instances=config.instances,
        block=min(config.run.block, config.instances),
        outputs=system.outputs,
        forces=system.force_names,
        parameters=names,
        parameter_kinds=tuple(one.kind for one in parameters for _ in one.labels),
        samples=_plan(config, draws).size,
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


@dataclass
class Block:
    """A block in the making. arrays: each [B, …], as a store takes them; rows: one an instance."""

    config: GenerateConfig
    draws: Draws
    plan: Plan
    arrays: Arrays
    rows: list[dict[str, Any]]

    def __post_init__(self) -> None:
        self.names = [parameter.name for parameter in self.draws.model.space.parameters]

    def put(self, place: int, truths: Truths, row: int, generator: np.random.Generator, attempt: int) -> None:
        """Row `row` of a batch becomes instance `place` of the block."""
        arrays, shape = self.arrays, (len(self.draws.times), *(len(axis) for axis in self.draws.axes))
        parameters = {name: value[row].numpy() for name, value in truths.values.items()}
        points, seen = observe(self.config, self.draws.model, self.plan, truths.outputs[row], parameters, generator)
        arrays["observed"][place] = seen
        arrays["observed_time"][place] = self.draws.points[points, 0]
        for i, axis in enumerate(AXES[: len(self.draws.axes)], 1):
            arrays[f"observed_{axis}"][place] = self.draws.points[points, i]
        arrays["solution_mean"][place] = truths.outputs[row].reshape(-1, *shape)
        arrays["force_mean"][place] = truths.forces[row].reshape(-1, *shape)
        arrays["params_mean"][place] = np.concatenate(
            [parameters[one.name] for one in self.draws.model.space.parameters]
        )
        for name in ("solution_var", "force_var", "params_var"):
            arrays[name][place] = 0.0
        arrays["status"][place] = STATUSES["generated"]
        self.rows[place] = {"id": str(arrays["id"][place]), "status": "generated"}
        if attempt:
            self.rows[place]["attempts"] = attempt + 1

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
    arrays = {one.name: one.filled(len(indices)) for one in variables(spec)}
    arrays["id"][:] = [instance_name(index) for index in indices]
    arrays["seed"][:] = config.seed
    block = Block(config, draws, _plan(config, draws), arrays, [{} for _ in indices])
    for place, reason in (left_out or {}).items():
        block.refuse(place, "failed", reason)
    waiting = [place for place in range(len(indices)) if place not in (left_out or {})]
    for attempt in range(ATTEMPTS):
        diverged: list[int] = []
        for first in range(0, len(waiting), draws.batch):
            places = waiting[first : first + draws.batch]
            generators = [np.random.default_rng([config.seed, indices[place], attempt]) for place in places]
            truths = _with_noise(config, draws.draw(generators))
            for row, place in enumerate(places):
                if bool(truths.ok[row]):
                    block.put(place, truths, row, generators[row], attempt)
                else:
                    diverged.append(place)
        waiting = diverged
    for place in waiting:
        block.refuse(place, "diverged", DIVERGED)
    arrays["wall_s"][:] = (time.perf_counter() - began) / len(indices)
    return arrays, block.rows


def _with_noise(config: GenerateConfig, truths: Truths) -> Truths:
    """The same with the noise that the config states, where it does, among the parameters."""
    if config.noise is None:
        return truths
    stated = {"noise": config.noise, "relative_noise": 0.0}
    values = {
        name: torch.full_like(value, stated[name]) if name in stated else value for name, value in truths.values.items()
    }
    return replace(truths, values=values)


def _plan(config: GenerateConfig, draws: Draws) -> Plan:
    plan = Plan.of(config, draws.points[:, 0], is_field=draws.model.is_field)
    if plan.size > len(plan.candidates):
        raise UsageError(
            f"sampling.count is {plan.size}, and there are {len(plan.candidates)} points to draw from.",
            "Lower it, or give more points.",
        )
    return plan
