"""The page of a fitted fleet: scores worst first, what failed and why, what the data leave open, and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distlfm.inference.residuals import structure
from distlfm.inference.result import FAILED, Digest, FitResult
from distlfm.report.field_section import field_figures
from distlfm.report.page import Cell, Figure, Provenance, Section, Table, embed, write_page
from distlfm.report.plots import plot_fit, plot_overview, plot_phase, plot_trace
from distlfm.report.truth import output_names, true_parameter
from distlfm.report.words import direction_words, status_words

MAX_ROWS = 50
"""Fleets up to this size are listed whole."""

NUM_WORST, NUM_BEST = 25, 5
MAX_PICTURED = 6
"""Fleets up to this size have every instance drawn; of larger ones the worst, the median and the best."""

MAX_MAPPED = 2
"""Of fields among those drawn, only so many have maps, which are large; the others have profiles."""

MAX_PARAMETER_ROWS = 60
PHASE_PLANES = ("lotka_volterra",)
"""Mechanisms whose force and output are read against each other."""

FEW_DRAWS = 50
"""Quantiles of 2.5 % need about so many independent draws to mean anything."""

_COLUMNS = {
    "status": "status",
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
    "interval, which should be 0.68; parameter error is the sum of the mean absolute errors; – is not known."
)

Row = Mapping[str, Any]


def fit_page(
    path: str | Path,
    results: Sequence[FitResult],
    summary: Mapping[str, Any],
    config_text: str,
    provenance: Mapping[str, Any],
    title: str = "Latent force fits",
    digests: Sequence[Digest] | None = None,
) -> Path:
    """Write the page of a run.

    results: those at hand; only they are drawn and searched for open directions.
    digests: those of the results, in their order; with them, only the results that are drawn are looked up.
    summary: the scores of all instances; its `set_aside` tells of data that was not fitted.
    provenance: `seed`, `date`, `versions`, `hash`, and anything else to tell.
    """
    ranked, score = rank(summary["instances"])
    if digests is None:
        digests = [result.digest for result in results]
    where = {digest.id: i for i, digest in enumerate(digests)}
    drawn = pictured([row for row in ranked if row["id"] in where])
    sections = [
        _overview(summary, ranked, score),
        *_trouble(ranked, {digest.id: digest for digest in digests}, summary.get("set_aside") or ()),
        *_open_directions(digests),
        *(_instance(results[where[name]], place, i < MAX_MAPPED) for i, (name, place) in enumerate(drawn)),
    ]
    return write_page(path, title, sections, _provenance(summary, config_text, provenance))


def rank(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Rows worst first, and the score they are ranked by: the force's where it is known for all that were fitted."""
    fitted = [row for row in rows if row.get("status") not in FAILED]
    score = "latent_q2" if fitted and all(row.get("latent_q2") is not None for row in fitted) else "output_q2"

    def key(row: Row) -> tuple[bool, float]:
        value = row.get(score)
        return row.get("status") not in FAILED, -math.inf if value is None or math.isnan(value) else float(value)

    return sorted(rows, key=key), score


