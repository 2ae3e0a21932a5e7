"""Mechanisms of the user's own."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.mechanisms import REGISTRY
from distlfm.pipeline.settings import FitConfig

LEAK = """
from distlfm.mechanisms import Mechanism, Parameter, register
from distlfm.mechanisms.priors import LogNormal

@register("leaky_test_tank")
class Leak(Mechanism):
    def parameters(self):
        return [Parameter("rate", ("k",), LogNormal(median=1.0), positive=True)]
    def vector_field(self, t, y, f, values):
        return f - values["rate"] * y
    def initial_state(self, values):
        return 0.0 * values["rate"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    REGISTRY.pop("leaky_test_tank", None)
    sys.modules.pop("leaky_test_plugin", None)


def test_a_module_named_in_the_config_brings_its_mechanism(folder: Path) -> None:
    (folder / "leaky_test_plugin.py").write_text(LEAK)
    content = {"plugins": ["leaky_test_plugin"], "mechanism": {"kind": "leaky_test_tank", "outputs": ["level"]}}
    assert build(FitConfig, content).mechanism["kind"] == "leaky_test_tank"


def test_a_located_config_is_the_same_work_and_finds_its_files_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "leaky_test_plugin.py").write_text(LEAK)
    mechanism = {"kind": "reaction_diffusion", "mesh": {"kind": "file", "path": "plate.xml"}, "dims": 2}
    content = {"plugins": ["leaky_test_plugin", "json"], "mechanism": mechanism, "data": {"path": "data.npz"}}
    config = build(FitConfig, content)
    found = config.located()
    assert found.plugins == (str(folder / "leaky_test_plugin.py"), "json")
    assert found.mechanism["mesh"]["path"] == str(folder / "plate.xml")
    assert found.data.path == folder / "data.npz"
    assert found.work().plugins == config.work().plugins == ("leaky_test_plugin", "json")
    sys.modules.pop("leaky_test_plugin")
    REGISTRY.pop("leaky_test_tank")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    again = build(FitConfig, found.model_dump(mode="json"))
    assert again.located() == again == found
    assert "leaky_test_tank" in REGISTRY


def test_without_the_plugin_the_mechanism_is_unknown(folder: Path) -> None:
    with pytest.raises(UsageError, match="no mechanism 'leaky_test_tank'"):
        build(FitConfig, {"mechanism": {"kind": "leaky_test_tank"}})


def test_a_missing_plugin_is_told_with_where_it_must_be(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"leaky_test_plugin.*current folder, or an installed module"):
        build(FitConfig, {"plugins": ["leaky_test_plugin"], "mechanism": {"kind": "glucose"}})


def test_a_plugin_that_fails_is_told_and_not_left_half_imported(folder: Path) -> None:
    (folder / "leaky_test_plugin.py").write_text("raise RuntimeError('no tank')")
    with pytest.raises(UsageError, match="RuntimeError: no tank"):
        build(FitConfig, {"plugins": ["leaky_test_plugin"], "mechanism": {"kind": "glucose"}})
    assert "leaky_test_plugin" not in sys.modules


def forget() -> None:
    """As in another process, which has not imported the module."""
    REGISTRY.pop("leaky_test_tank", None)
    sys.modules.pop("leaky_test_plugin", None)


@pytest.fixture
def operator(folder: Path) -> Path:
    """The run of an operator of the plugin's equation; the store it learned from is beside it."""
    from distlfm.pipeline.generate import generate
    from distlfm.pipeline.generate_settings import GenerateConfig
    from distlfm.pipeline.train import train
    from distlfm.pipeline.train_settings import TrainConfig

    (folder / "leaky_test_plugin.py").write_text(LEAK)
    mechanism = {"kind": "leaky_test_tank", "outputs": ["level"]}
    drawn = {"instances": 24, "points": 13, "run": {"dir": "store.zarr", "executor": "serial"}}
    generate(build(GenerateConfig, {"plugins": ["leaky_test_plugin"], "mechanism": mechanism, **drawn}))
    settings = {
        "plugins": ["leaky_test_plugin"],
        "data": {"stores": ["store.zarr"]},
        "operator": {"layers": 1, "width": 4, "modes": 2, "head": 4, "pooled": 2, "regressions": 0},
        "loop": {"epochs": 1},
        "run": {"dir": "run", "threads": 1, "tensorboard": False},
    }
    train(build(TrainConfig, settings))
    forget()
    return folder / "run"


def test_an_operator_of_a_plugins_equation_names_the_plugin_and_never_imports_it_by_itself(operator: Path) -> None:
    from distlfm.lfo import Operator

    with pytest.raises(UsageError, match=r"'leaky_test_tank', which is not known here\. .*--plugin leaky_test_plugin"):
        Operator.load(operator / "operator.pt")
    assert "leaky_test_plugin" not in sys.modules


def test_an_operator_of_a_plugins_equation_is_asked_judged_shown_and_exported(operator: Path) -> None:
    from distlfm.cli import main

    given = ["--plugin", "leaky_test_plugin"]
    for verb in (
        ["query", "run", "store.zarr", "--out", "answers"],
        ["evaluate", "run", "store.zarr", "--limit", "4"],
        ["operator", "show", "run"],
        ["operator", "export", "run", "--format", "torchscript", "--out", "operator.ts"],
    ):
        assert main(verb) == 2
        assert main([*verb, *given]) == 0
        forget()


def test_a_worker_that_was_sent_its_config_imports_the_plugins(operator: Path) -> None:
    from distlfm.config import load
    from distlfm.lfo import Alone
    from distlfm.pipeline.train_settings import TrainConfig
    from distlfm.pipeline.train_work import TrainWork

    config = load(TrainConfig, operator / "config.yaml", ["run.dir=other"]).resolved()
    sent = pickle.dumps(TrainWork(config))
    forget()
    assert pickle.loads(sent)(Alone(), lambda: False)["finished"]
