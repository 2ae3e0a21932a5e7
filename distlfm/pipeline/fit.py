"""`distlfm fit`: read instances, infer their forces in blocks, write a run directory."""

from __future__ import annotations

import platform
import shlex
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from distlfm.config import fingerprint, load
from distlfm.errors import Problem, UsageError, WorkError
from distlfm.inference.archive import SavedFits
from distlfm.inference.fit import InferenceConfig, fit_instances, instance_bytes
from distlfm.inference.metrics import Figures
from distlfm.inference.model import Model
from distlfm.inference.result import Digest, FitResult
from distlfm.inference.survey import Survey, settled, survey
from distlfm.inference.tally import Tally, directions_of, figures_of, row_of
from distlfm.instance import Instance
from distlfm.pipeline import sources
from distlfm.pipeline.fit_columns import AXES, grid_part, mesh_of, parameter_part
from distlfm.pipeline.fit_job import FITS, FitJob, model_with, ranks_of
from distlfm.pipeline.fleet import Fleet, run_blocks
from distlfm.pipeline.rundir import CONFIG, begin, refuse_others, same_work, write_config, write_page, write_summary
from distlfm.pipeline.settings import FitConfig
from distlfm.pipeline.sources import Source, for_fitting, open_source
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.runtime.threads import torch_threads
from distlfm.store import Store, StoreSpec, driver_lock
from distlfm.store.find import RUN_STORE, is_store
from distlfm.version import __version__

BATCH_BYTES = 1_500_000_000
"""Memory that a block may take; its size follows from it unless run.batch is set."""

LEAST_BATCH, MAX_BATCH = 16, 128
BLOCKS = 16
"""A fleet is cut into at least so many blocks, as far as LEAST_BATCH allows: several workers share it, and little is
lost with one. The number of workers has no say in it, as an answer's last digits depend on the size of its block."""

KEEP_ALL = 256
"""Fleets up to this size have the whole posterior of every instance kept."""

INPUT = "input"


@dataclass
class FitRun:
    """What a fit gave. `set_aside` could not be read; `tally` has the scores.

    results are in the order of the data. With `run.dir` one is read from its file each time it is asked for, and of a
    large fleet only some were kept (`run.keep`); without, all are in memory.
    """

    config: FitConfig
    results: Sequence[FitResult] = ()
    set_aside: list[Problem] = field(default_factory=list)
    store: Store | None = None
    tally: Tally = field(default_factory=Tally)
    held_rows: list[Figures] = field(default_factory=list)

    def rows(self) -> Iterator[Figures]:
        """What is known of each instance, in the order of the data."""
        return iter(self.held_rows) if self.store is None else self.store.rows()

    @property
    def figures(self) -> list[Figures]:
        """The scores of each instance."""
        return [figures_of(row) for row in self.rows()]

    @property
    def digests(self) -> list[Digest]:
        """How each instance went."""
        return [Digest(row["id"], row["status"], row["advice"], directions_of(row)) for row in self.rows()]

    @property
    def summary(self) -> dict[str, Any]:
        """All figures, as in summary.json."""
        return {"instances": self.figures, **self.overall}

    @property
    def overall(self) -> dict[str, Any]:
        """What summary.json says besides the instances."""
        mean, worst = self.tally.overall()
        return {
            "mean": mean,
            "worst": worst,
            "failures": self.tally.failures,
            "set_aside": self.tally.set_aside,
            "config_hash": fingerprint(self.config.work()),
            "versions": versions(),
        }


def versions() -> dict[str, str]:
    """What made the numbers."""
    return {"distlfm": __version__, "torch": torch.__version__, "python": platform.python_version()}