def pictured(ranked: Sequence[Row]) -> list[tuple[str, str]]:
    """Ids to draw and their place in the ranking; failed ones have nothing to show if there are enough others."""
    if len(ranked) <= MAX_PICTURED:
        return [(str(row["id"]), "") for row in ranked]
    fitted = [row for row in ranked if row.get("status") not in FAILED] or list(ranked)
    places = {0: "worst", len(fitted) // 2: "median", len(fitted) - 1: "best"}
    return [(str(fitted[i]["id"]), place) for i, place in places.items()]


def _overview(summary: Mapping[str, Any], ranked: Sequence[Row], score: str) -> Section:
    count = len(ranked)
    failed = sum(row.get("status") in FAILED for row in ranked)
    unsettled = sum(row.get("status") not in ("converged", *FAILED) for row in ranked)
    text = "1 instance was fitted: " if count == 1 else f"{count} instances were fitted: "
    text += f"{count - failed - unsettled} converged, {unsettled} did not settle, {failed} failed. "
    text += f"Rows are ordered by {_COLUMNS[score]}, the worst first.\n\n{_LEGEND}"
    shown, caption = list(ranked), "Every instance, worst first."
    if count > MAX_ROWS:
        shown = [*ranked[:NUM_WORST], *ranked[-NUM_BEST:]]
        caption = f"The {NUM_WORST} worst and the {NUM_BEST} best of {count} instances, worst first."
    columns = ("instance", *_COLUMNS.values())
    scores = [key for key in _COLUMNS if key != "status"]
    over_all = [
        [name, *(_number(summary[name].get(key)) for key in scores)] for name in ("mean", "worst") if summary.get(name)
    ]
    tables = (
        [
            Table(
                "Mean and worst of each score over the instances.",
                ("over all", *(_COLUMNS[key] for key in scores)),
                over_all,
            )
        ]
        if over_all
        else []
    )
    tables.append(Table(caption, columns, [_score_row(row) for row in shown]))
    errors = (summary.get("mean") or {}).get("parameter_mae") or {}
    if errors:
        rows = [(str(name), _number(value)) for name, value in errors.items()]
        tables.append(Table("Mean absolute error of each parameter, over instances.", ("parameter", "error"), rows))
    alt = f"Histograms over {count} instances: Q² of the force, Q² of the outputs, seconds; and a bar for each status."
    figure = embed(plot_overview(summary), "How scores, times and statuses spread; dashed lines are medians.", alt)
    return Section("Summary", text, [figure], tables)


def _score_row(row: Row) -> list[Cell]:
    status = str(row.get("status") or "unknown").replace("_", "\N{NO-BREAK SPACE}")
    return [str(row["id"]), status, *(_number(row.get(key)) for key in _COLUMNS if key != "status")]


def _number(value: Any) -> Cell:
    return None if value is None else float(value)


def _trouble(ranked: Sequence[Row], known: Mapping[str, Digest], set_aside: Sequence[object]) -> list[Section]:
    """Fits that failed or did not settle, and instances that were never fitted."""
    found = []
    rows: list[list[Cell]] = []
    for row in ranked:
        status, name = str(row.get("status") or "unknown"), str(row["id"])
        advice = known[name].advice if name in known else ""
        if status != "converged" or advice:
            rows.append([name, status.replace("_", " "), status_words(status, advice) or None])
    if rows:
        caption = "Instances whose fit did not converge."
        if len(rows) > MAX_ROWS:
            caption = f"The first {MAX_ROWS} of {len(rows)} instances whose fit did not converge."
        table = Table(caption, ("instance", "status", "why, and what to do"), rows[:MAX_ROWS])
        found.append(Section("Failed and unsettled fits", tables=[table]))
    if set_aside:
        problems = [[str(i), str(problem)] for i, problem in enumerate(set_aside, 1)]
        table = Table("Data that was not fitted.", ("#", "problem"), problems)
        found.append(Section("Set aside", "These were left out before fitting.", tables=[table]))
    return found


def _open_directions(digests: Sequence[Digest]) -> list[Section]:
    """What the data do not settle: by instance for small fleets, by combination for large ones."""
    open_ones = [(digest.id, direction) for digest in digests for direction in digest.undetermined]
    if not digests:
        return []
    title = "What the data leave open"
    if not open_ones:
        return [Section(title, f"Nothing found: in {len(digests)} instances the data narrow every combination.")]
    text = "Values and intervals of these parameters come from their priors more than from the data."
    if len(digests) <= MAX_ROWS:
        rows: list[list[Cell]] = [[name, direction_words(direction)] for name, direction in open_ones]
        return [Section(title, text, tables=[Table("Open directions.", ("instance", "in words"), rows)])]
    spreads: dict[str, list[float]] = {}
    for _, direction in open_ones:
        name = " with ".join(sorted(part for part, _ in direction.parts)) or "many parameters"
        spreads.setdefault(name, []).append(direction.spread)
    ordered = sorted(spreads.items(), key=lambda item: -len(item[1]))[:MAX_ROWS]
    rows = [[name, len(found), 100 * sum(found) / len(found)] for name, found in ordered]
    columns = ("combination", "instances", "mean % of the prior's spread left")
    return [Section(title, text, tables=[Table(f"Open in how many of {len(digests)} instances.", columns, rows)])]


def _instance(result: FitResult, place: str, mapped: bool) -> Section:
    title = f"Instance {result.id}" + (f" ({place})" if place else "")
    text = f"Method {result.method}, status {result.status.replace('_', ' ')}. "
    text += f"{status_words(result.status, result.advice)}\n\n"
    if result.ok and result.effective_draws < FEW_DRAWS:
        text += f"The posterior rests on {result.effective_draws:.0f} effective draws: its intervals are rough.\n\n"
    text += " ".join(direction_words(direction) for direction in result.undetermined)
    shape = structure(result)
    if shape is not None:
        text += f"\n\n{shape.sentence()}"
    return Section(title, text, _figures(result, mapped), _parameters(result))


def _figures(result: FitResult, mapped: bool) -> list[Figure]:
    if result.instance.positions is not None:
        return [*field_figures(result, mapped=mapped), *_trace(result)] if result.ok else []
    return [*_curves(result), *_trace(result)]


def _trace(result: FitResult) -> list[Figure]:
    if not result.ok or len(result.trace) < 2:
        return []
    alt = f"Instance {result.id}: the bound over {len(result.trace)} iterations, ending at {result.bound:.4g}."
    return [embed(plot_trace(result), "The bound as the fit went on.", alt)]


def _curves(result: FitResult) -> list[Figure]:
    outputs, forces = output_names(result), ", ".join(result.force_names)
    truth = " Dashed: the truth of the simulation, which the fit did not see." if result.instance.truth else ""
    caption = (
        "Data, posterior mean and intervals of outputs, force and parameters. Bands are of the curve: a new "
        f"measurement scatters more.{truth}"
    )
    alt = (
        f"Instance {result.id}: {len(outputs)} outputs with data and bands against time, the inferred {forces}, and "
        f"intervals of {len(result.parameters)} parameters."
    )
    found = [embed(plot_fit(result), caption, alt)]
    if result.posterior.model.system.options.kind in PHASE_PLANES:
        alt = f"Instance {result.id}: phase plane of {outputs[0]} against the inferred {forces}."
        found.append(embed(plot_phase(result), "Phase plane; tubes have each axis's own interval.", alt))
    return found


def _parameters(result: FitResult) -> list[Table]:
    if not result.ok:
        return []
    columns = ("parameter", "kind", "mean", "68 % from", "to", "95 % from", "to", "true", "learned %")
    rows: list[list[Cell]] = []
    for one in result.parameters[:MAX_PARAMETER_ROWS]:
        limits = (one.lower68, one.upper68, one.lower95, one.upper95)
        learned = round(100 * one.shrinkage) if math.isfinite(one.shrinkage) else None
        rows.append([one.name, one.kind, one.mean, *limits, true_parameter(result, one), learned])
    caption = "Parameters. “Learned” is 0 where the data say nothing beyond the prior, and 100 where they say all."
    left_out = len(result.parameters) - len(rows)
    if left_out:
        caption += f" {left_out} more are not listed."
    return [Table(caption, columns, rows)] if rows else []


def _provenance(summary: Mapping[str, Any], config_text: str, given: Mapping[str, Any]) -> Provenance:
    versions = given.get("versions") or summary.get("versions") or {}
    told = ("config", "config hash", "versions", "seed", "hash", "date", *versions)
    seed = given.get("seed")
    return Provenance(
        config=config_text,
        versions={str(name): str(version) for name, version in versions.items()},
        seed=None if seed is None else int(seed),
        hash=given.get("hash") or given.get("config hash") or summary.get("config_hash"),
        date=str(given.get("date") or datetime.now(UTC).isoformat(timespec="seconds")),
        more={str(key): _plain(value) for key, value in given.items() if key not in told},
    )


def _plain(value: object) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else str(value)
