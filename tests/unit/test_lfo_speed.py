"""What the benchmark of an operator's speed says when it has nothing to compare with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import lfo_speed
from distlfm.lfo import Examples
from tests.support.lfo_toy import make_store

PROJECT = Path(__file__).resolve().parents[2]


def test_a_library_that_is_not_installed_is_no_goal_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    monkeypatch.setattr(lfo_speed, "PACKAGES", tmp_path)
    found = lfo_speed.step_figures(Examples([make_store(tmp_path / "store", count=8)]), quick=True)
    assert "not installed" in found["neuraloperator"]
    assert [one["ok"] for one in found["figures"].values()] == [False, False]
    assert all(rate > 0 for rate in found["samples a second"].values())
