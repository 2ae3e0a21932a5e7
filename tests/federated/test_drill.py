"""The drill: real processes are attacked by their own coordinator, refuse, and lose where they were opened for it."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from distlfm.cli import main
from distlfm.errors import WorkError
from distlfm.federated.drill import run
from distlfm.federated.drill.coordinator import ATTACKS, Outcome

GOOD = {"attack": "one", "asked": "much", "answer": "no", "refused": True, "opened": True, "gained": "a record"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_attack_is_refused_and_succeeds_at_sites_that_were_opened_for_it(tmp_path: Path) -> None:
    facts = run.drill(tmp_path / "drill")
    assert {one["attack"] for one in facts["attacks"]} >= {one.name for one in ATTACKS}
    assert [one for one in facts["attacks"] if not one["refused"]] == []
    assert [one for one in facts["attacks"] if one["opened"] is False] == []
    assert sum(one["opened"] is True for one in facts["attacks"]) >= 6
    assert facts["ok"]
    assert json.loads((tmp_path / "drill" / "summary.json").read_text()) == facts
    page = html.unescape((tmp_path / "drill" / "report.html").read_text())
    assert all(one["attack"] in page for one in facts["attacks"])
    assert "The drill is red" not in page


@pytest.mark.parametrize(
    ("change", "code"),
    [({}, 0), ({"opened": None}, 0), ({"refused": False}, 1), ({"opened": False}, 1)],
)
def test_a_drill_is_red_if_a_site_did_not_refuse_or_an_attack_shows_nothing(
    change: dict[str, Any],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The federation is left out: what counts here is what is made of its answers."""
    monkeypatch.setattr(run, "_made", lambda _: (None, {}))
    monkeypatch.setattr(run, "_served", lambda *_: pytest.MonkeyPatch.context())
    monkeypatch.setattr(run, "_attacked", lambda *_: [Outcome(**{**GOOD, **change})])
    assert main(["federated", "drill", "--out", str(tmp_path / "out")]) == code
    said = capsys.readouterr().out
    assert ("the drill is green" in said) == (code == 0)
    assert ("the drill is RED" in said) == (code == 1)
    page = (tmp_path / "out" / "report.html").read_text()
    assert ("The drill is red: one." in page) == (code == 1)
    assert main(["federated", "drill", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] == (code == 0)


def test_an_attack_that_stumbles_is_no_refusal_and_no_success() -> None:
    from distlfm.federated.drill.coordinator import tried

    def stumbles(_: Any) -> Any:
        raise WorkError("A site is gone.", "")

    answer, counts = tried(stumbles, None)  # type: ignore[arg-type]
    assert not counts
    assert "the drill failed here" in answer
