"""`distlfm fit`: read instances, infer their forces in blocks, write a run directory.

With `--part I/N` (`fit_part`) it does one share of a run's blocks, while others do theirs, on any machine that shares
its folder. Nobody is over them: each has a lock on its part, and whoever finds no block missing at its end concludes
the run.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from distlfm.cluster.blocks.ledger import Share
from distlfm.config import Overrides, load, nearest
from distlfm.data import ReadReport
from distlfm.data.base import item_of
from distlfm.errors import Problem, UsageError, WorkError
from distlfm.fleets.driver import Fleet, resumable, run_blocks
from distlfm.fleets.fit_plan import FitPlan, command_for, make_plan, open_folder, prepare
from distlfm.fleets.sources import for_fitting
from distlfm.inference.archive import SavedFits
from distlfm.inference.findings.scores import Figures, Tally, figures_of, row_of
from distlfm.inference.fit import fit_instances
from distlfm.inference.result import FitResult
from distlfm.instance import Instance
from distlfm.runs import CONFIG, REPORT
from distlfm.runs.folder import overall, write_page, write_summary
from distlfm.runs.settings import FitConfig
from distlfm.runtime.process import torch_threads
from distlfm.runtime.reporting import Reporter, Silent, during, watched
from distlfm.store import Store, driver_lock, part_lock, turn
from distlfm.store.metadata import RUN_STORE

if TYPE_CHECKING:
    import pandas as pd


MOST_ROWS, MOST_COLUMNS = 20, 8
"""Of the table that a notebook shows of a run."""


@dataclass(repr=False)
class FitRun(Sequence[FitResult]):
    """The results of a fit, a sequence: `run[0]` is the first, `run["A"]` that of the instance A.

    config: the settings of the run. results: in the order of the data. With `run.dir` one is read from its file each
    time it is asked for, and of a large fleet only some were kept (`run.keep`); without, all are in memory.
    set_aside: what could not be read, and why. store: the results of all instances on disk, None without `run.dir`.
    tally: counts and scores of all instances. held_rows: the row of each instance where there is no store. notices:
    sentences that hold for all answers.
    """

    config: FitConfig
    results: Sequence[FitResult] = ()
    set_aside: list[Problem] = field(default_factory=list)
    store: Store | None = None
    tally: Tally = field(default_factory=Tally)
    held_rows: list[Figures] = field(default_factory=list)
    notices: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, index: int | str) -> FitResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FitResult]: ...
    def __getitem__(self, index: int | str | slice) -> FitResult | Sequence[FitResult]:
        if not isinstance(index, str):
            return self.results[index] if isinstance(index, slice) else item_of(self.results, index)
        if index in self.ids:
            return self.results[self.ids.index(index)]
        every = [str(row["id"]) for row in self.rows()]
        if index in every:
            raise UsageError(f"The posterior of {index!r} was not kept.", "Fit again with run.keep=all.")
        raise UsageError(f"There is no instance {index!r} in the run.", nearest(index, every))

    def __contains__(self, item: object) -> bool:
        return item in self.ids if isinstance(item, str) else any(one is item for one in self.results)

    @property
    def ids(self) -> list[str]:
        """The id of each result."""
        return [str(row["id"]) for row in self.rows() if self.store is None or row.get("kept")]

    def _repr_html_(self) -> str:
        frame = self.to_frame().drop(columns=["seconds", "parameter_mae"], errors="ignore")
        shown = frame.dropna(axis=1, how="all").iloc[:, :MOST_COLUMNS]
        return f"<p>{escape(repr(self))}</p>{shown.to_html(max_rows=MOST_ROWS)}"

    def __repr__(self) -> str:
        kept = "" if len(self) == self.tally.count else f", {len(self)} kept whole"
        failed = f", {self.tally.failed} failed" if self.tally.failed else ""
        failed += f", {self.tally.unreliable} unreliable" if self.tally.unreliable else ""
        aside = f", {len(self.set_aside)} set aside" if self.set_aside else ""
        where = f" in {self.config.run.dir}" if self.config.run.dir is not None else ""
        count = "1 instance" if self.tally.count == 1 else f"{self.tally.count} instances"
        return f"<FitRun of {self.config.mechanism['kind']}{where}: {count}{kept}{failed}{aside}>"

    def to_frame(self) -> pd.DataFrame:
        """Return the figures of each instance as a pandas table, by id."""
        import pandas

        frame: pd.DataFrame = pandas.DataFrame(self.figures).set_index("id")
        return frame

    def rows(self) -> Iterator[Figures]:
        """Return an iterator over what is known of each instance, in the order of the data."""
        return iter(self.held_rows) if self.store is None else self.store.rows()

    @property
    def figures(self) -> list[Figures]:
        """The scores of each instance."""
        return [figures_of(row) for row in self.rows()]

    @property
    def summary(self) -> dict[str, Any]:
        """All figures, as in summary.json."""
        return {"instances": self.figures, **self.overall}

    @property
    def overall(self) -> dict[str, Any]:
        """What summary.json says besides the instances."""
        return overall(self.tally, self.config, notices=list(self.notices))


def fit(
    config: FitConfig | Mapping[str, Any] | Path | str,
    data: Instance | Sequence[Instance] | Path | str | None = None,
    overrides: Overrides = (),
    reporter: Reporter | None = None,
) -> FitRun:
    """Infer the forces of all instances.

    config: the path of a config file, a mapping with its content, or a config. data: instances, or a path to them, in
    place of the config's. overrides: settings to change, such as `{"run.seed": 1}` or `["run.seed=1"]`; ignored for a
    config that is built already. reporter: where progress and warnings go, by default nowhere.

    With `run.dir` set, the run directory is written: config.yaml, store.zarr/, fits/, summary.json, report.html. A run
    that was stopped goes on where it was. Without, all is done in this process and kept in memory.

    Returns the run, a sequence of results. Raises `UsageError` if config or data are wrong, `WorkError` if every fit
    failed or the work could not be done, and, with `run.dir`, `Stopped` if a signal ended it.
    """
    reporter = reporter or Silent()
    if not isinstance(reporter, Reporter):
        raise UsageError(
            f"The reporter is of type {type(reporter).__name__}.",
            "Give one of distlfm.runtime.reporting, such as reporter_for(), or leave it out.",
        )
    config, data = with_data(load(FitConfig, config, overrides), data)
    if config.run.dir is None:
        run = _fit_here(config, data, reporter)
    else:
        run = _fit_in(config.run.dir, config.located(), data, reporter)
    if run.tally.failed == run.tally.count:
        first = next(run.rows())
        raise WorkError(f"All {run.tally.count} fits failed.", str(first["advice"]))
    return run


def with_data(config: FitConfig, data: object) -> tuple[FitConfig, Sequence[Instance] | None]:
    """The config with the path of its data where `data` is one, and instances where it has those."""
    if isinstance(data, Instance):
        return config, [data]
    if isinstance(data, Path | str):
        return config.changed("data", path=Path(data)), None
    if data is None or isinstance(data, ReadReport):
        return config, data
    given = list(data) if isinstance(data, Sequence | Iterator) else None
    if not given or not all(isinstance(one, Instance) for one in given):
        raise UsageError(
            f"The data are of type {type(data).__name__}" + ("." if given is None else ", of no instances."),
            "Read a pandas table with read_frame, an xarray object with read_xarray, or give a list of Instance.",
        )
    return config, given


def _fit_here(config: FitConfig, data: Sequence[Instance] | None, reporter: Reporter) -> FitRun:
    plan = make_plan(config, data, None, reporter)
    results: list[FitResult] = []
    run = _planned(config, plan, results)
    with reporter.task("fit", plan.source.count) as task, watched(task.tell), torch_threads(config.run.threads):
        for block in plan.source.pieces(plan.block):
            chosen = [for_fitting(instance, config.data) for instance in block]
            results += fit_instances(plan.model, chosen, plan.options, config.run.seed)
            for result in results[-len(block) :]:
                with during("scores"):
                    run.held_rows.append(row_of(result))
                run.tally.add(run.held_rows[-1])
            task.advance(len(block), f"{run.tally.failed} failed" if run.tally.failed else "")
    return run


def _planned(config: FitConfig, plan: FitPlan, results: Sequence[FitResult], store: Store | None = None) -> FitRun:
    tally = Tally(set_aside=map(str, plan.set_aside))
    return FitRun(config, results, plan.set_aside, store, tally, notices=plan.notices)


def _fit_in(directory: Path, config: FitConfig, data: Sequence[Instance] | None, reporter: Reporter) -> FitRun:
    directory = open_folder(directory, config)
    again = command_for(directory, data is not None)
    with driver_lock(directory, "fit"), resumable(directory / RUN_STORE, again):
        plan, fleet = prepare(directory, config, data, reporter)
        run_blocks(fleet, config.run, reporter)
        return conclude(config, plan, fleet, reporter)


def conclude(config: FitConfig, plan: FitPlan, fleet: Fleet, reporter: Reporter) -> FitRun:
    """Summary and page of a run whose blocks are all there."""
    directory, results = fleet.folder, SavedFits()
    run = _planned(config, plan, results, fleet.store)
    for row in run.rows():
        run.tally.add(row)
        if row.get("kept"):
            results.paths.append(directory / row["kept"])
    write_summary(directory, _with_parameters(fleet.store), run.overall)
    kept = _Kept({name: directory / row["kept"] for name, row in run.tally.kept.items()})
    while True:
        try:
            write_page(directory, run.tally, kept, config, run.overall)
            break
        except _Lost as lost:  # the store has its numbers; only its picture is missing
            reporter.warn(f"{lost.name} is not drawn in the report: {lost}")
            del kept[lost.name]
    plan.tidy()
    return run


MOST_WITH_PARAMETERS = 10_000
"""Instances up to which summary.json has their parameters; those of a larger fleet are in the store alone."""


def _with_parameters(store: Store) -> Iterator[Figures]:
    """The rows of a run, with mean and deviation of each parameter."""
    if store.spec.instances > MOST_WITH_PARAMETERS:
        yield from store.rows()
        return
    for block in range(store.spec.num_blocks):
        where = store.block_range(block)
        means, variances = (store.read(name, where.start, where.stop) for name in ("params_mean", "params_var"))
        for row, mean, variance in zip(store.rows([block]), means.tolist(), variances.tolist(), strict=True):
            pairs = zip(store.spec.parameters, mean, variance, strict=True)
            yield {**row, "parameters": {name: {"mean": one, "sd": other**0.5} for name, one, other in pairs}}


class _Lost(Exception):
    """A saved fit that cannot be read."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


