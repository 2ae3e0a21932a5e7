"""What a run of rounds brought stays as a summary and a page."""

from __future__ import annotations

import json
from pathlib import Path

from distlfm.federated.run import RunResult, write_run
from distlfm.federated.settings import ProgrammeConfig


def test_a_run_leaves_its_summary_and_a_report_with_every_round(tmp_path: Path) -> None:
    history = [{"round": 1, "sites": 4, "loss": 1.25, "seconds": 20.5}, {"round": 2, "sites": 3, "seconds": 19.0}]
    content = {"rounds": 2, "kept_round": 1, "history": history, "operator": "runs/one/operator.pt"}
    page = write_run(tmp_path, ProgrammeConfig(rounds=2), RunResult(77, content)).read_text()
    assert json.loads((tmp_path / "summary.json").read_text()) == {**content, "run": "77"}
    assert all(text in page for text in ("1.25", "20.5", "rounds: 2", "weights of round 1 were kept", "77"))
