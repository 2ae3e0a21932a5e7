"""`federated run` and `federated simulate` leave the files of other runs, and of their user, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from distlfm.cli import main
from distlfm.federated.link import run as run_module
from distlfm.federated.link.run import RunResult
from distlfm.lfo import save_checkpoint

SHIPPED = Path(__file__).parents[2] / "configs" / "federated" / "glucose.yaml"
VERBS = {"run": "programme", "simulate": "federated"}
CONTENT: dict[str, Any] = {"rounds": 1, "kept_round": 1, "history": [{"round": 1, "sites": 3, "seconds": 1.0}]}


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In a folder with a programme and a link; which runs were started there."""
    monkeypatch.chdir(tmp_path)
    save_checkpoint(Path("operator.pt"), {})
    assert main(["federated", "provision", "link", "link", "--sites", "a,b,c"]) == 0
    Path("programme.yaml").write_text("verb: programme\noperator: operator.pt\n")
    found: list[str] = []

    def fake(_: object, name: str, *rest: object) -> RunResult:
        del rest
        found.append(name)
        return RunResult(77, CONTENT)

    monkeypatch.setattr(run_module, "run_programme", fake)
    return found


def call(verb: str) -> int:
    words = ["programme.yaml", "--link", "link"] if verb == "run" else [str(SHIPPED), "data=generated"]
    return main(["federated", verb, *words, "--out", "out"])


def content() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("verb", "other"),
    [(verb, other) for verb in VERBS for other in ("fit", "train", *VERBS.values()) if other != VERBS[verb]],
)
def test_the_folder_of_another_verb_is_refused_before_anything_starts(
    verb: str, other: str, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    Path("out", "config.yaml").write_text(f"verb: {other}\n")
    before = content()
    capsys.readouterr()
    assert call(verb) == 2
    (line,) = capsys.readouterr().err.splitlines()
    words = {"programme": "federated run", "federated": "federated simulate"}.get(other, other)
    assert f"out is a run of `distlfm {words}`, and `distlfm federated {verb}` would write over its config" in line
    assert (content(), started) == (before, [])


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "report.html"])
def test_files_of_the_user_are_not_written_over_by_a_run(
    name: str, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    Path("out", name).write_text("mine")
    assert call("run") == 2
    assert f"which would write over its {name}. Choose another --out directory." in capsys.readouterr().err
    assert (content(), started) == ({name: b"mine"}, [])


def test_a_run_leaves_its_config_and_goes_on_in_its_own_folder(
    started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert call("run") == 0
    assert started == ["run", "run"]
    assert set(content()) == {"config.yaml", "summary.json", "report.html"}
    kept = yaml.safe_load(Path("out", "config.yaml").read_text())
    assert (kept["verb"], kept["operator"]) == ("programme", str(Path("operator.pt").resolve()))
    assert main(["resume", "out"]) == 2
    assert "Repeat the command that began it." in capsys.readouterr().err
