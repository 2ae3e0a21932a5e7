"""What a fit is about to do: its data looked through, its blocks settled, its store opened, its job made."""

from __future__ import annotations

import shlex
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distlfm.cluster.blocks.ledger import Share
from distlfm.errors import Problem, UsageError
from distlfm.fleets import spool
from distlfm.fleets.driver import Fleet
from distlfm.fleets.fit_job import FITS, FitJob, grid_part, mesh_of, model_with, parameter_part
from distlfm.fleets.sources import for_fitting, known_units, open_source
from distlfm.fleets.spool import Source
from distlfm.inference.field.settings import num_ranks
from distlfm.inference.findings.expectations import Negatives, length_notice, prior_notice, units_notice
from distlfm.inference.fit import InferenceConfig, check_inference, instance_bytes, method_of
from distlfm.inference.model import Model
from distlfm.inference.survey import Survey, settled, survey
from distlfm.instance import AXES, Instance
from distlfm.runs import CONFIG
from distlfm.runs import folder as run_folder
from distlfm.runs.settings import FitConfig
from distlfm.runtime.reporting import Reporter
from distlfm.store import Store, StoreSpec
from distlfm.store.metadata import RUN_STORE, is_store

BATCH_BYTES = 1_500_000_000
"""Memory that a block may take; its size follows from it unless run.batch is set."""

LEAST_BATCH = 16
BLOCKS = 16
"""A fleet is cut into at least this many blocks, as far as LEAST_BATCH allows: several workers share it, and little is
lost with one. The number of workers has no say in it, as an answer's last digits depend on the size of its block."""

KEEP_ALL = 256
"""Fleets up to this size have the whole posterior of every instance kept."""

INPUT = "input"


@dataclass
class FitPlan:
    """What a fit is about to do. costs: of each instance, about. notices: what to know of all its answers."""

    model: Model
    options: InferenceConfig
    source: Source
    found: Survey
    block: int
    costs: array[float]
    set_aside: list[Problem]
    folder: Path | None
    notices: tuple[str, ...] = ()

    def tidy(self) -> None:
        """Remove the copy of the data: the store has what was fitted."""
        if self.folder is not None:
            spool.clear_spool(self.folder)


def make_plan(config: FitConfig, data: Sequence[Instance] | None, folder: Path | None, reporter: Reporter) -> FitPlan:
    source, intake = open_source(config.data, data, folder)
    intake.tell(reporter)
    model = model_with(config, source.outputs)
    _named_alike(model, source.outputs)
    check_inference(model, config.inference)
    surveyed: Survey | None = None
    noiseless: str | None = None
    costs, known = array("d"), set[str]()
    negatives = Negatives(model.system)
    for piece in source.pieces():
        for one in piece:
            if one.id in known:
                raise UsageError(f"Two instances have the name {one.id!r}.", "Give each its own name.")
            known.add(one.id)
        chosen = [for_fitting(instance, config.data) for instance in piece]
        _placed(model, chosen)
        negatives.add(chosen)
        part = survey(model, piece, chosen, config.inference)
        surveyed = part if surveyed is None else surveyed.joined(part)
        costs.extend(float(len(instance.times)) ** 2 for instance in chosen)
        noiseless = noiseless or next((one.id for one in chosen if one.variance is None), None)
    assert surveyed is not None
    if surveyed.variance and noiseless is not None:  # each alone could be fitted, and no block of both
        raise UsageError(
            f"Some instances have a noise variance and {noiseless!r} has none.", "Give it for all of them or for none."
        )
    options = settled(model, surveyed, config.inference)
    block = config.run.batch or batch_size(model, surveyed, options)
    units = known_units(source, config.data)
    told = (
        negatives.notice(),
        units_notice(model.system, units),
        prior_notice(model, surveyed),
        length_notice(model, surveyed, options),
    )
    notices = tuple(filter(None, told))
    for notice in notices:
        reporter.warn(notice)
    notices = (*map(str, intake.doubts), *notices)  # those were reported when the data were read
    return FitPlan(model, options, source, surveyed, block, costs, intake.set_aside, folder, notices)


def _named_alike(model: Model, outputs: Sequence[str]) -> None:
    """Refuse data of which the equation knows no output; one instance among others that it does is refused alone."""
    known = model.system.outputs
    if not set(outputs) & set(known):
        raise UsageError(
            f"The data have no output of mechanism.outputs, {', '.join(known)}: theirs are {', '.join(outputs)}.",
            f"Set mechanism.outputs=[{', '.join(outputs)}], or leave it out to take the data's.",
        )


