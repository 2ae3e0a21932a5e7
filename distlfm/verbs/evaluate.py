"""`distlfm evaluate`: how good an operator is on a store whose answers are known, drawn from priors or fitted.

Super-resolution is measured on fresh instances on a grid twice as fine as the trained one, answered on both grids.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import apply_overrides, build, dump, read_yaml
from distlfm.errors import DistlfmError, UsageError
from distlfm.inference.findings.scores import Figures, Tally
from distlfm.instance import Instance
from distlfm.lfo import Operator, OperatorAnswer, split
from distlfm.lfo.dataset import kept_rows
from distlfm.lfo.finish import lineage
from distlfm.lfo.schema import check_store_units
from distlfm.lfo.settings import SplitConfig
from distlfm.queries.asking import ask, find_checkpoint, mark, origin
from distlfm.queries.figures import CoverageCounts, DrawnTruths, failed_answer, novelty_of, row_of, true_elements
from distlfm.report.operator_page import Example, Resolutions, Scores, evaluation_page
from distlfm.runs import CONFIG, REPORT, SUMMARY
from distlfm.runs.folder import begin, forget_report, overall, refuse_other_verbs, write_config, write_summary
from distlfm.runs.settings import AskConfig, EvaluateConfig, GenerateConfig, SamplingConfig
from distlfm.runtime.process import torch_threads
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store import Store, find_store
from distlfm.verbs.generate import generate
from distlfm.verbs.query import worth_a_look

COUNT = 2
"""Instances that are drawn anew."""

FRESH = 715_517
"""Added to the seed of the store, so that no instance is one that was learned from."""


def resolutions(operator: Operator, store: Store, count: int = COUNT) -> list[Resolutions]:
    """Fresh instances of a generated store's config, asked on the trained grid and on one twice as fine.

    Nothing for a fitted store. Raises a DistlfmError where the config cannot be drawn from here (a plugin that is not
    there, say).
    """
    if store.spec.kind != "generate":
        return []
    return [_both(operator, one) for one in fresh(store.spec.attributes.get("config", {}), operator, count)]


def fresh(config: dict[str, object], operator: Operator, count: int) -> list[Instance]:
    """Instances observed at every point of a grid with half the trained step."""
    dims = operator.schema.dims
    with tempfile.TemporaryDirectory(prefix="distlfm-fine-") as folder:
        given = build(GenerateConfig, {**config, "run": {"dir": str(Path(folder) / "fine.zarr"), "executor": "serial"}})
        places = 2 * dims[1].size - 1 if len(dims) > 1 else given.places
        changed = {
            "instances": count,
            "seed": given.seed + FRESH,
            "points": 2 * dims[0].size - 1,
            "places": places,
            "sampling": SamplingConfig(),
            "missing": 0.0,
            "gaps": None,
        }
        return generate(given.model_copy(update=changed)).instances()


def thinned(instance: Instance) -> Instance:
    """Every second point of an even grid, in each of its dimensions; the truth stays whole."""
    if instance.positions is None:
        return instance.thinned(2)
    axes = [instance.times, *instance.positions.T]
    places = [np.unique(np.round(axis, 9), return_inverse=True)[1].ravel() for axis in axes]
    keep = np.all([place % 2 == 0 for place in places], axis=0)
    return replace(instance, mask=instance.mask & keep).observed()


def _both(operator: Operator, fine: Instance) -> Resolutions:
    coarse = thinned(fine)
    answers = operator(coarse.blind()), operator(fine.blind())
    rows = [row_of(answer, one, operator.schema, 0.0) for answer, one in zip(answers, (coarse, fine), strict=True)]
    sizes = ["×".join(map(str, answer.shape)) for answer in answers]
    figures = {f"force Q² at {size}": row["latent_q2"] for size, row in zip(sizes, rows, strict=True)}
    figures["largest change of a parameter"] = change(*answers)
    return Resolutions(fine, answers, figures)


def change(first: OperatorAnswer, second: OperatorAnswer) -> float | None:
    """The largest difference of two answers' parameters, relative to the first."""
    pairs = zip(first.estimates, second.estimates, strict=True)
    return max((abs(b.mean - a.mean) / max(abs(a.mean), 1e-12) for a, b in pairs), default=None)


SINGLES = 20
"""Instances that are answered one by one, for the time that one takes."""

SHOWN = 3
"""Examples on a page: the worst, the median and the best."""


