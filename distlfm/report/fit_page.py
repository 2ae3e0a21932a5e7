"""The page of a fitted fleet: scores worst first, what failed and why, what the data leave open, and pictures."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.inference.findings.residuals import structure
from distlfm.inference.findings.scores import MAX_ROWS, NUM_BEST, NUM_WORST, Tally, directions_of
from distlfm.inference.result import FitResult
from distlfm.report import words
from distlfm.report.field_section import field_figures
from distlfm.report.page import Cell, Figure, Provenance, Section, Table, embed, write_page
from distlfm.report.plots import plot_fit, plot_overview, plot_phase, plot_trace
from distlfm.store.layout import FAILED

MAX_PICTURED = 6
"""Fleets up to this size have every instance drawn; of larger ones the worst, the median and the best."""

MAX_MAPPED = 2
"""At most this many of the fields that are drawn have maps, which are large; the others have profiles."""

MAX_ASIDE = 200
PHASE_PLANES = ("lotka_volterra",)
"""Mechanisms whose force and output are read against each other."""

LOOK_AT = "Fits to look at"
"""The section of fits that converged and yet have a warning, such as an unknown far from its prior."""

FEW_DRAWS = 50
"""Quantiles of 2.5 % need about this many independent draws to mean anything."""

_COLUMNS = {
    "latent_q2": "force Q²",
    "output_q2": "output Q²",
    "latent_coverage_68": "force in 68 %",
    "latent_coverage_95": "force in 95 %",
    "output_coverage_68": "output in 68 %",
    "output_coverage_95": "output in 95 %",
    "parameter_mae_sum": "parameter error",
    "elbo": "bound",
    "seconds": "seconds",
}
_LEGEND = (
    "Q² is 1 for a perfect answer and 0 for a constant one; “in 68 %” is the share of true values inside the "
    "interval, which should be 0.68; where the truth is not known these are the data that were fitted, of which mostly "
    "more lie inside; parameter error is the sum of the mean absolute errors; – is not known. The bound is what a fit "
    "maximises: it compares fits of the same data and model, and says nothing by itself."
)


def fit_page(
    path: str | Path,
    tally: Tally,
    results: Mapping[str, FitResult],
    config_text: str,
    provenance: Mapping[str, Any],
    notices: Sequence[str] = (),
) -> Path:
    """Write the page of a run.

    tally: the scores of all instances. results: those at hand by id, looked up only where they are drawn.
    provenance: `seed`, `date`, `versions`, `hash`, and anything else to tell. notices: what to know of all answers.
    """
    drawn = pictured(tally, results)
    instances = [_instance(results[name], place, i < MAX_MAPPED) for i, (name, place) in enumerate(drawn)]
    left_open = _open_directions(tally)
    # Of a few instances the forces are what is looked for; of a fleet, how it went.
    rest = [*instances, *left_open] if tally.count <= MAX_PICTURED else [*left_open, *instances]
    sections = [_overview(tally, notices), *_trouble(tally), *rest]
    return write_page(path, "Latent force fits", sections, Provenance.of(config_text, provenance))


def pictured(tally: Tally, at_hand: Container[str]) -> list[tuple[str, str]]:
    """Ids to draw and their place in the ranking; failed ones have nothing to show if there are enough others."""
    if tally.count <= MAX_PICTURED:
        return [(str(row["id"]), "") for row in tally.worst() if row["id"] in at_hand]
    score = tally.score
    fitted = [row for row in tally.worst() if row.get("status") not in FAILED]
    chosen: dict[str, str] = {}
    for place, rows in (("worst", fitted), ("slowest", tally.slowest())):
        names = [str(row["id"]) for row in rows if row["id"] in at_hand]
        chosen |= {names[0]: place} if names and names[0] not in chosen else {}
    middle = float(np.nanmedian(tally.column(score))) if np.isfinite(tally.column(score)).any() else 0.0
    near = [row for row in tally.kept.values() if row["id"] in at_hand and row.get(score) is not None]
    if near:
        median = str(min(near, key=lambda row: abs(row[score] - middle))["id"])
        best = str(max(near, key=lambda row: float(row[score]))["id"])
        chosen = {median: "median", best: "best"} | chosen
    order = ("worst", "median", "best", "slowest")
    return sorted(chosen.items(), key=lambda item: order.index(item[1]))


def _overview(tally: Tally, notices: Sequence[str]) -> Section:
    count = tally.count
    text = "1 instance was fitted: " if count == 1 else f"{count} instances were fitted: "
    converged = tally.statuses["converged"]
    unreliable = f"{tally.unreliable} failed a check and {'is' if tally.unreliable == 1 else 'are'} unreliable, "
    text += f"{converged} converged, {unreliable if tally.unreliable else ''}{tally.unsettled} did not settle, "
    text += f"{tally.failed} failed."
    if warned := _num_warned(tally):
        have = "1 has a warning" if warned == 1 else f"{warned} have a warning"
        text += f" Of those that converged, {have}: see “{LOOK_AT}”."
    text += f" Rows are ordered by {_COLUMNS[tally.score]}, the worst first." if count > 1 else ""
    text = "\n\n".join([text, *notices, _LEGEND])
    shown, caption = tally.worst(), "Every instance, worst first."
    if count > MAX_ROWS:
        shown = [*shown, *tally.best()]
        caption = f"The {NUM_WORST} worst and the {NUM_BEST} best of {count} instances, worst first."
    if count == 1:  # its mean and its worst are itself
        tables = [Table.by_instance("Its scores.", shown, _COLUMNS)]
    else:
        tables = [*Table.over_all(tally, _COLUMNS), Table.by_instance(caption, shown, _COLUMNS)]
    if count > MAX_ROWS:
        tables.append(Table.by_instance("Those that took longest.", tally.slowest(), _COLUMNS))
    if count <= MAX_PICTURED:
        return Section("Summary", text, tables=tables)
    alt = f"Histograms over {count} instances: Q² of the force, Q² of the outputs, seconds; and a bar for each status."
    figure = embed(plot_overview(tally), "How scores, times and statuses spread; dashed lines are medians.", alt)
    return Section("Summary", text, [figure], tables)


def _num_warned(tally: Tally) -> int:
    """How many fits converged with a warning."""
    return tally.num_troubled - tally.failed - tally.unsettled - tally.unreliable


def _trouble(tally: Tally) -> list[Section]:
    """Fits that failed or did not settle, those that settled with a warning, and instances that were never fitted."""
    sections = []
    ended: list[list[Cell]] = []
    warned: list[list[Cell]] = []
    # The first of a large fleet may all be warned of; what failed is kept apart, and among the worst.
    failed = [{**one, "advice": one["reason"]} for one in tally.failures]
    for row in {str(row["id"]): row for row in (*tally.troubled, *failed, *tally.worst())}.values():
        status, advice = str(row.get("status") or "unknown"), str(row.get("advice") or "")
        if status == "converged" and advice:
            warned.append([str(row["id"]), advice])
        elif status != "converged":
            ended.append([str(row["id"]), status.replace("_", " "), words.status_words(status, advice) or None])
    if count := tally.failed + tally.unsettled + tally.unreliable:
        columns = ("instance", "status", "why, and what to do")
        table = _listed(ended, count, "whose fit did not converge", columns)
        sections.append(Section("Failed and unsettled fits", tables=[table]))
    if count := _num_warned(tally):
        table = _listed(warned, count, "whose fit converged with a warning", ("instance", "warning"))
        sections.append(Section(LOOK_AT, tables=[table]))
    if tally.set_aside:
        problems = [[str(i), str(problem)] for i, problem in enumerate(tally.set_aside[:MAX_ASIDE], 1)]
        caption = "Data that was not fitted."
        if len(tally.set_aside) > MAX_ASIDE:
            caption = f"The first {MAX_ASIDE} of {len(tally.set_aside)} pieces of data that were not fitted."
        table = Table(caption, ("#", "problem"), problems)
        sections.append(Section("Set aside", "These were left out before fitting.", tables=[table]))
    return sections


def _listed(rows: list[list[Cell]], count: int, which: str, columns: tuple[str, ...]) -> Table:
    """A table of instances that is cut short if there are many."""
    shown = rows[:MAX_ROWS]
    caption = f"Instances {which}." if len(shown) == count else f"{len(shown)} of the {count} instances {which}."
    return Table(caption, columns, shown)


def _open_directions(tally: Tally) -> list[Section]:
    """What the data do not settle: by instance for small fleets, by combination for large ones."""
    title = "What the data leave open"
    if not tally.count:
        return []
    if not tally.open:
        where = "in the one instance" if tally.count == 1 else f"in all {tally.count} instances"
        return [Section(title, f"Nothing: {where} the data narrow every combination of parameters.")]
    text = "Values and intervals of these parameters come from their priors more than from the data."
    if tally.count <= MAX_ROWS:
        rows: list[list[Cell]] = [
            [str(row["id"]), words.direction_words(one)] for row in tally.first for one in directions_of(row)
        ]
        return [Section(title, text, tables=[Table("Open combinations.", ("instance", "in words"), rows)])]
    ordered = sorted(tally.open.items(), key=lambda item: -item[1][0])[:MAX_ROWS]
    rows = [[name, int(count), 100 * total / count] for name, (count, total) in ordered]
    columns = ("combination", "instances", "mean % of the prior's spread left")
    return [Section(title, text, tables=[Table(f"Open in how many of {tally.count} instances.", columns, rows)])]


def _instance(result: FitResult, place: str, mapped: bool) -> Section:
    title = f"Instance {result.id}" + (f" ({place})" if place else "")
    text = f"Method {result.method}, status {result.status.replace('_', ' ')}. "
    text += f"{words.status_words(result.status, result.advice)}\n\n"
    if result.ok and result.effective_draws < FEW_DRAWS:
        text += f"The posterior rests on {result.effective_draws:.0f} effective draws: its intervals are rough.\n\n"
    text += words.directions_words(result.undetermined)
    shape = structure(result)
    if shape is not None:
        text += f"\n\n{shape.sentence()}"
    if result.instance.positions is None:
        figures = _curves(result)
    else:
        figures = field_figures(result, mapped=mapped) if result.ok else []
    return Section(title, text, [*figures, *_trace(result)], _parameters(result))


def _trace(result: FitResult) -> list[Figure]:
    if not result.ok or len(result.trace) < 2:
        return []
    alt = f"Instance {result.id}: the bound over {len(result.trace)} iterations, ending at {result.bound:.4g}."
    return [embed(plot_trace(result), "The bound as the fit went on.", alt)]


def _curves(result: FitResult) -> list[Figure]:
    outputs, forces = words.output_names(result), ", ".join(result.force_names)
    truth = " Dashed: the truth of the simulation, which the fit did not see." if result.instance.truth else ""
    caption = (
        "Data, posterior mean and intervals of outputs, force and parameters. Bands are of the curve: a new "
        f"measurement scatters more.{truth}"
    )
    alt = (
        f"Instance {result.id}: {len(outputs)} outputs with data and bands against time, the inferred {forces}, and "
        f"intervals of {len(result.estimates)} parameters."
    )
    figures = [embed(plot_fit(result), caption, alt)]
    if result.posterior.model.system.options.kind in PHASE_PLANES:
        alt = f"Instance {result.id}: phase plane of {outputs[0]} against the inferred {forces}."
        figures.append(embed(plot_phase(result), "Phase plane; tubes have each axis's own interval.", alt))
    return figures


def _parameters(result: FitResult) -> list[Table]:
    if not result.ok or not result.estimates:
        return []
    units = words.parameter_units(result)
    caption = (
        "Parameters. “Learned” is 0 where the data say nothing beyond the prior, and 100 where they say all. "
        f"{words.given_words(result.posterior.model.space.parameters, units)}"
    ).strip()
    return [Table.of_parameters(caption, result.estimates, words.true_parameters(result), units.get)]
