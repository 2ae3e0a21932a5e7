"""What every page of results has, whichever verb makes it: the caution, where it comes from, and all of itself.

A new kind of page is added to `PAGES`; a module of pages that is not in it fails the first test.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Drawing
from test_report_lfo import made

import distlfm
from distlfm.inference.findings.scores import Tally
from distlfm.report import style
from distlfm.report.demo import Played, Showing, demo_page
from distlfm.report.federation import draw, federation_page, rounds_page
from distlfm.report.operator_page import (
    Example,
    Scores,
    Trial,
    evaluation_page,
    plot_trials,
    query_page,
    training_page,
    tune_page,
)
from distlfm.report.page import Provenance
from distlfm.report.words import CAUTION, WHY_DOUBT
from distlfm.serve.app import page_file
from tests.support.result_factories import make_page, make_result

TOLD: dict[str, Any] = {"hash": "abc123", "versions": {"distlfm": "9.8"}, "seed": 7}
PROVENANCE = Provenance("verb: x", {"distlfm": "9.8"}, 7, "abc123", "2024-05-06")
SITES = ("north", "south")
LOSSES = dict(zip(SITES, (0.5, 0.25), strict=True))
MODELS = dict.fromkeys(("base", "local", "federated", "pooled"), LOSSES)
FEDERATION: dict[str, Any] = {
    **MODELS,
    "own": {**MODELS, "personal": LOSSES},
    "standard_errors": {**MODELS, "own": {**MODELS, "personal": LOSSES}},
    "advantage": {name: {"mean": 0.5, "standard_error": None} for name in SITES},
    "epsilon": {"north": 2.5, "south": None},
    "patients": dict.fromkeys(SITES, 3),
    "rounds": 4,
    "kept_round": 3,
    "bytes": 2_000_000,
    "figure": "loss on held-out patients of the other sites; less is better",
    "data": "generated",
    "strategy": "fedavg",
    "config_hash": "abc123",
}
TRIALS = [
    Trial("one", {"optimiser.lr": 1e-3, "operator.width": 32, "loss.kind": "a"}, "finished", 8, 0.5),
    Trial("two", {"optimiser.lr": 1e-1, "operator.width": 16, "loss.kind": "b"}, "stopped", 2, 0.75),
    Trial("three", {"optimiser.lr": 1e-2, "operator.width": 8, "loss.kind": "b"}, "failed", failure="No <memory>."),
]


def operator_page(kind: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        instance, answer, schema = made(1)
        row = dict.fromkeys(("latent_q2", "latent_correlation", "parameter_mae_sum", "seconds", "warning"))
        rows: list[dict[str, Any]] = [{"id": "one", "status": "answered", "novelty": 0.5, **row}]
        tally, examples = Tally(rows), [Example(instance, answer, rows[0])]
        if kind == "query":
            return query_page(path, tally, rows, examples, schema, "verb: x", TOLD)
        curve = {"levels": [0.5], "force": [0.5], "parameters": None}
        scores = Scores(tally, rows, curve, {}, "One instance.")
        if kind == "evaluate":
            return evaluation_page(path, scores, examples, [], schema, "verb: x", TOLD)
        return training_page(path, [], scores, examples, [], schema, "verb: x", TOLD)

    return write


def fit(path: Path) -> Path:
    return make_page(path, [make_result(num_outputs=1)], "verb: x", **TOLD)


def federation(path: Path) -> Path:
    draw(FEDERATION, path.with_suffix(".svg"))
    return federation_page(path, FEDERATION, path.with_suffix(".svg"), "verb: x", {"distlfm": "9.8"}, 7)


RUN = {
    "rounds": 2,
    "kept_round": 1,
    "history": [
        {"round": 1, "sites": 4, "loss": 1.25, "seconds": 20.5},
        {"round": 2, "sites": 3, "seconds": 19.0, "bytes": 1000},
    ],
}
PAGES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "fit and fleet": ("fit_page", fit),
    "train": ("operator_page", operator_page("train")),
    "evaluate": ("operator_page", operator_page("evaluate")),
    "query": ("operator_page", operator_page("query")),
    "tune": ("operator_page", lambda path: tune_page(path, "validation_loss", "min", TRIALS, PROVENANCE)),
    "federated simulate": ("federation", federation),
    "federated run": ("federation", lambda path: rounds_page(path, RUN, PROVENANCE)),
    "demo": ("demo", lambda path: demo_page(path, [Played("act", 1.0, Showing("seen"))], PROVENANCE)),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: write(folder / f"{i}.html").read_text() for i, (kind, (_, write)) in enumerate(PAGES.items())}


def test_every_module_that_writes_pages_is_looked_at_here() -> None:
    known = {module for module, _ in PAGES.values()}
    for path in (Path(distlfm.__file__).parent / "report").glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert ("write_page" in names) == (path.stem in known), path


def words_of(page: str) -> str:
    """What a reader sees, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.split("<body>")[1])).split())


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_says_that_it_is_not_for_clinical_decisions_and_why(pages: dict[str, str], kind: str) -> None:
    assert f"{CAUTION} {WHY_DOUBT}" in words_of(pages[kind])
    assert pages[kind].index('class="caution"') < pages[kind].index("<main>")


