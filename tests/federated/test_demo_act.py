"""The federation's act of the demonstration: its line, its picture and its page, from a summary as simulations give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distlfm.config import dump
from distlfm.federated.settings import read_config
from distlfm.federated.simulation import run as demo_act
from distlfm.federated.simulation.run import PICTURE
from distlfm.report.federation import draw, federation_page
from distlfm.runs import REPORT
from distlfm.runs.folder import versions
from distlfm.runtime.reporting import Silent

SITES = ("hall2018", "azt1d", "hupa", "bigideas")


def losses(*values: float) -> dict[str, float]:
    return dict(zip(SITES, values, strict=True))


def told() -> dict[str, Any]:
    """Two of four sites gain by the federation."""
    models = {
        "base": losses(4, 4, 4, 4),
        "local": losses(3, 3, 1, 1),
        "federated": losses(2, 2, 2, 2),
        "pooled": losses(1, 1, 1, 1),
    }
    return {
        **models,
        "own": {**models, "personal": losses(1, 1, 1, 1)},
        "standard_errors": {**models, "own": {**models, "personal": losses(1, 1, 1, 1)}},
        "advantage": {name: {"mean": 1.5, "standard_error": 0.25} for name in SITES},
        "everybody": {"base": {"loss": 4.0}, "federated": {"loss": 2.0}, "pooled": {"loss": 1.0}},
        "epsilon": losses(5, 6, 7, 8),
        "patients": dict.fromkeys(SITES, 2),
        "rounds": 4,
        "kept_round": 4,
        "bytes": 3_000_000,
        "figure": "loss on held-out patients of the other sites; less is better",
        "gain_share": 0.66,
        "data": "generated",
        "strategy": "fedavg",
        "config_hash": "0123abcd",
    }


def test_the_act_says_what_the_sites_gain_and_leaves_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(config: Path, overrides: Sequence[str] = (), *, out: Path, reporter: Any) -> dict[str, Any]:
        out.mkdir()
        settings = read_config(config)
        draw(told(), out / PICTURE)
        federation_page(out / REPORT, told(), out / PICTURE, dump(settings), versions(), settings.seed)
        return told()

    monkeypatch.setattr(demo_act, "simulate", simulated)
    shown = demo_act.act(tmp_path / "sites", Silent())
    assert "goes from 4.00 to 2.00 (pooled: 1.00)" in shown.line
    assert "beats 2 of 4 sites tuned alone; the federation has 66 % of what pooling all data would gain" in shown.line
    (figure,) = shown.figures
    assert "beats 2 of them" in figure.alt
    (page,) = shown.pages.values()
    assert page == tmp_path / "sites" / "federation" / "report.html"
    text = page.read_text()
    for words in (
        "Not for clinical decisions.",
        "0123abcd",
        "4 rounds sent 3.0 MB",
        "bigideas",
        "3.0 ± 3.0",
        "1.50 ± 0.25",
    ):
        assert words in text
