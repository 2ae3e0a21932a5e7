"""Mechanisms of the user's own."""

from __future__ import annotations

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
