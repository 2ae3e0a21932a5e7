"""The one page of a demonstration: a section an act, with what it showed, its pictures, and a way to its own report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distlfm.report.page import Cell, Figure, Link, Provenance, Section, Table, write_page

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
    trouble = ""
    if failed:
        numbers = ", ".join(map(str, failed))
        trouble = f"{len(failed)} of {len(played)} acts failed: {numbers}. Their sections say what to do."
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
