"""The one page of a demonstration: a section per act, with what it showed, its pictures, and a way to its own report.

Two pictures only a demonstration has: what was simulated, and a gradient that two processes found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distlfm.instance import FloatArray, Instance
from distlfm.report.field_maps import ERROR_MAP, MAP_DPI
from distlfm.report.page import Cell, Figure, Link, Provenance, Section, Table, embed, write_page
from distlfm.report.panels import WIDE_HEIGHT, draw_truth
from distlfm.report.style import MEASURED, house, new_figure, plain, quantity, set_ticks
from distlfm.report.words import true_curve


def simulated_figure(instance: Instance) -> Figure:
    """The data of an instance, and below them the force that made them."""
    words = f"Instance {instance.id}: what is given to the inference (black), and what made it (dashed), which is not."
    alt = f"Instance {instance.id}: {len(instance.outputs)} outputs as points against time, and the true force."
    known = true_curve(instance, 0)
    assert known is not None
    time = quantity("time", instance.metadata.get("time_unit"))
    with house():
        figure = new_figure(2.1 * WIDE_HEIGHT)
        grid = figure.add_gridspec(2, len(instance.outputs))
        for p, name in enumerate(instance.outputs):
            axes = figure.add_subplot(grid[0, p])
            seen = instance.mask[p]
            axes.plot(instance.times[seen], instance.values[p, seen], "o", color=MEASURED, markersize=2.4)
            axes.set_title(plain(name), fontweight="bold")
            axes.set(xlabel=time, ylabel="" if p else quantity("observed", instance.metadata.get("value_unit")))
            set_ticks(axes, 3, 4)
        axes = figure.add_subplot(grid[1, :])
        draw_truth(axes, known)
        axes.set_title("Latent force: the truth, which is hidden", fontweight="bold")
        axes.set(xlabel=time, ylabel="force")
    return embed(figure, words, alt)


def gradient_figure(alone: FloatArray, together: FloatArray) -> Figure:
    """The same gradient [X, Y] of the unit square from one process, and how far that of two differs."""
    apart = float(np.abs(together - alone).max() / np.abs(alone).max())
    caption = (
        "How what is observed in the middle of the unit square changes with the force elsewhere, at one time: the "
        "gradient that one process finds, and how far that of two processes, with half of the mesh each, differs."
    )
    alt = f"Two maps of the unit square: a gradient, and a difference of at most {apart:.0e} of its largest value."
    maps = {"Gradient, one process": alone, "Two processes − one": together - alone}
    with house():
        figure = new_figure(2.6, dpi=MAP_DPI)
        for axes, (title, values) in zip(figure.subplots(1, 2), maps.items(), strict=True):
            end = float(np.abs(values).max()) or 1.0
            shown = axes.imshow(
                values.T, origin="lower", extent=(0, 1, 0, 1), cmap=ERROR_MAP, vmin=-end, vmax=end, rasterized=True
            )
            axes.set_title(title, fontweight="bold")
            axes.set(xlabel="position 1", ylabel="position 2")
            figure.colorbar(shown, ax=axes, label="gradient by the force", format="%.0e")
    return embed(figure, caption, alt)


TITLE = "What distlfm does, shown on this machine"


@dataclass(frozen=True)
class Showing:
    """What an act showed. line: one sentence with its numbers. pages: its own reports, by what they are called."""

    line: str
    figures: Sequence[Figure] = ()
    pages: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """An act that is over. showing: None if it failed, and then `failure` says why and what to do."""

    title: str
    seconds: float
    showing: Showing | None
    failure: str = ""


def demo_page(path: Path, played: Sequence[Played], provenance: Provenance) -> Path:
    """Write the page of a demonstration."""
    sections = [_overview(played), *(_section(i, one, path.parent) for i, one in enumerate(played, 1))]
    return write_page(path, TITLE, sections, provenance)


def _overview(played: Sequence[Played]) -> Section:
    failed = [i for i, one in enumerate(played, 1) if one.showing is None]
    text = (
        f"{len(played)} acts were played in {sum(one.seconds for one in played):.0f} s. Their data are simulated where "
        "nothing else is said: the true force is known, and is only used to score what was inferred without it."
    )
    numbers = ", ".join(map(str, failed))
    trouble = f"{len(failed)} of {len(played)} acts failed: {numbers}. Their sections say what to do." if failed else ""
    rows: list[list[Cell]] = [
        [f"{i}. {_capital(one.title)}", "failed" if one.showing is None else "shown", f"{one.seconds:.1f}"]
        for i, one in enumerate(played, 1)
    ]
    return Section("The acts", text, tables=[Table("In order.", ("act", "outcome", "seconds"), rows)], trouble=trouble)


def _section(number: int, one: Played, folder: Path) -> Section:
    title, took = f"{number}. {_capital(one.title)}", f"It took {one.seconds:.1f} s."
    if one.showing is None:
        return Section(title, took, trouble=f"This act failed. {one.failure}")
    links = [
        Link(words, Path(os.path.relpath(page, folder)).as_posix())
        for words, page in one.showing.pages.items()
        if page.is_file()
    ]
    return Section(title, f"{_capital(one.showing.line)}.\n\n{took}", one.showing.figures, links=links)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