@dataclass
class Evaluation:
    """Scores of an operator on instances whose answers are known.

    config: the settings of the run. operator: what was scored. checkpoint: a short mark of its file. what: which
    instances these are, in words. tally: counts and scores of all. rows: the figures of each, in the order of the
    store. calibration: how often bands and intervals hold the truth. speed: instances per second, and seconds of one
    asked alone. examples: those that a page shows. fine: answers on a grid twice as fine. notices: what was left out.
    """

    config: EvaluateConfig
    operator: Operator
    checkpoint: str
    what: str
    tally: Tally = field(default_factory=Tally)
    rows: list[Figures] = field(default_factory=list)
    calibration: CoverageCounts = field(default_factory=CoverageCounts)
    speed: dict[str, float] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    fine: list[Resolutions] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def overall(self) -> dict[str, Any]:
        """What summary.json says besides the instances: as a query's, with calibration, spread and speed."""
        scores = self.tally.column("latent_q2")
        scores = scores[np.isfinite(scores)]
        at = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
        spread = np.quantile(scores, at).tolist() if len(scores) else [None] * len(at)
        return overall(
            self.tally,
            self.config,
            what=self.what,
            count=self.tally.count,
            latent_q2_quantiles={f"{share:g}": value for share, value in zip(at, spread, strict=True)},
            calibration=self.calibration.curve(),
            novelty=novelty_of(list(self.rows)),
            speed=self.speed,
            super_resolution=[{"id": one.instance.id, **one.figures} for one in self.fine],
            notices=self.notices,
            checkpoint=self.checkpoint,
        )

    @property
    def scores(self) -> Scores:
        """What a page shows."""
        return Scores(self.tally, self.rows, self.calibration.curve(), self.overall, self.what)


