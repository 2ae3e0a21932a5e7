"""What a run of rounds brought stays as a summary and a page; one that failed is told in a sentence."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distlfm.cli.federated import in_words
from distlfm.errors import WorkError
from distlfm.federated.link import run
from distlfm.federated.link.control import Connection, Control
from distlfm.federated.link.run import RunResult, write_run
from distlfm.federated.settings import ProgrammeConfig
from distlfm.runtime.reporting import reporter_for


def test_a_run_leaves_its_summary_and_a_report_with_every_round(tmp_path: Path) -> None:
    history = [{"round": 1, "sites": 4, "loss": 1.25, "seconds": 20.5}, {"round": 2, "sites": 3, "seconds": 19.0}]
    content = {"rounds": 2, "kept_round": 1, "history": history, "operator": "runs/one/operator.pt"}
    content["last"] = {"loss": 0.875}
    page = write_run(tmp_path, ProgrammeConfig(rounds=2), RunResult(77, content)).read_text()
    assert json.loads((tmp_path / "summary.json").read_text()) == {**content, "run": "77"}
    assert all(text in page for text in ("1.25", "20.5", "rounds: 2", "weights of round 1 were kept", "77"))
    rows = re.findall(r"<tr>(<th scope=\"row\">.*?)</tr>", page)
    cells = [re.findall(r">([^<]+)</t[hd]>", row) for row in rows[:3]]
    # A model stands beside the round that made it, and the picture has those that were measured.
    assert cells == [["0", "–", "–", "1.250"], ["1", "4", "20.50", "–"], ["2", "3", "19.00", "0.8750"]]
    assert 'alt="loss against the number of rounds."' in page


class Failing(Control):
    """A link at which a run fails, as Flower tells it."""

    def __init__(self, details: str) -> None:
        self._details = details

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def start_run(self, programme: dict[str, Any], name: str) -> int:
        del programme, name
        return 77

    def follow(self, run: int, line: Callable[[str], None]) -> dict[str, str]:
        del run
        for text in FLOWERS.splitlines():
            line(text)
        return {"state": "finished", "outcome": "failed", "details": self._details}


FLOWERS = """\x1b[92mINFO \x1b[0m:      round 1: 4 sites
\x1b[91mERROR \x1b[0m:     ServerApp raised an exception
Traceback (most recent call last):
  File "/opt/flwr/superlink/runtime/run_serverapp.py", line 244, in run_serverapp
    context = run_(
distlfm.errors.StorageError: Cannot write the round in /srv/link/runs/one: No space left on device.
\x1b[91mERROR \x1b[0m:     Exit Code: 200
"""


@pytest.mark.parametrize(
    ("details", "why"),
    [
        (
            "ServerApp failed with exception: Cannot write the round in /srv/link/runs/one: No space left on device. "
            "Free space; then the same command goes on where it stopped.",
            "Cannot write the round in /srv/link/runs/one: No space left on device. Free space; then the same command "
            "goes on where it stopped.",
        ),
        (
            "ServerApp failed with exception: [Errno 28] No space left on device: '/srv/link/state/flower/apps'",
            "Cannot use /srv/link/state/flower/apps at the link: No space left on device.",
        ),
        ("ServerApp failed with exception: [Errno 28] No space left on device", "No space left on device."),
        ("", "no more is known."),
    ],
)
def test_a_failed_run_is_told_in_a_sentence_without_flowers_traceback(
    details: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Control", lambda _: Failing(details))
    said = io.StringIO()
    here = Connection("127.0.0.1", 1, None, "")
    with pytest.raises(WorkError) as caught:
        run.run_programme(ProgrammeConfig(rounds=2), "one", here, reporter_for(said))
    assert said.getvalue().splitlines() == ["run 77 (one) is started", "round 1: 4 sites"]
    assert caught.value.cause == f"Run 77 ended as failed: {why}"
    assert "the same command with --name one goes on" in caught.value.fix


def test_lists_and_mappings_are_told_in_words_and_not_as_json() -> None:
    told = {"state": "running", "sites": {"north": "online"}, "epsilon": None, "flaws": [], "runs": [{"run": "1"}, {}]}
    told |= {"processes": {"tasks": {"state": "up", "last_exit": None}}, "spent": 0.123456}
    assert list(in_words(told)) == [
        ["state", "running"],
        ["sites", "north online"],
        ["epsilon", "–"],
        ["flaws", "none"],
        ["runs", "run 1"],
        ["", "none"],
        ["processes", "tasks (state up, last_exit –)"],
        ["spent", "0.1235"],
    ]