def fit(
    config: FitConfig | Path | str,
    data: Sequence[Instance] | Path | str | None = None,
    overrides: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> FitRun:
    """Infer the forces of all instances. `data` stands in for the config's: instances, or a path to them.

    With `run.dir` set, the run directory is written: config.yaml, store.zarr/, fits/, summary.json, report.html. A run
    that was stopped goes on where it was. Without, all is done in this process and kept in memory.
    """
    reporter = reporter or Silent()
    if not isinstance(config, FitConfig):
        config = load(FitConfig, Path(config), overrides)
    if isinstance(data, Path | str):
        config = config.model_copy(update={"data": config.data.model_copy(update={"path": Path(data)})})
        data = None
    if config.run.dir is None:
        run = _fit_here(config, data, reporter)
    else:
        run = _fit_in(config.run.dir, config, data, reporter)
    if run.tally.failed == run.tally.count:
        first = next(run.rows())
        raise WorkError(f"All {run.tally.count} fits failed.", str(first["advice"]))
    return run


def _fit_here(config: FitConfig, data: Sequence[Instance] | None, reporter: Reporter) -> FitRun:
    plan = make_plan(config, data, None, reporter)
    run = FitRun(config, set_aside=plan.set_aside, tally=Tally(set_aside=map(str, plan.set_aside)))
    results: list[FitResult] = []
    with reporter.task("fit", plan.source.count) as task, torch_threads(config.run.threads):
        for block in plan.source.pieces(plan.block):
            chosen = [for_fitting(instance, config.data) for instance in block]
            results += fit_instances(plan.model, chosen, plan.options, config.run.seed)
            for result in results[-len(block) :]:
                run.held_rows.append(row_of(result))
                run.tally.add(run.held_rows[-1])
            task.advance(len(block), f"{run.tally.failed} failed" if run.tally.failed else "")
    run.results = results
    return run


def _fit_in(directory: Path, config: FitConfig, data: Sequence[Instance] | None, reporter: Reporter) -> FitRun:
    refuse_others(directory, kept(config))
    if not is_store(directory):
        sources.refuse_others(directory / INPUT)
    begin(directory, FITS)
    directory = directory.resolve()  # workers on other nodes know no relative paths
    with driver_lock(directory, "fit"):
        plan = make_plan(config, data, directory / INPUT, reporter)
        store = open_store(directory / RUN_STORE, config, plan)
        write_config(directory, kept(config))
        job = make_job(directory, config, plan, store)
        again = f"distlfm resume {shlex.quote(str(directory))}"
        run_blocks(Fleet("fit", job, store, again, directory), config.run, reporter)
        run = FitRun(config, set_aside=plan.set_aside, store=store, tally=Tally(set_aside=map(str, plan.set_aside)))
        paths = []
        for row in run.rows():
            run.tally.add(row)
            if row.get("kept"):
                paths.append(directory / row["kept"])
        run.results = SavedFits(paths)
        write_summary(directory, run.rows(), run.overall)
        write_page(directory, run.tally, _Kept(directory, run.tally.kept), config, run.overall)
        plan.tidy()
    return run


@dataclass
class Plan:
    """What a fit is about to do. costs: of each instance, about."""

    model: Model
    options: InferenceConfig
    source: Source
    found: Survey
    block: int
    costs: array[float]
    set_aside: list[Problem]
    folder: Path | None

    def tidy(self) -> None:
        """Remove the copy of the data: the store has what was fitted."""
        if self.folder is not None:
            sources.clear_spool(self.folder)


def kept(config: FitConfig) -> FitConfig:
    """The config as a run keeps it: its data are found from any working directory."""
    if config.data.path is None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"path": config.data.path.absolute()})})


