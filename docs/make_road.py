"""Draw the road that data take through distlfm into docs/images/road.svg.

python docs/make_road.py            write the picture
python docs/make_road.py --check    exit code 1 if the committed picture is not the one this program draws
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parent / "images" / "road.svg"
WIDTH, HEIGHT = 980, 320
BOX_WIDTH, BOX_HEIGHT, CORNER = 152, 72, 10
TOP, BOTTOM = 40, 196

STYLE = """
    text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; text-anchor: middle; }
    .name { font-size: 15px; font-weight: 600; fill: #1b2733; }
    .note { font-size: 12px; fill: #55636f; }
    .box { fill: #eaf2fb; stroke: #2f6fb0; stroke-width: 1.6; }
    .road { fill: none; stroke: #55636f; stroke-width: 1.6; marker-end: url(#tip); }
    .tip { fill: #55636f; }
    @media (prefers-color-scheme: dark) {
      .name { fill: #e8eef4; }
      .note { fill: #a3b1bd; }
      .box { fill: #17293b; stroke: #6aa9e6; }
      .road { stroke: #a3b1bd; }
      .tip { fill: #a3b1bd; }
    }
"""


@dataclass(frozen=True)
class Box:
    """A place on the road: what it is called, and what happens there."""

    name: str
    note: str
    left: int
    top: int

    @property
    def right(self) -> int:
        return self.left + BOX_WIDTH

    @property
    def centre(self) -> int:
        return self.left + BOX_WIDTH // 2

    @property
    def middle(self) -> int:
        return self.top + BOX_HEIGHT // 2

    def draw(self) -> str:
        return (
            f'<rect class="box" x="{self.left}" y="{self.top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"'
            f' rx="{CORNER}"/>\n'
            f'  <text class="name" x="{self.centre}" y="{self.top + 31}">{escape(self.name)}</text>\n'
            f'  <text class="note" x="{self.centre}" y="{self.top + 52}">{escape(self.note)}</text>'
        )


def column(number: int) -> int:
    """Left edge of one of five columns."""
    return 20 + number * (BOX_WIDTH + 45)


OBSERVATIONS = Box("observations", "csv, parquet, npz", column(0), TOP)
INSTANCE = Box("instance", "one checked system", column(1), TOP)
FIT = Box("fit", "many at once", column(2), TOP)
RESULT = Box("result", "posterior and status", column(3), TOP)
STORE = Box("store", "shards and markers", column(4), TOP)
TRAINING = Box("training", "on many machines", column(4), BOTTOM)
OPERATOR = Box("operator", "force in milliseconds", column(3), BOTTOM)
QUERY = Box("query", "a new instance", column(2), BOTTOM - 44)
SITES = Box("federated sites", "data stay at home", column(2), BOTTOM + 44)
BOXES = (OBSERVATIONS, INSTANCE, FIT, RESULT, STORE, TRAINING, OPERATOR, QUERY, SITES)


def road(*points: tuple[int, int]) -> str:
    start, *rest = (f"{x} {y}" for x, y in points)
    return f'<path class="road" d="M {start} L {" L ".join(rest)}"/>'


def right(start: Box, end: Box) -> str:
    return road((start.right + 4, start.middle), (end.left - 6, end.middle))


def left(start: Box, end: Box) -> str:
    """Level, or with one bend half way."""
    half = (start.left + end.right) // 2
    return road((start.left - 4, start.middle), (half, start.middle), (half, end.middle), (end.right + 6, end.middle))


def picture() -> str:
    """The whole drawing."""
    top_row = (OBSERVATIONS, INSTANCE, FIT, RESULT, STORE)
    roads = [right(start, end) for start, end in pairwise(top_row)]
    roads.append(road((STORE.centre, STORE.top + BOX_HEIGHT + 4), (TRAINING.centre, TRAINING.top - 6)))
    roads += [left(TRAINING, OPERATOR), left(OPERATOR, QUERY), left(OPERATOR, SITES)]
    title = "Observations become instances, fits, results, a store, and an operator that is queried and shared"
    return framed(title, [*roads, *(box.draw() for box in BOXES)], (WIDTH, HEIGHT))


def framed(title: str, parts: Sequence[str], size: tuple[int, int], style: str = "") -> str:
    """A whole SVG of these parts, in the house style; `style` adds to it."""
    width, height = size
    body = "\n  ".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">
  <title>{title}</title>
  <style>{STYLE}{style.removeprefix(chr(10))}  </style>
  <defs>
    <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
      <path class="tip" d="M 0 0 L 8 4 L 0 8 z"/>
    </marker>
  </defs>
  {body}
</svg>
"""


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        return 0 if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == picture() else 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