class _Kept(UserDict[str, Any]):
    """Saved fits by the id of their instance: paths, read when they are asked for."""

    def __getitem__(self, name: str) -> FitResult:
        try:
            return SavedFits([self.data[name]])[0]
        except UsageError as error:
            raise _Lost(name, str(error)) from error


def resume(directory: Path | str, overrides: Sequence[str] = (), reporter: Reporter | None = None) -> FitRun:
    """Go on with a run that was stopped, from the config that it keeps, wherever it lies now."""
    path = Path(directory) / CONFIG
    if not path.is_file():
        raise UsageError(f"{directory} is not a run: it has no config.yaml.", "Give the --out folder of `distlfm fit`.")
    config = load(FitConfig, path, overrides)
    if config.data.path is None and config.data.dataset is None:
        raise UsageError(
            f"{directory} was begun by a Python program with instances in memory, which a run does not keep.",
            "Call `fit` again with the same config and instances: it goes on where it was.",
        )
    return fit(config.changed("run", dir=Path(directory)), reporter=reporter)


@dataclass(frozen=True)
class PartRun:
    """A part that is done. count, failed: its own instances; left: those that others have still to do.

    run: the whole, if this part was the last and has concluded it.
    """

    share: Share
    count: int
    failed: int
    left: int
    run: FitRun | None = None


def fit_part(
    config: FitConfig | Path | str, share: Share, overrides: Sequence[str] = (), reporter: Reporter | None = None
) -> PartRun:
    """Do the blocks of a share that are missing. Raises Stopped if a signal ended it before."""
    reporter, config = reporter or Silent(), load(FitConfig, config, overrides)
    if config.run.dir is None:
        raise UsageError("A part of a run needs the folder of the run.", "Give --out DIR, the same for all parts.")
    directory, config = config.run.dir, config.located()
    directory = open_folder(directory, config)
    again = command_for(directory, share=share)
    with part_lock(directory, str(share)), resumable(directory / RUN_STORE, again):
        with turn(directory):
            plan, whole = prepare(directory, config, None, reporter)
        fleet = replace(whole, share=share, command=again)
        run_blocks(fleet, config.run, reporter)
        with turn(directory):
            missing = fleet.store.missing()
            run = None
            if not missing and not (directory / REPORT).is_file():
                run = conclude(config, plan, fleet, reporter)
            elif not missing:  # another part was the last; our copy of the data may have come after it
                plan.tidy()
        left = sum(len(fleet.store.block_range(block)) for block in missing)
        return PartRun(share, fleet.total, fleet.failed(), left, run)
