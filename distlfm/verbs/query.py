"""`distlfm query`: force and parameters of new data from a trained operator, with intervals and a warning if due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import apply_overrides, build, dump
from distlfm.data import catalog
from distlfm.errors import UsageError, WorkError
from distlfm.fleets.sources import for_fitting, open_source
from distlfm.fleets.spool import Source
from distlfm.inference.findings.scores import Figures, Tally
from distlfm.instance import Instance
from distlfm.lfo import Operator, OperatorAnswer
from distlfm.queries.asking import (
    PLOTS,
    WRITTEN,
    QueryOutcome,
    ask,
    check_data,
    find_checkpoint,
    forget_answers,
    mark,
    origin,
    renamed,
    tables,
)
from distlfm.queries.figures import failed_answer, novelty_of, row_of, true_elements
from distlfm.runs import REPORT
from distlfm.runs.folder import begin, overall, refuse_other_verbs, write_config, write_summary
from distlfm.runs.settings import QueryConfig
from distlfm.runtime.process import torch_threads
from distlfm.runtime.reporting import Reporter, Silent

MOST_HELD = 10_000
"""Answers that a query without a folder keeps; more than that belong into files."""

MOST_PLOTTED = 24
"""Up to this many instances are all drawn; of more, those worth a look."""


@dataclass
class QueryRun:
    """The answers of a query, and their figures.

    config: the settings of the run. operator: what was asked. checkpoint: a short mark of its file. tally: counts and
    scores of all instances. rows: the figures of each instance. answers: in the order of the data, at most 10,000; only
    without `run.dir`, which keeps them in files.
    """

    config: QueryConfig
    operator: Operator
    checkpoint: str
    tally: Tally
    rows: list[Figures] = field(default_factory=list)
    answers: list[OperatorAnswer] = field(default_factory=list)

    @property
    def overall(self) -> dict[str, Any]:
        """What summary.json says besides the instances: the same as of a fit, and how many answers are doubtful."""
        more = {"novelty": novelty_of(list(self.rows)), "notices": list(self.operator.notices)}
        return overall(self.tally, self.config, **more, checkpoint=self.checkpoint)


def query(
    checkpoint: str | Path,
    data: str | Path | Sequence[Instance],
    overrides: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> QueryRun:
    """Ask an operator about data.

    checkpoint: the file of an operator, or the folder of its training. data: a file, a folder, a store, the name of a
    reference set, or instances. overrides: settings such as `["data.columns.time=hours"]`, `["run.dir=answers"]` or
    `["plot=true"]`. With `run.dir`, answers go to answers.csv, parameters.csv, answers.json and summary.json there.
    reporter: where progress and warnings go, by default nowhere.

    Returns the run, which holds the answers where there is no `run.dir`. Raises `UsageError` if the operator or the
    data cannot be read, or do not fit together, and `WorkError` if not one instance can be answered.
    """
    given = None if isinstance(data, str | Path) else data
    content = {"checkpoint": str(checkpoint), "data": named_data(data) if isinstance(data, str | Path) else {}}
    config = build(QueryConfig, apply_overrides(content, overrides), source="query")
    return run_query(config, given, reporter or Silent())


def named_data(data: str | Path) -> dict[str, str]:
    """A path, or the name of a reference set if there is no such path."""
    if not Path(data).exists() and str(data) in catalog.DATASETS:
        return {"dataset": str(data)}
    return {"path": str(data)}


def run_query(config: QueryConfig, data: Sequence[Instance] | None, reporter: Reporter) -> QueryRun:
    """Ask as a config says."""
    folder = config.run.dir
    if config.plot and folder is None:
        raise UsageError("Pictures need a folder.", "Give --out DIR too.")
    if folder is not None:
        refuse_other_verbs(folder, config.verb, (*WRITTEN, PLOTS) if config.plot else WRITTEN)
    path = find_checkpoint(config.checkpoint)
    operator = Operator.load(path)
    for notice in operator.notices:
        reporter.warn(notice)
    source, intake = open_source(config.data, data, None)
    intake.tell(reporter)
    check_data(operator.schema, source, config.data, config.outputs)
    run = QueryRun(config, operator, mark(path), Tally(set_aside=map(str, intake.set_aside)))
    if folder is not None:
        begin(folder)
    writing = nullcontext() if folder is None else tables(folder, operator.schema)
    with torch_threads(config.run.threads), writing as files, reporter.task("query", source.count) as task:
        pieces = (ask(operator, _prepared(piece, run)) for piece in source.pieces(config.run.batch))
        for one in chain.from_iterable(pieces):
            run.rows.append(_row(one, operator))
            run.tally.add(run.rows[-1])
            if one.answer is not None and files is not None:
                files.add(one.answer, one.instance)
            elif one.answer is not None and len(run.answers) < MOST_HELD:
                run.answers.append(one.answer)
            task.advance(1, f"{run.tally.failed} failed" if run.tally.failed else "")
        if run.tally.failed == run.tally.count:
            raise WorkError(f"None of {run.tally.count} instances can be answered.", run.tally.failures[0]["reason"])
        if folder is not None:
            forget_answers(folder)
            write_config(folder, config)  # before the tables: by it, the folder is known as a query's
    if folder is not None:
        write_summary(folder, run.rows, run.overall)
        if config.plot:
            _draw(run, source, folder, reporter)
    return run


def _prepared(piece: Iterable[Instance], run: QueryRun) -> list[Instance]:
    config, known = run.config, run.operator.schema.outputs
    return [renamed(for_fitting(instance, config.data), config.outputs, known) for instance in piece]


def _row(one: QueryOutcome, operator: Operator) -> Figures:
    if one.answer is None:
        return failed_answer(one.instance.id, one.reason)
    return row_of(one.answer, one.instance, operator.schema, one.seconds)


def _draw(run: QueryRun, source: Source, folder: Path, reporter: Reporter) -> None:
    """Pictures as files, and a page with them: of every instance, or of those worth a look among many."""
    from distlfm.report.operator_page import Example, query_page
    from distlfm.report.operator_plots import plot_answer, save_figure

    chosen = worth_a_look(run.rows)
    examples, schema = [], run.operator.schema
    with reporter.task("draw", len(chosen)) as task:
        for index, instance in enumerate(chain.from_iterable(source.pieces(run.config.run.batch))):
            if index not in chosen:
                continue
            (one,) = ask(run.operator, _prepared([instance], run))
            assert one.answer is not None
            true = true_elements(one.instance, schema)
            figure = plot_answer(one.instance, one.answer, schema, true)
            save_figure(figure, folder / PLOTS, index, one.instance.id)
            examples.append(Example(one.instance, one.answer, run.rows[index], chosen[index], true, figure))
            task.advance()
    about = origin(run.operator, run.checkpoint, run.overall["config_hash"])
    query_page(folder / REPORT, run.tally, run.rows, examples, schema, dump(run.config), about, run.operator.notices)


def worth_a_look(rows: Sequence[Figures], most: int = MOST_PLOTTED, unlike: int = 3) -> dict[int, str]:
    """Rows to draw, by their place: all of a few; of many the worst, median and best, and the `unlike` most unlike."""
    answered = [i for i, row in enumerate(rows) if row["status"] != "failed"]
    if len(answered) <= most:
        return dict.fromkeys(answered, "")
    chosen: dict[int, str] = {}
    scores, novelty = (np.array([rows[i][name] for i in answered], float) for name in ("latent_q2", "novelty"))
    known = np.flatnonzero(np.isfinite(scores))
    if len(known):
        order = known[np.argsort(scores[known])]
        for place, at in (("worst", order[0]), ("median", order[len(order) // 2]), ("best", order[-1])):
            chosen[answered[int(at)]] = place
    for at in np.argsort(-np.nan_to_num(novelty))[:unlike]:
        chosen.setdefault(answered[int(at)], "most unlike the training data")
    return chosen
