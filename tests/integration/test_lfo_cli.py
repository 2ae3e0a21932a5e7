"""The operator's verbs as a user types them: generate, train, evaluate, query, export; exit codes and help."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from distlfm.cli import main

PROJECT = Path(__file__).resolve().parents[2]
TINY = ["operator.layers=1", "operator.width=8", "operator.modes=4", "loop.epochs=3", "loop.batch=32"]


def run(*arguments: str | Path) -> int:
    """The command, in this process: starting another one takes longer than the work."""
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("lfo")
    made = run(
        *(
            "generate",
            PROJECT / "configs/generate/transcription.yaml",
            "--instances",
            "120",
            "--out",
            folder / "genes.zarr",
        ),
        *("points=21", "num_outputs=2"),
    )
    assert made == 0
    done = run(
        *(
            "train",
            PROJECT / "configs/train/transcription.yaml",
            "--data",
            folder / "genes.zarr",
            "--out",
            folder / "run",
        ),
        *(*TINY, "run.threads=1"),
    )
    assert done == 0
    return folder


@pytest.mark.slow
def test_training_leaves_a_checkpoint_and_a_page(trained: Path) -> None:
    assert (trained / "run" / "operator.pt").is_file()
    page = (trained / "run" / "report.html").read_text()
    for title in ("Training", "Scores", "Calibration", "Super-resolution"):
        assert f">{title}</h2>" in page


@pytest.mark.slow
def test_evaluation_looks_at_what_was_held_out(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", trained / "run", trained / "genes.zarr", "--out", trained / "judged") == 0
    said = capsys.readouterr().out
    assert "validation split" in said
    assert "latent q2" in said
    summary = json.loads((trained / "judged" / "summary.json").read_text())
    assert 1 <= summary["count"] < 40
    assert (trained / "judged" / "report.html").is_file()


@pytest.mark.slow
def test_irregular_series_in_a_csv_file_is_answered(trained: Path) -> None:
    times = (0, 0.7, 3.3, 8, 11)
    lines = [f"{t},{who},{0.3 + 0.02 * t},{0.4 if t != 3.3 else ''}" for who in ("x", "y") for t in times]
    (trained / "new.csv").write_text("\n".join(["hours,who,a,b", *lines]) + "\n")
    code = run(
        *("query", trained / "run", trained / "new.csv", "--out", trained / "answers", "--plot"),
        *("data.columns.time=hours", "data.columns.instance=who", "data.columns.values=[a, b]"),
        *("outputs.a=output_0", "outputs.b=output_1"),
    )
    assert code == 0
    with (trained / "answers" / "answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["instance"] for row in rows} == {"x", "y"}
    assert len(rows) == 2 * 21
    assert all(float(row["lower95"]) <= float(row["mean"]) <= float(row["upper95"]) for row in rows)
    assert (trained / "answers" / "report.html").is_file()
    assert len(list((trained / "answers" / "plots").iterdir())) == 4


@pytest.mark.slow
def test_data_that_cannot_be_answered_are_told_by_the_exit_code(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / "strange.csv").write_text("time,a,b\n0,1,2\n1,1,2\n2,2,2\n")
    assert run("query", trained / "run", trained / "strange.csv", "data.columns={time: time, values: [a, b]}") == 1
    assert "the operator does not know" in capsys.readouterr().err


@pytest.mark.slow
def test_wrong_calls_are_told_in_a_sentence(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (("query", trained, trained / "genes.zarr"), "operator.pt"),
        (("query", trained / "run", trained / "genes.zarr", "--plot"), "--out"),
        (("query", trained / "run", trained / "genes.zarr", "data.fractoin=1"), "Did you mean"),
        (("evaluate", trained / "run", trained / "run" / "config.yaml"), "no store"),
        (("operator", "export", trained / "run", "--out", trained / "x", "--format", "cobol"), "torch_export"),
    ):
        assert run(*arguments) == 2, arguments
        assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_operator_is_shown_and_exported(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("operator", "show", trained / "run") == 0
    assert "output_0, output_1" in capsys.readouterr().out
    assert run("operator", "export", trained / "run", "--out", trained / "operator.pt2") == 0
    assert (trained / "operator.json").is_file()


@pytest.mark.parametrize("verb", [("train",), ("tune",), ("evaluate",), ("query",), ("operator", "export")])
def test_help_needs_no_torch_and_has_examples(verb: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from distlfm.cli import main\n"
        f"code = main([*{verb!r}, '--help'])\n"
        "assert code == 0, code\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert f"distlfm {' '.join(verb)}" in done.stdout
    assert "Examples" in done.stdout or "Example" in done.stdout
