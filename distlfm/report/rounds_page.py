"""The page of a federation's run: what its rounds brought, as far as sums over all sites tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlfm.report.page import Cell, Provenance, Section, Table, embed, write_page
from distlfm.report.style import INFERRED, MEASURED, house, new_figure, plain

OF_THE_ROUND = ("round", "sites", "seconds", "bytes")
"""What belongs to a round itself; the rest are figures of the model that it began with."""

NAMES = {"loss": "loss", "force_q2": "force Q²", "coverage_95": "force in its 95 % band"}
"""Figures that have a panel of their own if there is no room for all, under names for people."""

PANELS = 3
Line = Mapping[str, Any]


def rounds_page(path: Path, told: Mapping[str, Any], provenance: Provenance) -> Path:
    """Write the page. told: `rounds`, `kept_round`, `history`, a mapping a round, and `last`, the figures after the
    last one, as a run gives them."""
    history: Sequence[Line] = told["history"]
    models: list[Line] = [*history, told.get("last") or {}]
    figures = [name for name in dict.fromkeys(key for line in models for key in line) if name not in OF_THE_ROUND]
    text = (
        f"{told['rounds']} rounds were run, and the weights of round {told['kept_round']} were kept. Every figure is a "
        "mean over the patients of all sites that were in the sum, whom nobody learned from, but by whom the model was "
        "chosen; nothing is known here of one site alone. The first row is the operator that all began with. – is what "
        "was not measured: figures are told only if all sites answer. How much better a model is for other patients, "
        "no single figure says: compare it with the scatter from round to round."
    )
    about = [name for name in OF_THE_ROUND[1:] if any(name in line for line in history)]
    rows: list[list[Cell]] = []
    for number, model in enumerate(models):
        own: Line = history[number - 1] if number else {}
        rows.append([number, *(own.get(name) for name in about), *(model.get(name) for name in figures)])
    columns = ("after round", *about, *map(_named, figures))
    section = Section("What the rounds brought", text, tables=[Table("Each model, and its round.", columns, rows)])
    often = [name for name in figures if sum(name in line for line in models) > 1]
    shown = sorted(often, key=lambda name: list(NAMES).index(name) if name in NAMES else PANELS)[:PANELS]
    if shown:
        picture = embed(
            plot_rounds(models, shown, told["kept_round"]),
            "Figures of the models after each round; 0 is the operator that all began with. The line marks the one "
            "that was kept.",
            f"{', '.join(map(_named, shown))} against the number of rounds.",
        )
        section = Section(section.title, section.text, [picture], section.tables)
    return write_page(path, "A run of a federation", [section], provenance)


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
            axes.set_xlabel("after round")
            axes.set_title(plain(_named(name)))
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        for empty in drawing.axes[len(names) :]:
            empty.set_axis_off()
    return drawing
