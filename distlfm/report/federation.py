"""The pages of a federation.

`federation_page` shows a simulated one: what each site gains, also as a picture (`draw`), and what it gave for it.
`rounds_page` shows a run among real sites: what its rounds brought, as far as sums over all sites tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.typing import FillStyleType

from distlfm.report.page import Cell, Provenance, Section, Table, cell_text, embed, write_page
from distlfm.report.page import Figure as PageFigure
from distlfm.report.style import BAND68, INFERRED, MEASURED, QUIET, house, new_figure, plain, set_ticks

MODELS: tuple[tuple[str, str, str, str, FillStyleType], ...] = (
    ("base", "before tuning", QUIET, "x", "full"),
    ("local", "the site alone", MEASURED, "o", "full"),
    ("federated", "federated", INFERRED, "D", "full"),
    ("pooled", "all data pooled", BAND68, "s", "full"),
    ("personal", "personalised", INFERRED, "^", "none"),
)
"""Names, label, colour, marker and its filling. Only some federations have personal models."""


def federation_page(
    path: Path, facts: Mapping[str, Any], picture: Path, config_text: str, versions: Mapping[str, str], seed: int | None
) -> Path:
    """Write the page. facts: what summary.json says. picture: an SVG of what each site gains."""
    more = {name: facts[name] for name in ("strategy", "data", "rounds")}
    provenance = Provenance(config_text, versions, seed, facts.get("config_hash"), more=more)
    sections = [_worth(facts, picture), _price(facts)]
    return write_page(path, "A federation of sites, simulated", sections, provenance)


def sites_figure(facts: Mapping[str, Any], picture: Path) -> PageFigure:
    """The picture of a federation, with words."""
    names = list(facts["local"])
    better = sum(facts["federated"][name] < facts["local"][name] for name in names)
    caption = "Loss on held-out patients of the other sites, and of the site itself; less is better."
    alt = f"The loss of each model for {len(names)} sites; the federated one beats {better} of them tuned alone."
    return PageFigure(caption, alt, svg=picture.read_text(encoding="utf-8"))


def _worth(facts: Mapping[str, Any], picture: Path) -> Section:
    text = (
        f"{len(facts['local'])} sites tuned an operator together, and their patients stayed at home. The figure in the "
        f"tables is the {facts['figure']}. A model before tuning, one that a site tuned alone, the federation's, and "
        "one tuned on everybody's data in one place are compared on patients whom none of them learned from. Means are "
        "given with their standard errors over those patients. The gain is how much less the loss of the federation's "
        "model is than that of the site alone, patient by patient: one that is below twice its error may be chance."
    )
    if facts["data"] == "generated":
        text += " The patients of these sites are generated: real ones may gain less."
    gains = {name: _sure(one["mean"], one["standard_error"]) for name, one in facts["advantage"].items()}
    elsewhere = _table("On patients of the other sites.", facts, facts["standard_errors"], gains)
    own = _table("On the site's own patients.", facts["own"], facts["standard_errors"]["own"])
    return Section("What a site gains", text, [sites_figure(facts, picture)], [elsewhere, own])


def _table(
    caption: str, means: Mapping[str, Any], errors: Mapping[str, Any], gains: Mapping[str, str] | None = None
) -> Table:
    models = {name: label for name, label, *_ in MODELS if means.get(name)}
    rows: list[list[Cell]] = [
        [name, *(_sure(means[model].get(name), errors[model].get(name)) for model in models), (gains or {}).get(name)]
        for name in means["local"]
    ]
    return Table(caption, ("site", *models.values(), "gain"), rows).known()


def _sure(mean: float | None, error: float | None) -> str:
    """A mean with as many digits as its standard error tells, two of it."""
    if mean is None or not error:
        return cell_text(mean)
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _price(facts: Mapping[str, Any]) -> Section:
    text = (
        f"{facts['rounds']} rounds sent {facts['bytes'] / 1e6:.1f} MB both ways; the weights of round "
        f"{facts['kept_round']} were kept. Sums of the sites' updates were seen, never one site's own. ε bounds what "
        "the result can tell about one patient: the smaller, the less; – is a site without a budget."
    )
    rows: list[list[Cell]] = [[one, facts["patients"].get(one), facts["epsilon"].get(one)] for one in facts["local"]]
    table = Table("What the sites spent.", ("site", "held-out patients", "ε spent"), rows)
    return Section("What it took", text, tables=[table])


OF_THE_ROUND = ("round", "sites", "seconds", "bytes")
"""What belongs to a round itself; the rest are figures of the model that it began with."""

NAMES = {"loss": "loss", "force_q2": "force Q²", "coverage_95": "force in its 95 % band"}
"""Figures that have a panel of their own if there is no room for all, under names for people."""

PANELS = 3
Line = Mapping[str, Any]


def rounds_page(path: Path, facts: Mapping[str, Any], provenance: Provenance) -> Path:
    """Write the page. facts: `rounds`, `kept_round`, `history`, a mapping per round, and `last`, the figures after the
    last one, as a run gives them."""
    history: Sequence[Line] = facts["history"]
    models: list[Line] = [*history, facts.get("last") or {}]
    figures = [name for name in dict.fromkeys(key for line in models for key in line) if name not in OF_THE_ROUND]
    text = (
        f"{facts['rounds']} rounds were run, and the weights of round {facts['kept_round']} were kept. Every figure is "
        "a mean over the patients of all sites that were in the sum, whom nobody learned from, but by whom the model "
        "was chosen; nothing is known here of one site alone. The first row is the operator that all began with. – is "
        "what was not measured: figures are known only if all sites answer. How much better a model is for other "
        "patients, no single figure says: compare it with the scatter from round to round."
    )
    about = [name for name in OF_THE_ROUND[1:] if any(name in line for line in history)]
    rows: list[list[Cell]] = []
    for number, model in enumerate(models):
        own: Line = history[number - 1] if number else {}
        rows.append([number, *(own.get(name) for name in about), *(model.get(name) for name in figures)])
    columns = ("after round", *about, *map(_named, figures))
    often = [name for name in figures if sum(name in line for line in models) > 1]
    shown = sorted(often, key=lambda name: list(NAMES).index(name) if name in NAMES else PANELS)[:PANELS]
    caption = (
        "Figures of the models after each round; 0 is the operator that all began with. The line marks the one that "
        "was kept."
    )
    alt = f"{', '.join(map(_named, shown))} against the number of rounds."
    pictures = [embed(plot_rounds(models, shown, facts["kept_round"]), caption, alt)] if shown else []
    table = Table("Each model, and its round.", columns, rows)
    section = Section("What the rounds brought", text, pictures, [table])
    return write_page(path, "A run of a federation", [section], provenance)


def drill_page(path: Path, facts: Mapping[str, Any], provenance: Provenance) -> Path:
    """Write the page of a drill. facts: `attacks`, what each brought, `ok`, and `seconds`."""
    attacks: Sequence[Mapping[str, Any]] = facts["attacks"]
    text = (
        f"{len(attacks)} attacks were carried out against a federation of real processes on this machine, with "
        "generated patients: first at sites as they are set up, which have to refuse, then at sites that were opened "
        "on purpose, where the attack has to succeed, or else its refusal would show nothing. – is an attack for "
        "which nothing can be opened."
    )
    failed = [one["attack"] for one in attacks if not one["refused"] or one["opened"] is False]
    trouble = f"The drill is red: {', '.join(failed)}." if failed else ""
    yes: Mapping[Any, str] = {True: "yes", False: "no", None: "–"}
    rows = [
        [one["attack"], one["asked"], one["answer"], yes[one["refused"]], yes[one["opened"]], one["gained"] or "–"]
        for one in attacks
    ]
    columns = ("attack", "what was asked", "what was answered", "refused", "succeeds when opened", "what it gains then")
    section = Section("What was asked, and what was answered", text, (), [Table("Attacks.", columns, rows)], trouble)
    return write_page(path, "A drill of a federation", [section], provenance)


def _named(figure: str) -> str:
    return NAMES.get(figure, figure.replace("_", " "))


def plot_rounds(models: Sequence[Line], names: Sequence[str], kept: int) -> Figure:
    """A panel for each figure, by round."""
    with house():
        drawing = new_figure(2.0)
        for axes, name in zip(drawing.subplots(1, PANELS, squeeze=False)[0], names, strict=False):
            known = [(number, line[name]) for number, line in enumerate(models) if line.get(name) is not None]
            axes.axvline(kept, color=MEASURED, linewidth=0.8, linestyle=":")
            axes.plot(*zip(*known, strict=True), "o-", color=INFERRED, markersize=3)
            axes.set(xlabel="after round", title=plain(_named(name)))
            set_ticks(axes, 5, integer=True)
        for empty in drawing.axes[len(names) :]:
            empty.set_axis_off()
    return drawing


def draw(facts: Mapping[str, Any], path: Path) -> None:
    """Two panels of a summary, with standard errors: on the other sites' patients, and on a site's own."""
    names = list(facts["local"])
    at = np.arange(len(names))
    with house():
        figure = new_figure(2.8)
        errors = facts["standard_errors"]
        panels = (("other sites' patients", facts, errors), ("the site's own patients", facts["own"], errors["own"]))
        for panel, (title, content, unsure) in enumerate(panels):
            axes = figure.add_subplot(1, 2, panel + 1)
            shown = [one for one in MODELS if content.get(one[0])]
            for number, (model, label, colour, marker, style) in enumerate(shown):
                axes.errorbar(
                    at + 0.12 * (number - 1.5),
                    [content[model][name] for name in names],
                    [unsure[model][name] or 0.0 for name in names],
                    fmt=marker,
                    color=colour,
                    label=label,
                    markersize=4.5,
                    elinewidth=0.8,
                    fillstyle=style,
                )
            axes.set_xticks(at, [plain(name) for name in names])
            axes.set(title=title, ylabel="loss of held-out patients")
            axes.grid(axis="y", linewidth=0.4, color="#DDDDDD")
            axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        figure.savefig(path, format=path.suffix.removeprefix("."))
