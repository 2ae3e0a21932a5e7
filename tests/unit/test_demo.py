"""How the acts of the demonstration follow on each other, and the page that they end in."""

from __future__ import annotations

import io
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.config import build
from distlfm.errors import Stopped, WorkError
from distlfm.federated.simulation import run as demo_act
from distlfm.instance import Instance, Truth
from distlfm.report.demo import Played, Showing, gradient_figure, simulated_figure
from distlfm.report.page import Figure
from distlfm.runs.settings import GenerateConfig
from distlfm.runtime.reporting import reporter_for
from distlfm.store import Store
from distlfm.verbs import demo
from distlfm.verbs.demo import Act, play, write_index
from distlfm.verbs.generate import generate
from tests.support.small_disks import disk, enlarge, mounts

DOT = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><circle r="1"/></svg>'


def failing() -> Showing:
    raise WorkError("There is no FEniCS.", "Install it.")


def broken() -> Showing:
    raise KeyError("latent_q2")


def full() -> Showing:
    raise OSError(28, "No space left on device", "somewhere/store")


def stopped() -> Showing:
    raise Stopped(signal.SIGTERM, "after 1 of 2 instances", "distlfm resume runs/demo/fit")


def answer() -> Showing:
    return Showing("the answer is 42")


def played(*acts: Act) -> tuple[list[Played], str]:
    said = io.StringIO()
    return play(acts, reporter_for(said)), said.getvalue()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (failing, "There is no FEniCS. Install it."),
        (full, "Cannot use somewhere/store: No space left on device. Free space; then the same command goes on"),
        (broken, "Unexpected KeyError: 'latent_q2'. This is a fault of distlfm; `distlfm -vv demo` shows where."),
    ],
)
def test_a_failed_act_says_what_to_do_and_the_rest_goes_on(failure: object, told: str) -> None:
    found, said = played(Act("one", failure), Act("two", answer))  # type: ignore[arg-type]
    assert [one.showing is None for one in found] == [True, False]
    assert f"warning: this act failed: {told}" in said
    assert "Traceback" not in said
    assert "[2/2] two" in said
    assert "the answer is 42" in said


def test_what_another_version_or_other_data_left_is_put_aside_and_the_act_begins_anew(tmp_path: Path) -> None:
    """With a real store; nothing in the folder is lost, whoever put it there."""
    folder = tmp_path / "operator"

    def lesson(seed: int) -> Showing:
        run = {"dir": str(folder / "lesson.zarr"), "executor": "serial"}
        content = {"mechanism": {"kind": "transcription"}, "instances": 2, "points": 5, "num_outputs": 2}
        generate(build(GenerateConfig, {**content, "seed": seed, "run": run}))
        return Showing(f"seed {seed}")

    for seed in (0, 0, 1, 2):
        if seed == 1:
            (folder / "thesis.txt").write_text("mine")
        found, said = played(Act("teach", lambda seed=seed: lesson(seed), folder=folder))  # type: ignore[misc]
        assert found[0].showing == Showing(f"seed {seed}")
        assert ("was begun with seed" in said) == (seed > 0)
    assert "operator.before-2, which you may delete, and this act begins anew." in said
    assert (tmp_path / "operator.before-1" / "thesis.txt").read_text() == "mine"
    kept = {
        path.name: Store.open(path / "lesson.zarr").spec.attributes["config"]["seed"] for path in tmp_path.iterdir()
    }
    assert kept == {"operator.before-1": 0, "operator.before-2": 1, "operator": 2}


