"""Mechanisms of the user's own."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from distlfm.config import build, load, read_yaml
from distlfm.errors import UsageError
from distlfm.mechanisms import REGISTRY
from distlfm.runs.settings import FitConfig

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
    from distlfm.runs.settings import GenerateConfig
    from distlfm.training.settings import TrainConfig
    from distlfm.verbs.generate import generate
    from distlfm.verbs.train import train

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


def test_verbs_with_a_config_take_plugins_from_the_command_line_too(folder: Path) -> None:
    """The configs name none; without the option there is no such mechanism."""
    from distlfm.cli import main

    (folder / "leaky_test_plugin.py").write_text(LEAK)
    (folder / "other_test_plugin.py").write_text("")
    (folder / "tank.yaml").write_text("mechanism: {kind: leaky_test_tank, outputs: [output_0]}\n")
    (folder / "train.yaml").write_text("verb: train\nloop: {epochs: 1}\nrun: {tensorboard: false, threads: 1}\n")
    (folder / "generate.yaml").write_text("verb: generate\n" + (folder / "tank.yaml").read_text())
    given = ["--plugin", "leaky_test_plugin", "--plugin", "other_test_plugin.py"]
    quick = ["inference.posterior.method=point", "inference.optimiser.iterations=3", "inference.optimiser.rounds=0"]
    small = ["operator.layers=1", "operator.width=4", "operator.modes=2", "operator.head=4", "operator.pooled=2"]
    for verb in (
        ["simulate", "leaky_test_tank", "--instances", "1", "--out", "tank.npz", "mechanism.outputs=[output_0]"],
        ["fit", "tank.yaml", "--data", "tank.npz", "--out", "fitted", *quick],
        ["generate", "generate.yaml", "--instances", "8", "--out", "store.zarr", "--executor", "serial", "points=9"],
        ["train", "train.yaml", "--data", "store.zarr", "--out", "run", *small, "operator.regressions=0"],
    ):
        assert verb[0] == "train" or main(verb) == 2
        assert main([*verb, *given]) == 0
        assert "other_test_plugin" in sys.modules
        sys.modules.pop("other_test_plugin")
        forget()
    assert read_yaml(folder / "run" / "config.yaml")["plugins"] == ["leaky_test_plugin", "other_test_plugin.py"]


def test_plugins_of_a_sweep_are_those_of_its_trainings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distlfm.cli import main
    from distlfm.training.settings import TuneConfig
    from distlfm.verbs import tune

    (folder / "leaky_test_plugin.py").write_text(LEAK)
    found: list[TuneConfig] = []
    monkeypatch.setattr(tune, "tune", lambda path, settings, _: found.append(load(TuneConfig, path, settings)))
    sweep = "verb: tune\ntrain: {data: {stores: [a.zarr]}}\nspace: {operator.width: {kind: choice, values: [8, 16]}}\n"
    (folder / "tune.yaml").write_text(sweep)
    assert main(["tune", "tune.yaml", "--plugin", "leaky_test_plugin"]) == 0
    assert found[0].train.plugins == ("leaky_test_plugin",)
    assert "leaky_test_tank" in REGISTRY


def test_a_worker_that_was_sent_its_config_imports_the_plugins(operator: Path) -> None:
    from distlfm.lfo import Alone
    from distlfm.training.settings import TrainConfig
    from distlfm.training.work import TrainWork

    config = load(TrainConfig, operator / "config.yaml", ["run.dir=other"]).resolved()
    sent = pickle.dumps(TrainWork(config))
    forget()
    assert pickle.loads(sent)(Alone(), lambda: False)["finished"]


def test_a_plugin_with_a_slip_is_told_its_line_and_not_where_it_must_be(folder: Path) -> None:
    (folder / "leaky_test_plugin.py").write_text("import math\nmath.sine(1)\n")
    with pytest.raises(UsageError, match=r"has no attribute 'sine'.*Mend leaky_test_plugin\.py, line 2\.") as caught:
        build(FitConfig, {"plugins": ["leaky_test_plugin"], "mechanism": {"kind": "glucose"}})
    assert "installed module" not in str(caught.value)


def test_a_plugin_that_imports_its_neighbour_is_told_to_name_it_first(folder: Path) -> None:
    (folder / "leaky_test_plugin.py").write_text(LEAK)
    (folder / "other_test_plugin.py").write_text("import leaky_test_plugin\n")
    with pytest.raises(UsageError, match=r"plugins=\[leaky_test_plugin\.py, other_test_plugin\.py\]"):
        build(FitConfig, {"plugins": ["other_test_plugin"], "mechanism": {"kind": "glucose"}})
    both = ["leaky_test_plugin.py", "other_test_plugin.py"]
    build(FitConfig, {"plugins": both, "mechanism": {"kind": "glucose"}})
    sys.modules.pop("other_test_plugin")


def test_two_equations_of_one_name_are_refused_and_the_first_one_stays(folder: Path) -> None:
    (folder / "leaky_test_plugin.py").write_text(LEAK)
    (folder / "other_test_plugin.py").write_text(LEAK)
    (folder / "shipped_test_plugin.py").write_text(LEAK.replace("leaky_test_tank", "reaction_diffusion"))
    mechanism = {"kind": "leaky_test_tank"}
    build(FitConfig, {"plugins": ["leaky_test_plugin"], "mechanism": mechanism})
    first = REGISTRY["leaky_test_tank"]
    for name, where in (("other_test_plugin", r"leaky_test_plugin\.py"), ("shipped_test_plugin", "it is shipped")):
        with pytest.raises(UsageError, match=f"{name}' registers an equation .*{where}.*another name"):
            build(FitConfig, {"plugins": ["leaky_test_plugin", name], "mechanism": mechanism})
        assert name not in sys.modules
    assert REGISTRY["leaky_test_tank"] is first
    assert "reaction_diffusion" not in REGISTRY


def test_a_file_with_the_name_of_another_module_is_to_be_renamed(folder: Path) -> None:
    for name, why in (("copy", "of Python itself"), ("numpy", "another module that is loaded")):
        (folder / f"{name}.py").write_text(LEAK)
        with pytest.raises(UsageError, match=rf"The plugin '{name}' has the name of .*{why}.*Rename {name}\.py\."):
            build(FitConfig, {"plugins": [name], "mechanism": {"kind": "leaky_test_tank"}})


def test_a_run_is_not_taken_up_with_an_equation_that_has_changed_since(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from distlfm.cli import main

    plugin = folder / "leaky_test_plugin.py"
    plugin.write_text(LEAK)
    config = "verb: generate\nplugins: [leaky_test_plugin]\nmechanism: {kind: leaky_test_tank, outputs: [output_0]}\n"
    (folder / "generate.yaml").write_text(config)
    call = ["generate", "generate.yaml", "--instances", "2", "--out", "store.zarr", "--executor", "serial", "points=9"]
    assert main(call) == 0
    forget()
    plugin.write_text(LEAK.replace("return f - ", "# as before\n        return f  -  "))
    assert main(call) == 0
    forget()
    plugin.write_text(LEAK.replace("return f - ", "return f - 2 * "))
    assert main(call) == 2
    assert "another leaky_test_tank: the file of that equation has changed since" in capsys.readouterr().err
