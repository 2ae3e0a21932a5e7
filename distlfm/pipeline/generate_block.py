"""A block of generated instances as the arrays of a store, and the store that holds them.

Instance i depends on the config, the seed and i alone: it has its own random numbers.

Shapes: `B` instances of a block, `P` outputs, `Q` points of the grid, `n` observed ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distlfm.errors import UsageError
from distlfm.pipeline.generate_draws import Draws, Truths
from distlfm.pipeline.generate_observe import Plan, observe
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.generate_units import element_name, store_units
from distlfm.pipeline.rundir import identity
from distlfm.pipeline.simulate import ATTEMPTS
from distlfm.pipeline.versions import versions
from distlfm.store import STATUSES, StoreSpec
from distlfm.store.layout import variables

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