def _placed(model: Model, instances: Sequence[Instance]) -> None:
    """Refuse positions where the mechanism has no space."""
    placed = None if model.is_field else next((one.id for one in instances if one.positions is not None), None)
    if placed is not None:
        raise UsageError(
            f"{placed!r} was observed at positions, and {model.mechanism.options.kind!r} has no space.",
            "Choose the mechanism of a field, or leave the positions out.",
        )


def batch_size(model: Model, found: Survey, options: InferenceConfig) -> int:
    """Instances of a block: as many as fit in BATCH_BYTES, but few enough that there is something to share."""
    room = BATCH_BYTES // instance_bytes(model, found.samples, options)
    most = method_of(model, options.method).together
    return max(1, min(room, most, max(LEAST_BATCH, -(-found.count // BLOCKS))))


def open_store(path: Path, config: FitConfig, plan: FitPlan) -> Store:
    """The store of the run: a new one, or that of an earlier try at the same work."""
    if is_store(path):
        store = Store.open(path)
        run_folder.same_settings(store, config, config.run.batch)
        run_folder.same_data(store, plan.source.fingerprint)
        return store
    about = {"data": plan.source.fingerprint, "seed": config.run.seed, "versions": run_folder.versions()}
    spec = StoreSpec(
        kind="fit",
        instances=plan.source.count,
        block=plan.block,
        outputs=plan.model.system.outputs,
        forces=plan.model.system.force_names,
        samples=plan.found.samples,
        draws=config.run.draws,
        variance=plan.found.variance,
        units=_units(plan),
        attributes={**run_folder.identity(config), **about, "title": "Latent force fits"},
        **parameter_part(plan.model),
        **grid_part(plan.model, plan.options, plan.found),
    )
    return Store.create(path, spec, mesh_of(plan.model, plan.options))


def _units(plan: FitPlan) -> dict[str, str]:
    """Units that the data state."""
    known = plan.source.read(0, 1)[0].metadata
    axes = AXES[: plan.model.field.field.num_dims] if plan.model.is_field else ()
    units = {"time": known.get("time_unit"), **dict.fromkeys(axes, known.get("position_unit"))}
    units |= dict.fromkeys(plan.model.system.outputs, known.get("value_unit"))
    return {name: unit for name, unit in units.items() if unit is not None}


def make_job(directory: Path, config: FitConfig, plan: FitPlan, store: Store) -> FitJob:
    block, costs = store.spec.block, plan.costs
    settled = plan.options.settled  # of a field; a worker may start processes to divide its mesh among
    ranks = 1 if settled is None or not plan.model.is_field else num_ranks(plan.model, settled)
    keep: Literal["all", "few", "none"] = "all" if plan.source.count <= KEEP_ALL else "few"
    return FitJob(
        config=config.model_dump(mode="json"),
        options=plan.options,
        source=plan.source,
        run=directory,
        store=store,
        keep=keep if config.run.keep == "auto" else config.run.keep,
        costs=tuple(sum(costs[start : start + block]) for start in range(0, len(costs), block)),
        cpus=max(ranks, config.run.threads),
        grouped=ranks > 1,
        memory=block * instance_bytes(plan.model, plan.found.samples, plan.options),
    )


def open_folder(directory: Path, config: FitConfig) -> Path:
    """The folder of a run, made if need be, and refused if somebody else's files are in it; workers on other nodes know
    no relative paths."""
    run_folder.refuse_others(directory, config)
    if not is_store(directory):
        spool.refuse_others(directory / INPUT)
    run_folder.begin(directory, FITS)
    return directory.resolve()


def prepare(
    directory: Path, config: FitConfig, data: Sequence[Instance] | None, reporter: Reporter
) -> tuple[FitPlan, Fleet]:
    """Read the data, open the store, and keep the config. The caller has the lock of the folder.

    Whoever comes with other settings is refused before the data are read, and other data leave nothing behind.
    """
    path = directory / RUN_STORE
    if is_store(path):
        run_folder.same_settings(Store.open(path), config, config.run.batch)
    with spool.removed_if_refused(directory / INPUT):
        plan = make_plan(config, data, directory / INPUT, reporter)
        store = open_store(path, config, plan)
    if store.missing():
        run_folder.forget_report(directory)
    run_folder.write_config(directory, config)
    fleet = Fleet(
        "fit",
        make_job(directory, config, plan, store),
        store,
        command_for(directory, data is not None),
        directory,
        named=lambda number: plan.source.read(number, number + 1)[0].id,
    )
    return plan, fleet


def command_for(directory: Path, in_memory: bool = False, share: Share | None = None) -> str:
    """What goes on with a run that was stopped. in_memory: its data are those of a Python program."""
    run = shlex.quote(str(directory))
    if in_memory:
        return "call `fit` again with the same config and instances."
    if share is not None:
        return f"distlfm fit {shlex.quote(str(directory / CONFIG))} --out {run} --part {share}"
    return f"distlfm resume {run}"