def evaluate(
    checkpoint: str | Path | EvaluateConfig,
    store: str | Path | None = None,
    overrides: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Evaluation:
    """Score an operator on a store. With `run.dir`, summary.json and report.html are written there.

    checkpoint: the file of an operator, the folder of its training, or a config, which names the store too. store: the
    path of a store whose answers are known, drawn from priors or fitted. overrides: settings such as `["limit=100"]`;
    ignored for a config. reporter: where progress and warnings go, by default nowhere.

    Returns the scores. Raises `UsageError` if the operator or the store cannot be read, or do not fit together.
    """
    if isinstance(checkpoint, EvaluateConfig):
        config = checkpoint
    else:
        content = {"checkpoint": str(checkpoint), "store": str(store)}
        config = build(EvaluateConfig, apply_overrides(content, overrides), source="evaluate")
    folder = config.run.dir
    if folder is not None:
        refuse_other_verbs(folder, config.verb, (SUMMARY, REPORT))
        begin(folder)
    reporter = reporter or Silent()
    evaluation = scored(config, reporter)
    for notice in evaluation.operator.notices:
        reporter.warn(notice)
    if folder is not None:
        forget_report(folder)
        write_config(folder, config)
        write_summary(folder, evaluation.rows, evaluation.overall)
        about, schema = (
            origin(evaluation.operator, evaluation.checkpoint, evaluation.overall["config_hash"]),
            evaluation.operator.schema,
        )
        evaluation_page(
            folder / REPORT, evaluation.scores, evaluation.examples, evaluation.fine, schema, dump(config), about
        )
    return evaluation


def scored(config: EvaluateConfig, reporter: Reporter) -> Evaluation:
    """The scores alone, and the examples that are worth a look."""
    path = find_checkpoint(config.checkpoint)
    operator, store = Operator.load(path), Store.open(find_store(config.store))
    _check(operator, store)
    chosen, which = _chosen(config, path, operator, store)
    draws = DrawnTruths(operator, store) if store.spec.kind != "generate" else None
    reference = "the truth" if draws is None else "the fit of each instance, and bands with draws from its posterior"
    what = f"{len(chosen)} instances of {config.store.name} ({which}), compared with {reference}."
    evaluation = Evaluation(config, operator, mark(path), what, notices=list(operator.notices))
    with torch_threads(config.run.threads), reporter.task("evaluate", len(chosen)) as task:
        seconds = 0.0
        for piece in _pieces(store, chosen, config.run):
            for one in ask(operator, piece):
                if one.answer is None:
                    evaluation.rows.append(failed_answer(one.instance.id, one.reason))
                else:
                    drawn = None if draws is None else draws.of(one.instance)
                    evaluation.rows.append(row_of(one.answer, one.instance, operator.schema, one.seconds, drawn))
                    evaluation.calibration.add(operator, one.answer, drawn or one.instance)
                evaluation.tally.add(evaluation.rows[-1])
                seconds += one.seconds
            task.advance(len(piece))
        evaluation.speed = {"instances_per_second": evaluation.tally.count / max(seconds, 1e-9)}
        evaluation.speed |= _single(operator, store, chosen)
        evaluation.examples = _examples(evaluation, store, chosen, config.run)
        try:
            evaluation.fine = resolutions(operator, store)
        except DistlfmError as error:  # the scores stand without it
            evaluation.notices.append(f"Super-resolution was left out: {error}")
            reporter.warn(evaluation.notices[-1])
    return evaluation


def _check(operator: Operator, store: Store) -> None:
    """Refuse a store of something else."""
    schema, spec = operator.schema, store.spec
    axes = tuple(dim.name for dim in schema.dims[1:])
    fix = "Give a store of the mechanism that the operator was trained on."
    for what, here, there in (("outputs", spec.outputs, schema.outputs), ("forces", spec.forces, schema.forces)):
        if set(here) != set(there):
            cause = f"The {what} of {store.path} are {', '.join(here)}, and those of the operator {', '.join(there)}."
            raise UsageError(cause, fix)
    if spec.space != axes:
        raise UsageError(f"{store.path} has {len(spec.space)} space dimensions, and the operator {len(axes)}.", fix)
    check_store_units(schema, store)


def trained_on(operator: Operator, checkpoint: Path, store: Store) -> bool:
    """Whether an operator learned from a store, from fits of it, or from what it holds fits of.

    It keeps hashes of what it learned from, and the config beside it may tell the place.
    """
    if {*lineage(store)} & {*operator.training.get("stores", [])}:
        return True
    config = checkpoint.parent / CONFIG
    if not config.is_file():
        return False
    given = read_yaml(config).get("data", {}).get("stores", [])
    here = store.path.resolve()
    return any(here in (path.resolve(), find_or_none(path)) for path in map(Path, given))


def find_or_none(path: Path) -> Path | None:
    """The store that a path means, if there is one."""
    try:
        return find_store(path).resolve()
    except UsageError:
        return None


def _chosen(config: EvaluateConfig, checkpoint: Path, operator: Operator, store: Store) -> tuple[list[int], str]:
    """Rows to look at, and in words which these are."""
    rows = kept_rows(store)
    which = "all of them"
    if config.part == "held_out" and trained_on(operator, checkpoint, store):
        settings = SplitConfig.model_validate(operator.training["settings"]["split"])
        ids = store.read("id")[rows]
        rows = rows[split([str(name) for name in ids], settings).validation]
        which = "its validation split, as the operator was trained on the others"
    if not len(rows):
        raise UsageError(
            f"Nothing of {store.path} is left to evaluate on.", "Give a store with more instances, or part=all."
        )
    if config.limit is not None and len(rows) > config.limit:
        rows = rows[np.linspace(0, len(rows) - 1, config.limit).astype(int)]
    return [int(row) for row in rows], which


def _pieces(store: Store, rows: Sequence[int], run: AskConfig) -> Iterator[list[Instance]]:
    """The instances of some rows, read in stretches."""
    wanted, ids = set(rows), store.read("id")
    size = max(run.batch, store.spec.block)
    for start in range(0, store.spec.instances, size):
        stop = min(start + size, store.spec.instances)
        names = {str(ids[row]) for row in range(start, stop) if row in wanted}
        if names:
            yield [one for one in store.instances(start, stop, answers=True) if one.id in names]


def _single(operator: Operator, store: Store, rows: Sequence[int]) -> dict[str, float]:
    """How long one answer takes, when asked alone."""
    seconds = []
    for one in store.instances(rows[0], min(rows[0] + SINGLES, store.spec.instances), answers=True):
        since = time.perf_counter()
        operator(one.blind())
        seconds.append(time.perf_counter() - since)
    return {"seconds_for_one": float(np.median(seconds))} if seconds else {}


def _examples(found: Evaluation, store: Store, rows: Sequence[int], run: AskConfig) -> list[Example]:
    chosen = {found.rows[i]["id"]: (i, place) for i, place in worth_a_look(found.rows, SHOWN, unlike=0).items()}
    shown, ids = [], store.read("id")
    for piece in _pieces(store, [row for row in rows if str(ids[row]) in chosen], run):
        for one in ask(found.operator, piece):
            i, place = chosen[one.instance.id]
            assert one.answer is not None
            true = true_elements(one.instance, found.operator.schema)
            shown.append(Example(one.instance, one.answer, found.rows[i], place, true))
    order = list(chosen)
    return sorted(shown, key=lambda one: order.index(one.instance.id))