def test_the_served_page_says_the_same() -> None:
    assert f"{CAUTION} {WHY_DOUBT}" in words_of(page_file("index.html"))


def test_the_caution_names_what_a_force_rests_on() -> None:
    for words in ("never measured", "inferred", "equation that was assumed", "priors", "holds only if"):
        assert words in WHY_DOUBT


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_says_what_made_it(pages: dict[str, str], kind: str) -> None:
    shown = words_of(pages[kind])
    for words in ("config hash abc123", "seed 7", "version of distlfm 9.8", "verb: x"):
        assert words in shown
    assert re.search(r"date 20\d\d-\d\d-\d\d", shown)


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_loads_nothing_and_describes_its_pictures(pages: dict[str, str], kind: str) -> None:
    page = pages[kind]
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    images = re.findall(r"<img [^>]*>", page)
    assert all(re.search(r'src="data:image/[^"]+" alt="[^"]+"', image) for image in images)
    assert len(images) == page.count("<figcaption>")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_bands_data_and_lines_are_told_apart_without_hue() -> None:
    """As in grey print, and for those who see few colours: each lies well apart from what it is drawn upon."""
    for above, below in (("INFERRED", "BAND68"), ("BAND68", "BAND95"), ("MEASURED", "BAND68"), ("TRUTH", "BAND95")):
        dark, light = sorted(luminance(getattr(style, name)) for name in (above, below))
        assert (light + 0.05) / (dark + 0.05) > 1.5, (above, below)


def test_trials_are_drawn_with_a_label_on_every_axis() -> None:
    figure: Drawing = plot_trials("validation_loss", "min", TRIALS)
    shown = [axes.get_xlabel() for axes in figure.axes]
    assert shown == ["trial", "optimiser.lr", "operator.width", "loss.kind"]
    assert [figure.axes[i].get_ylabel() for i in (0, 3)] == ["validation_loss"] * 2
    assert figure.axes[1].get_xscale() == "log"


def test_trials_are_listed_the_best_first_and_failures_say_why(pages: dict[str, str]) -> None:
    shown = words_of(pages["tune"])
    assert re.search(r"one finished 8 0\.5000 .* two stopped 2 0\.7500 .* three failed 0 –", shown)
    assert "three No <memory>." in shown


def test_a_federation_says_what_each_site_gains_and_spends(pages: dict[str, str]) -> None:
    shown = words_of(pages["federated simulate"])
    assert "north 3 2.500 south 3 –" in shown
    assert "real ones may gain less" in shown
    assert "personalised" in shown