def make_plan(config: FitConfig, data: Sequence[Instance] | None, folder: Path | None, reporter: Reporter) -> Plan:
    source, intake = open_source(config.data, data, folder)
    for notice in intake.notices:
        reporter.say(f"notice: {notice}")
    for problem in intake.set_aside:
        reporter.warn(f"set aside: {problem}")
    model = model_with(config, source.outputs)
    found: Survey | None = None
    noiseless: str | None = None
    costs = array("d")
    for piece in source.pieces():
        chosen = [for_fitting(instance, config.data) for instance in piece]
        _placed(model, chosen)
        part = survey(model, piece, chosen, config.inference)
        found = part if found is None else found.joined(part)
        costs.extend(float(len(instance.times)) ** 2 for instance in chosen)
        noiseless = noiseless or next((one.id for one in chosen if one.variance is None), None)
    assert found is not None
    if found.variance and noiseless is not None:  # each alone could be fitted, and no block of both
        raise UsageError(
            f"Some instances have a noise variance and {noiseless!r} has none.", "Give it for all of them or for none."
        )
    options = settled(model, found, config.inference)
    block = config.run.batch or batch_size(model, found, options)
    return Plan(model, options, source, found, block, costs, intake.set_aside, folder)


def _placed(model: Model, instances: Sequence[Instance]) -> None:
    """Refuse positions where the mechanism has no space."""
    placed = None if model.is_field else next((one.id for one in instances if one.positions is not None), None)
    if placed is not None:
        raise UsageError(
            f"{placed!r} was observed at positions, and {model.mechanism.options.kind!r} has no space.",
            "Choose the mechanism of a field, or leave the positions out.",
        )


def batch_size(model: Model, found: Survey, options: InferenceConfig) -> int:
    """Instances of a block: as many as fit in BATCH_BYTES, and not so many that there is nothing to share."""
    room = BATCH_BYTES // instance_bytes(model, found.samples, options)
    return max(1, min(room, MAX_BATCH, max(LEAST_BATCH, -(-found.count // BLOCKS))))


def open_store(path: Path, config: FitConfig, plan: Plan) -> Store:
    """The store of the run: a new one, or that of an earlier try at the same work."""
    work = config.work()
    identity = {
        "mechanism": config.mechanism["kind"],
        "config": work.model_dump(mode="json"),
        "config_hash": fingerprint(work),
        "data": plan.source.fingerprint,
    }
    if (path / "zarr.json").exists():
        store = Store.open(path)
        same_work(store, identity, config.run.batch)
        return store
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
        attributes={**identity, "seed": config.run.seed, "versions": versions(), "title": "Latent force fits"},
        **parameter_part(plan.model),
        **grid_part(plan.model, plan.options, plan.found),
    )
    return Store.create(path, spec, mesh_of(plan.model, plan.options))


def _units(plan: Plan) -> dict[str, str]:
    """Units that the data state."""
    told = plan.source.read(0, 1)[0].metadata
    axes = AXES[: plan.model.field.field.num_dims] if plan.model.is_field else ()
    units = {"time": told.get("time_unit"), **dict.fromkeys(axes, told.get("position_unit"))}
    units |= dict.fromkeys(plan.model.system.outputs, told.get("value_unit"))
    return {name: unit for name, unit in units.items() if unit is not None}


def make_job(directory: Path, config: FitConfig, plan: Plan, store: Store) -> FitJob:
    block, costs = store.spec.block, plan.costs
    ranks = ranks_of(plan.model, plan.options)
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
    )


class _Kept(Mapping[str, FitResult]):
    """Saved fits by the id of their instance, read when they are asked for."""

    def __init__(self, directory: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._directory, self._rows = directory, rows

    def __getitem__(self, name: str) -> FitResult:
        return SavedFits([self._directory / self._rows[name]["kept"]])[0]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def resume(directory: Path | str, overrides: Sequence[str] = (), reporter: Reporter | None = None) -> FitRun:
    """Go on with a run that was stopped, from the config that it keeps, wherever it lies now."""
    path = Path(directory) / CONFIG
    if not path.is_file():
        raise UsageError(f"{directory} is no run: it has no config.yaml.", "Give the --out folder of `distlfm fit`.")
    config = load(FitConfig, path, overrides)
    here = config.run.model_copy(update={"dir": Path(directory)})
    return fit(config.model_copy(update={"run": here}), reporter=reporter)
