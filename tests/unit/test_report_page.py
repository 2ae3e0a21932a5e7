"""Pages: one file, nothing loaded from elsewhere, nothing from data taken as markup."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from distlfm.errors import StorageError
from distlfm.inference.findings.estimates import Direction
from distlfm.inference.findings.scores import MAX_ROWS, NUM_BEST, NUM_SLOWEST, NUM_WORST, Tally
from distlfm.inference.result import FitResult
from distlfm.mechanisms import Parameter
from distlfm.mechanisms.priors import LogNormal
from distlfm.report.fit_page import fit_page, pictured
from distlfm.report.page import Figure, Provenance, Section, Table, cell_text, embed, render_page, write_page
from distlfm.report.plots import plot_trace
from distlfm.report.words import direction_words, directions_words, given_words
from tests.support.result_factories import make_page, make_result, make_rows

EVIL = "<script>alert('x')</script>\" onload=\"y"
VOID = {"meta", "img", "br", "link"}


class Reader(HTMLParser):
    """Tags with their attributes, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def assert_self_contained(text: str) -> None:
    page = Reader(text)
    assert not page.open
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert attributes.get("src", "data:").startswith("data:image/") or "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"@import|url\(", text)
    assert not re.search(r"https?://", text)


@pytest.fixture(scope="module")
def fleet() -> list[FitResult]:
    open_direction = Direction(0.9, (("basal[gene0]", 0.7), ("sensitivity[gene0]", -0.6)))
    third = make_result(
        "third", kind="lotka_volterra", truth=False, status="max_iterations", advice="Raise iterations."
    )
    return [
        make_result("first", num_outputs=2, undetermined=[open_direction]),
        make_result(EVIL, num_outputs=2, status="diverged", advice="Check the units."),
        replace(third, trace=third.trace[:1]),
    ]


@pytest.fixture(scope="module")
def page(fleet: list[FitResult], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    told = {"seed": 7, "date": "2024-05-06", "command": EVIL, "versions": {"torch": "2"}, "hash": "abc123"}
    aside = [f"instance {EVIL!r}: only one time."]
    path = make_page(folder / "deep" / "report.html", fleet, f"mechanism: {EVIL}", set_aside=aside, **told)
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_page_needs_nothing_else(page: str) -> None:
    assert_self_contained(page)
    assert "default-src 'none'" in page


def test_nothing_from_data_becomes_markup(page: str) -> None:
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert") >= 6
    assert EVIL in Reader(page).cells


def test_every_figure_has_words_and_a_caption(page: str) -> None:
    reader = Reader(page)
    images = reader.all("img")
    assert len(images) == 2 + 1 + 2
    assert all(image["alt"].strip() for image in images)
    assert len(reader.all("figcaption")) == len(images)
    assert len(reader.all("caption")) == len(reader.all("table"))


def test_few_instances_are_shown_before_what_is_open_and_without_histograms(page: str) -> None:
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert titles[0] == "Summary"
    assert titles.index("Instance first") < titles.index("What the data leave open")
    assert "Histograms" not in page


def test_one_instance_has_one_row_and_no_columns_of_nothing(tmp_path: Path) -> None:
    result = make_result("only", truth=False)
    path = fit_page(tmp_path / "page.html", Tally(make_rows([result], truth=False)), {"only": result}, "", {})
    cells = Reader(path.read_text(encoding="utf-8")).cells
    assert cells.count("only") == 1
    assert not {"over all", "force Q²", "true"} & set(cells)
    assert "output Q²" in cells


def test_what_was_given_is_told_with_what_was_inferred() -> None:
    rate = LogNormal(median=1.0)
    genes = tuple(f"g{i}" for i in range(14))
    one, many = Parameter("volume", ("V",), rate, fixed={"V": 5.0}), Parameter("decay", genes, rate, fixed={"g1": 0.25})
    assert given_words([Parameter("decay", genes, rate)]) == ""
    assert given_words([one, many]) == "Given, not inferred: volume = 5, decay[g1] = 0.25."
    assert given_words([one, many], {"volume": "L"}) == "Given, not inferred: volume = 5 L, decay[g1] = 0.25."
    everything = Parameter("decay", genes, rate, fixed=dict.fromkeys(genes, 1.0))
    assert given_words([everything]).endswith("decay[g11] = 1 and 2 more.")


def test_page_warns_and_says_why(page: str) -> None:
    plain = " ".join(page.split())
    for words in ("Not for clinical decisions", "equation that was assumed", "may not be identified", "conditional on"):
        assert words in plain


def test_page_tells_of_failures_and_of_what_is_open(page: str) -> None:
    cells = Reader(page).cells
    assert "The fit found no finite value. Check the units." in cells
    assert any("only one time" in cell for cell in cells)
    assert any("basal[gene0] rises while sensitivity[gene0] falls" in cell for cell in cells)


def test_fits_that_converged_with_a_warning_have_a_section_of_their_own(tmp_path: Path) -> None:
    results = [
        make_result("calm", num_outputs=1),
        make_result("warned", num_outputs=1, advice="The initial state is far from its prior."),
        make_result("moving", num_outputs=1, status="max_iterations", advice="Raise iterations."),
    ]
    path = fit_page(tmp_path / "page.html", Tally(make_rows(results)), {}, "", {})
    text = path.read_text(encoding="utf-8")
    assert "2 converged, 1 did not settle, 0 failed. Of those that converged, 1 has a warning" in " ".join(text.split())
    unsettled, _, rest = text.partition("<caption>Instances whose fit did not converge.")[2].partition("</table>")
    warned = rest.partition("<caption>Instances whose fit converged with a warning.")[2].partition("</table>")[0]
    assert [name in unsettled for name in ("calm", "warned", "moving")] == [False, False, True]
    assert [name in warned for name in ("calm", "warned", "moving")] == [False, True, False]
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles[1:3] == ["Failed and unsettled fits", "Fits to look at"]


def test_a_large_fleet_of_warnings_does_not_hide_what_failed(tmp_path: Path) -> None:
    row = make_rows([make_result("a", num_outputs=1, advice="Look.")])[0]
    rows = [{**row, "id": f"i{i}"} for i in range(80)]
    rows.append({**row, "id": "last", "status": "diverged", "advice": "Check the units.", "output_q2": None})
    path = fit_page(tmp_path / "page.html", Tally(rows), {}, "", {})
    text = path.read_text(encoding="utf-8")
    assert "<caption>50 of the 80 instances whose fit converged with a warning." in text
    assert "The fit found no finite value. Check the units." in Reader(text).cells


def test_page_says_where_it_comes_from(page: str) -> None:
    cells = Reader(page).cells
    for what, value in (("seed", "7"), ("date", "2024-05-06"), ("config hash", "abc123"), ("version of torch", "2")):
        assert cells[cells.index(what) + 1] == value
    assert "<details>" in page
    assert "mechanism: &lt;script&gt;" in page


def test_unknown_figures_are_dashes(page: str) -> None:
    cells = Reader(page).cells
    row = cells[cells.index(EVIL) :][:4]
    assert row == [EVIL, "diverged", "–", "–"]
    assert "None" not in cells
    assert "nan" not in cells


@pytest.mark.parametrize(
    ("cell", "shown"),
    [(None, "–"), (float("nan"), "not finite"), (-0.5, "−0.5000"), (3, "3"), (0.99999, "1.000"), (-54321.4, "−54321")],
)
def test_cells(cell: Any, shown: str) -> None:
    assert cell_text(cell) == shown


def test_same_figure_same_bytes() -> None:
    figures = [embed(plot_trace(make_result()), "caption", "words") for _ in range(2)]
    assert figures[0].source == figures[1].source
    assert base64.b64decode(figures[0].source.split(",")[1]).startswith(b"<?xml")


def test_heavy_drawings_become_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.report.page.MAX_SVG_BYTES", 100)
    figure = embed(plot_trace(make_result()), "caption", "words")
    assert figure.png.startswith(b"\x89PNG")
    assert figure.source.startswith("data:image/png;base64,")


def test_a_figure_without_words_is_refused() -> None:
    with pytest.raises(AssertionError, match="alternative text"):
        Figure("caption", " ", svg="<svg/>")


def test_a_page_of_nothing_is_a_page() -> None:
    text = render_page(
        EVIL, [Section("Empty", f"One.\n\n{EVIL}", tables=[Table("No rows.", ("a",), [])])], Provenance()
    )
    assert_self_contained(text)
    assert "<script" not in text


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(StorageError, match=r"Cannot write page\.html in .*disk full"):
        write_page(tmp_path / "page.html", "title", [], Provenance())
    assert not list(tmp_path.iterdir())


def test_ids_that_are_not_unicode_do_not_stop_the_page(tmp_path: Path) -> None:
    path = write_page(tmp_path / "page.html", "odd \udcff id", [], Provenance())
    assert "odd ? id" in path.read_text(encoding="utf-8")


def rows_of(count: int, *, latent: bool = True) -> list[dict[str, Any]]:
    return [
        {"id": f"i{i}", "status": "converged", "latent_q2": i / count if latent else None, "output_q2": -i / count}
        for i in range(count)
    ]


def test_ranking_is_worst_first_by_the_force_where_all_have_it() -> None:
    rows = [*rows_of(4)[::-1], {"id": "lost", "status": "diverged", "latent_q2": None, "output_q2": None}]
    tally = Tally(rows)
    assert tally.score == "latent_q2"
    assert [row["id"] for row in tally.worst()] == ["lost", "i0", "i1", "i2", "i3"]
    tally = Tally(rows_of(4, latent=False))
    assert tally.score == "output_q2"
    assert [row["id"] for row in tally.worst()] == ["i3", "i2", "i1", "i0"]


def test_worst_median_best_and_slowest_of_many_are_drawn() -> None:
    rows = [{**row, "kept": "file", "seconds": float(i == 2)} for i, row in enumerate(rows_of(9))]
    drawn = [("i0", "worst"), ("i4", "median"), ("i8", "best"), ("i2", "slowest")]
    assert pictured(Tally(rows), {row["id"] for row in rows}) == drawn
    assert len(pictured(Tally(rows[:6]), {row["id"] for row in rows})) == 6
    assert pictured(Tally(rows), set()) == []


def test_large_fleets_show_the_worst_the_best_and_the_slowest(tmp_path: Path) -> None:
    rows = [{**row, "seconds": float(i)} for i, row in enumerate(rows_of(MAX_ROWS + 10))]
    path = fit_page(tmp_path / "page.html", Tally(rows), {}, "", {})
    cells = Reader(path.read_text(encoding="utf-8")).cells
    shown = [cell for cell in cells if re.fullmatch(r"i\d+", cell)]
    names = [row["id"] for row in rows]
    assert shown == names[:NUM_WORST] + names[-NUM_BEST:] + names[: -NUM_SLOWEST - 1 : -1]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((), "many parameters"),
        ((("noise", 1.0),), "noise is hardly informed by the data: 85 % of its prior spread remains."),
        ((("a", -0.7), ("b", -0.6)), "a and b rise together"),
        ((("a", -0.7), ("b", 0.6), ("c", 0.4)), "a rises while b and c fall"),
        ((("a", 0.7), ("b", 0.6), ("c", -0.4)), "a and b rise together while c falls"),
    ],
)
def test_directions_in_words(parts: tuple[tuple[str, float], ...], words: str) -> None:
    assert words in direction_words(Direction(0.85, parts))
    assert "all of " in direction_words(Direction(1.09, parts))


def test_directions_of_an_instance_give_their_advice_once() -> None:
    both = [Direction(0.85, (("a", 0.7), ("b", 0.6))), Direction(0.9, (("c", 0.7), ("d", -0.6)))]
    words = directions_words(both)
    assert words.count("The data hardly change if") == 2
    assert words.count("Do not read their values one by one.") == 1
    assert words.endswith("one by one.")
    assert directions_words([]) == ""
    assert "one by one" not in directions_words([Direction(0.85, (("a", 1.0),))])
