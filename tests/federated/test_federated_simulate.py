"""A whole federation in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.federated.audit import verify
from distlfm.federated.settings import FederatedConfig, read_config
from distlfm.federated.simulation.run import simulate
from distlfm.lfo import Operator
from distlfm.runtime.reporting import Silent

SHIPPED = Path(__file__).parents[2] / "configs" / "federated" / "glucose.yaml"
SITES = ["azt1d", "bigideas", "hall2018", "hupa"]
SMALL = [
    "data=generated",
    "patients=9",
    "base.generate_with=[instances=200, points=49]",
    "base.train_with=[operator.points=17, operator.modes=4, operator.width=8, operator.layers=1, operator.head=8, "
    "operator.pooled=4, operator.regressions=2, loop.epochs=2]",
    "programme.rounds=2",
    "programme.task.steps=2",
    "personal=2",
]


class Listening(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def say(self, text: str) -> None:
        self.told.append(text)

    def table(self, title: str, columns: Any, rows: Any) -> None:
        self.told.append("\n".join([title, " ".join(columns), *(" ".join(row) for row in rows)]))


@pytest.mark.slow
def test_the_shipped_simulation_tells_what_each_site_gains(tmp_path: Path) -> None:
    listening = Listening()
    told = simulate(SHIPPED, SMALL, tmp_path / "run", listening)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == told
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Not for clinical decisions." in page
    assert told["config_hash"] in page
    for model in ("local", "federated", "pooled", "epsilon"):
        assert sorted(told[model]) == SITES
    assert all(value is None for value in told["epsilon"].values())
    assert len({told["local"][name] for name in SITES}) == 4
    assert told["rounds"] == 2
    assert told["bytes"] > 2 * 4 * 2 * 8 * 1000  # two rounds, four sites, both ways, eight bytes a weight
    rounds = sum(line["bytes"] for line in told["history"])
    assert told["bytes"] - rounds > 2 * 4 * 8 * 1000  # and the last model twice to each: to be measured, to be kept
    assert told["data"] == "generated"
    assert (tmp_path / "run" / "sites.svg").read_text().startswith("<?xml")
    assert "rounds, " in listening.told[-1]
    assert "pool" in listening.told[-1]
    Operator.load(tmp_path / "run" / "operator.pt")
    for name in SITES:
        assert not verify(tmp_path / "run" / "sites" / name / "audit.jsonl").flaws
    again = simulate(SHIPPED, SMALL, tmp_path / "run")
    assert {key: again[key] for key in ("federated", "bytes", "history")} == {
        key: told[key] for key in ("federated", "bytes", "history")
    }
    with pytest.raises(UsageError, match="another simulation"):
        simulate(SHIPPED, [*SMALL, "programme.task.lr=0.1"], tmp_path / "run")


@pytest.mark.slow
def test_a_simulation_with_budgets_says_what_was_spent(tmp_path: Path) -> None:
    more = [*SMALL, "privacy.epsilon=20", "programme.task.adapter=shift", "programme.evaluate=false", "personal=0"]
    told = simulate(SHIPPED, more, tmp_path / "run")
    assert all(0 < spent <= 20 for spent in told["epsilon"].values())
    assert "loss" not in told["history"][0]


def test_the_shipped_config_names_files_that_are_there() -> None:
    config = read_config(SHIPPED)
    assert all(path is not None and path.is_file() for path in (config.base.generate, config.base.train, config.fit))
    assert sorted(site.name for site in config.sites) == SITES


def test_a_folder_that_is_no_simulation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        simulate(SHIPPED, SMALL, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sites": [{"name": "a"}, {"name": "a"}]}, "same name"),
        ({"programme": {"min_sites": 9}}, "min_sites is 9"),
        ({"base": {}}, "give either operator"),
        ({"sites": [{"name": "a"}]}, "sites"),
    ],
)
def test_a_config_that_cannot_work_is_refused(change: dict[str, Any], words: str) -> None:
    content = {**yaml.safe_load(SHIPPED.read_text()), **change}
    with pytest.raises(UsageError, match=words):
        build(FederatedConfig, content)


def test_importing_the_apps_does_not_import_torch() -> None:
    code = "import sys, distlfm.federated.client_app, distlfm.federated.server_app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
