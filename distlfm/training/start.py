"""Going on from a trained operator: with other stores, and with observations of which nobody knows the force.

A network learns from observations alone by explaining them: its force and parameters, solved forward, must give what
was observed (`loss.reconstruction`).
"""

from __future__ import annotations

from collections.abc import Sequence

from distlfm.errors import DistlfmError, Problem, UsageError
from distlfm.fleets.sources import for_fitting, open_source
from distlfm.instance import Instance
from distlfm.lfo import Examples, Operator
from distlfm.lfo.finish import lineage
from distlfm.lfo.grid import GriddedData
from distlfm.lfo.settings import SplitConfig
from distlfm.queries.asking import check_data, find_checkpoint, renamed
from distlfm.runs.settings import DataConfig
from distlfm.runtime.reporting import Reporter
from distlfm.store import Store
from distlfm.training.settings import TrainConfig


def open_start(config: TrainConfig) -> Operator | None:
    """The operator that a training begins with, if it begins with one."""
    if config.start is not None:
        return Operator.load(find_checkpoint(config.start))
    if config.data.observations is not None:
        raise UsageError(
            "Observations without labels teach an operator that has learned from others before.",
            "Give --start CHECKPOINT too, or fit them with `distlfm fit` and learn from the fits.",
        )
    return None


def examples_after(start: Operator, stores: Sequence[Store], config: TrainConfig) -> Examples:
    """Examples for going on: all as the operator takes them."""
    for store in stores:
        _check_split(start, store, config.split)
    observed = None
    if config.data.observations is not None:
        if not config.loss.reconstruction:
            raise UsageError(
                "Observations without labels teach by loss.reconstruction, which is 0.", "Set loss.reconstruction=1."
            )
        observed, _ = read_observed(start, config)
    return Examples(stores, start.schema, config.loop.memory, observed)


def tell_observed(config: TrainConfig, reporter: Reporter) -> None:
    """Say what of the observations can be learned from."""
    start = open_start(config)
    if start is None or config.data.observations is None:
        return
    observed, problems = read_observed(start, config)
    for problem in problems:
        reporter.warn(f"set aside: {problem}")
    reporter.say(f"{len(observed)} instances without labels, {int(observed.mask.sum())} observations on the grid")


def read_observed(start: Operator, config: TrainConfig) -> tuple[GriddedData, list[Problem]]:
    """What the config's observations are on the operator's grid, and what of them had to be set aside."""
    data, names = config.data.observations, config.data.outputs
    assert data is not None
    source, intake = open_source(data, None, None)
    check_data(start.schema, source, data, names)
    kept: list[Instance] = []
    problems = list(intake.set_aside)
    for one in (instance for piece in source.pieces() for instance in piece):
        ready = renamed(for_fitting(one, data), names, start.schema.outputs)
        problem = _problem(start, ready, data)
        if problem is None:
            kept.append(ready)
        else:
            problems.append(problem)
    if not kept:
        raise UsageError("Nothing of the observations can be learned from.", str(problems[0]))
    values, mask = start.arrays(kept, start.schema.shape)
    return GriddedData([one.id for one in kept], values.numpy(), mask.numpy(), source.fingerprint), problems


def _problem(start: Operator, one: Instance, data: DataConfig) -> Problem | None:
    """Why an instance teaches nothing, if so."""
    place = "" if data.path is None else str(data.path)
    try:
        _, mask = start.arrays([one], start.schema.shape)
    except DistlfmError as error:
        return Problem(error.cause, error.fix, place, instance=one.id)
    if bool(mask.any()):
        return None
    time = start.schema.dims[0]
    return Problem(
        f"None of it was observed at the operator's times, {time.start:g} to {time.stop:g}.",
        "Cut it into windows with data.observations.window, or give times in the operator's unit.",
        place,
        instance=one.id,
    )


def _check_split(start: Operator, store: Store, split: SplitConfig) -> None:
    """Refuse a split that would take for new what the operator has learned from."""
    before = start.training.get("settings", {}).get("split")
    if before is None or not {*lineage(store)} & {*start.training.get("stores", [])}:
        return
    if SplitConfig.model_validate(before) != split:
        raise UsageError(
            f"The operator has learned from {store.path}, split in another way: what would be held out now was not.",
            f"Give the same section `split`: {before}.",
        )
