"""One page, one file: sections with figures and tables as HTML that needs nothing else, today or in ten years.

Everything that is put in is escaped, no script is in the page, and its own policy forbids the browser to load anything.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import jinja2
from matplotlib.figure import Figure as Drawing

from distlfm.answer.parameters import Estimated
from distlfm.inference.findings.scores import Row, Tally
from distlfm.report.style import house
from distlfm.report.words import CAUTION, WHY_DOUBT
from distlfm.store.files import put_quickly, storing

UNKNOWN = "–"
NOT_FINITE = "not finite"
MAX_SVG_BYTES = 2_000_000
"""A drawing with more than this is embedded as pixels."""

FORMATS: dict[str, dict[str, Any]] = {"png": {"dpi": 200}, "svg": {"metadata": {"Date": None, "Creator": None}}}
"""Formats of pictures, with the options for matplotlib; a date would make each file another."""

MAX_PARAMETER_ROWS = 60
SCREEN_PIXELS_PER_INCH = 134
"""How large a figure is shown on a wide screen: 7.2 inches fill the page's column."""

Cell = str | int | float | None


@dataclass(frozen=True)
class Figure:
    """A picture with its caption, and in words what it shows for those who do not see it. Either svg or png."""

    caption: str
    alt: str
    svg: str = ""
    png: bytes = b""
    width: float = 7.2
    """Inches."""

    def __post_init__(self) -> None:
        assert self.alt.strip(), "a figure needs an alternative text"
        assert bool(self.svg) != bool(self.png), "a figure is either svg or png"

    @property
    def source(self) -> str:
        """A data address. As an image, an SVG runs no script, and its ids do not meet those of its neighbours."""
        kind, content = ("svg+xml", self.svg.encode()) if self.svg else ("png", self.png)
        return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"

    @property
    def natural_width(self) -> str:
        return f"{self.width * SCREEN_PIXELS_PER_INCH:.0f}px"


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns. Numbers are rounded; None is shown as –."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), "a row has another length than the header"

    @classmethod
    def over_all(cls, tally: Tally, scores: Mapping[str, str]) -> list[Table]:
        """Return scores over all instances, under the names of their columns, and the errors of parameters."""
        mean, worst = tally.overall()
        rows = [[name, *(number(row.get(key)) for key in scores)] for name, row in (("mean", mean), ("worst", worst))]
        tables = [cls("Mean and worst of each score over the instances.", ("over all", *scores.values()), rows).known()]
        if mean["parameter_mae"]:
            errors = [(name, number(value)) for name, value in mean["parameter_mae"].items()]
            tables.append(cls("Mean absolute error of each parameter, over instances.", ("parameter", "error"), errors))
        return tables

    @classmethod
    def by_instance(cls, caption: str, rows: Sequence[Row], scores: Mapping[str, str]) -> Table:
        """Return a row of scores for each instance, under the names of their columns."""
        cells = []
        for row in rows:
            status = str(row.get("status") or "unknown").replace("_", "\N{NO-BREAK SPACE}")
            cells.append([str(row["id"]), status, *(number(row.get(key)) for key in scores)])
        return cls(caption, ("instance", "status", *scores.values()), cells).known()

    @classmethod
    def of_parameters(
        cls, caption: str, estimates: Sequence[Estimated], true: Mapping[str, float], unit: Callable[[str], str | None]
    ) -> Table:
        """Return parameters with their intervals; those of fits also with how much was learned of each."""
        columns = ("parameter", "kind", "unit", "mean", "68 % from", "to", "95 % from", "to", "true", "learned %")
        rows: list[list[Cell]] = []
        for one in estimates[:MAX_PARAMETER_ROWS]:
            limits = (one.lower68, one.upper68, one.lower95, one.upper95)
            shrinkage = getattr(one, "shrinkage", math.nan)
            learned = round(100 * shrinkage) if math.isfinite(shrinkage) else None
            rows.append([one.name, one.kind, unit(one.name), one.mean, *limits, true.get(one.name), learned])
        left_out = len(estimates) - len(rows)
        return cls(f"{caption} {left_out} more are not listed." if left_out else caption, columns, rows).known()

    def known(self) -> Table:
        """The same without columns in which no row has anything, such as scores where no truth is known."""
        kept = [i for i in range(len(self.columns)) if not self.rows or any(row[i] is not None for row in self.rows)]
        return Table(self.caption, [self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])

    @property
    def shown(self) -> list[list[str]]:
        return [[cell_text(cell) for cell in row] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Columns that hold no text, which are aligned to the right."""
        return [not any(isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))]


@dataclass(frozen=True)
class Link:
    """A way to another file of the same run. path: relative to the page, so that both can be moved together."""

    words: str
    path: str

    def __post_init__(self) -> None:
        assert not PurePosixPath(self.path).is_absolute(), "a link stays within the run"

    @property
    def address(self) -> str:
        """Every odd letter is escaped: what begins like `javascript:` is a file's name."""
        return f"./{quote(self.path)}"


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs (a blank line parts them), what went wrong if anything did, figures, tables and links."""

    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    trouble: str = ""
    links: Sequence[Link] = ()

    @property
    def paragraphs(self) -> list[str]:
        return [part.strip() for part in self.text.split("\n\n") if part.strip()]


@dataclass(frozen=True)
class Provenance:
    """What it takes to make the page again. config: YAML; `more` holds whatever else the caller wants on the page."""

    config: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    hash: str | None = None
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    more: Mapping[str, Cell] = field(default_factory=dict)

    @classmethod
    def of(cls, config: str, facts: Mapping[str, Any]) -> Provenance:
        """Take `versions`, `seed`, `hash` and `date` from a mapping, where it has them; the rest goes to `more`."""
        own = {key: facts[key] for key in ("versions", "seed", "hash", "date") if key in facts}
        return cls(config, **own, more={key: value for key, value in facts.items() if key not in own})

    @property
    def table(self) -> Table:
        rows: list[tuple[str, Cell]] = [("date", self.date), ("config hash", self.hash)]
        rows.append(("seed", None if self.seed is None else str(self.seed)))
        rows += self.more.items()
        rows += [(f"version of {name}", version) for name, version in self.versions.items()]
        return Table("What made these numbers.", ("what", "value"), rows)


def cell_text(cell: Cell) -> str:
    """A cell as it is shown: four digits of a float, – for what is not known."""
    if cell is None:
        return UNKNOWN
    if isinstance(cell, float):
        if not math.isfinite(cell):
            return NOT_FINITE
        shown = f"{cell:.0f}" if 1e4 <= abs(cell) < 1e7 else f"{cell:#.4g}"
        return shown.replace("-", "−")
    return str(cell)


def number(value: Any) -> Cell:
    """A score as a cell; None is not known."""
    return None if value is None else float(value)


def picture(drawing: Drawing, form: str) -> bytes:
    """A matplotlib figure in one of FORMATS; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with house():
        drawing.savefig(buffer, format=form, **FORMATS[form])
    return buffer.getvalue()


def embed(drawing: Drawing, caption: str, alt: str) -> Figure:
    """A matplotlib figure for a page; the same figure gives the same bytes."""
    svg, width = picture(drawing, "svg"), float(drawing.get_figwidth())
    if len(svg) <= MAX_SVG_BYTES:
        return Figure(caption, alt, svg=svg.decode(), width=width)
    return Figure(caption, alt, png=picture(drawing, "png"), width=width)


def render_page(title: str, sections: Sequence[Section], provenance: Provenance) -> str:
    """The page as text."""
    template = resources.files("distlfm.report.templates").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        title=title, sections=sections, provenance=provenance, caution=CAUTION, why_doubt=WHY_DOUBT
    )


def write_page(path: str | Path, title: str, sections: Sequence[Section], provenance: Provenance) -> Path:
    """Write the page. The file appears whole or not at all."""
    path = Path(path)
    text = render_page(title, sections, provenance)
    with storing(path.name, path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        put_quickly(path, text.encode(errors="replace"))  # an instance id may hold lone surrogates, which have no UTF-8
    return path