@mounts
@pytest.mark.parametrize(("kilobytes", "page"), [(40, True), (8, False)])
def test_a_disk_that_is_full_fails_acts_with_a_sentence_and_the_same_command_goes_on(
    kilobytes: int, page: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_fit", "_operator", "_field", "_divided"):
        monkeypatch.setattr(demo, name, lambda *_: answer())
    monkeypatch.setattr(demo_act, "act", lambda *_: answer())
    call = ["demo", "--out", str(tmp_path / "small" / "demo")]
    with disk(tmp_path / "small", kilobytes):
        assert main(call) == 1
        said = capsys.readouterr()
        assert "[6/6]" in said.out
        assert re.findall(r"this act failed: .*", said.out) == [
            f"this act failed: Cannot write the instances in {call[2]}: No space left on device. Free space; then the "
            "same command goes on where it stopped."
        ]
        assert Path(call[2], "index.html").is_file() == page
        assert said.err.startswith("" if page else f"distlfm: Cannot write index.html in {call[2]}: No space left on")
        enlarge(tmp_path / "small", 4000)
        assert main(call) == 0
        assert sorted(path.name for path in Path(call[2]).iterdir()) == ["index.html", "instances.npz"]


def test_a_signal_ends_the_whole_demonstration() -> None:
    with pytest.raises(Stopped):
        played(Act("one", stopped), Act("two", lambda: pytest.fail("it went on")))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an act with a picture and reports of which one was not written, and of one that failed.

    The demonstration is told to write into a relative folder, and an act may give whole paths.
    """
    monkeypatch.chdir(tmp_path)
    report = tmp_path / "fit" / "report of #1.html"
    report.parent.mkdir()
    report.write_text("<html></html>")
    pages = {"The report of these fits": report, "One that is not there": tmp_path / "none.html"}
    acts = [
        Act("infer <the> factor", lambda: Showing("found with Q² 0.95", [Figure("Seen.", "A dot.", svg=DOT)], pages)),
        Act("ask FEniCS", failing, {"mesh": {"size": 0.05}}),
    ]
    return write_index(Path(), acts, played(*acts)[0], 7).read_text(encoding="utf-8")


def test_the_page_has_a_section_an_act_with_its_numbers_time_and_picture(page: str) -> None:
    assert "<h2>1. Infer &lt;the&gt; factor</h2>" in page
    assert "<p>Found with Q² 0.95.</p>" in page
    assert len(re.findall(r"It took \d+\.\d s\.", page)) == 2
    assert page.count('<img src="data:image/svg+xml;base64,') == 1
    assert 'alt="A dot."' in page


def test_the_page_says_what_failed_and_what_to_do(page: str) -> None:
    assert "1 of 2 acts failed: 2. Their sections say what to do." in page
    assert "This act failed. There is no FEniCS. Install it." in page.split("2. Ask FEniCS</h2>")[1]


def test_the_page_links_to_reports_that_are_there_and_loads_nothing(page: str) -> None:
    assert re.findall(r'href="([^#][^"]*)"', page) == ["./fit/report%20of%20%231.html"]
    assert "One that is not there" not in page
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|<script|<link", page)


def test_the_page_says_what_made_it(page: str) -> None:
    shown = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert re.search(r"config hash [0-9a-f]{16} seed 7", shown)
    assert "version of distlfm" in shown
    assert "size: 0.05" in shown


def test_acts_after_one_without_which_they_cannot_be_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real acts, where the first fails and the field has no FEniCS; the path of the page is the last line."""
    monkeypatch.setattr(demo, "_simulate", lambda path: failing())
    monkeypatch.setattr(demo, "_field", lambda out: failing())
    monkeypatch.setattr(demo, "_divided", answer)
    said = io.StringIO()
    assert demo.run(tmp_path / "out", reporter_for(said), [Act("more", answer)]) == 1
    assert said.getvalue().count("The instances of act 1 are not there. See why it failed") == 2
    assert said.getvalue().splitlines()[-1].startswith(f"Open {tmp_path.resolve() / 'out' / 'index.html'} in a browser")
    shown = (tmp_path / "out" / "index.html").read_text()
    assert "4 of 6 acts failed: 1, 2, 3, 4." in shown
    assert shown.count("The answer is 42.") == 2


def test_pictures_of_what_was_simulated_and_of_a_divided_gradient_have_words() -> None:
    times = np.linspace(0, 4, 5)
    values = np.ones((2, 5))
    truth = Truth(times, np.ones((1, 5)))
    shown = simulated_figure(Instance("one", ("a", "b"), times, values, values > 0, truth=truth))
    assert shown.alt == "Instance one: 2 outputs as points against time, and the true force."
    alone = np.outer(times, times)
    divided = gradient_figure(alone, alone + 1.6e-11)
    assert "at most 1e-12 of its largest value" in divided.alt
