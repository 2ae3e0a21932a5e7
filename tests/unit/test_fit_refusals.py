"""Methods and options that cannot work with a model are refused when its config is read: nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from distlfm.cli import main
from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.runs.settings import FitConfig

FIELD: dict[str, Any] = {"mechanism": {"kind": "reaction_diffusion"}}
GENES: dict[str, Any] = {"mechanism": {"kind": "transcription"}}
MATERN: dict[str, Any] = {"kernel": {"kind": "matern52"}}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (FIELD | {"inference": {"grid_points": 50}}, "inference.grid_points has no effect on a field."),
    (FIELD | {"inference": {"until": 2.0}}, "inference.until has no effect on a field."),
    (
        FIELD | {"inference": {"preestimate": {"interpolant": "gp"}}},
        "inference.preestimate.interpolant has no effect on a field",
    ),
    (
        FIELD | {"inference": {"method": "preestimate", "posterior": {"draws": 7}}},
        "inference.posterior has no effect on a field's matched slopes",
    ),
    (FIELD | {"inference": {"method": "nested"}}, "Fields are not fitted by the method 'nested'."),
    (FIELD | {"likelihood": {"kind": "poisson"}}, "Fields are fitted with Gaussian noise"),
    (
        {"mechanism": {"kind": "lotka_volterra"}, "inference": {"method": "collapsed"}},
        "The method 'collapsed' needs a linear mechanism with Gaussian noise",
    ),
    (
        {"mechanism": {"kind": "nonparametric"}, "inference": {"method": "filter"}},
        "The method 'filter' needs a linear mechanism with Gaussian noise",
    ),
    (
        GENES | {"likelihood": {"kind": "poisson"}, "inference": {"method": "exact"}},
        "'transcription' with the likelihood 'poisson' is none.",
    ),
    (GENES | {"inference": {"method": "filter"}}, "needs a stable mechanism and a kernel matern12"),
    (
        {"mechanism": {"kind": "transcription", "fixed": {"decay": {"p21": 0.8}}}, "inference": {"method": "filter"}},
        "needs a stable mechanism and a kernel matern12",
    ),
    (GENES | {"force": MATERN, "inference": {"method": "exact"}}, "The method 'exact' is for transcription with one"),
]


@pytest.mark.parametrize(("content", "sentence"), REFUSED)
def test_what_a_method_cannot_do_is_refused_before_a_folder_is_made(
    content: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = tmp_path / "fit.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump({"verb": "fit", **content}))
    told = []
    for arguments in (["fit", str(config), "--data", "none.npz", "--out", str(out)], ["config", "show", str(config)]):
        assert main(arguments) == 2
        told.append(" ".join(capsys.readouterr().err.split()))
    assert not out.exists()
    for error in told:
        assert sentence in error
        assert "''" not in error


def test_a_model_made_in_python_is_refused_with_the_sentence_of_its_config() -> None:
    content, _ = REFUSED[6]
    with pytest.raises(UsageError) as of_config:
        build(FitConfig, content)
    model = Model(build_system(content["mechanism"]), ForceConfig(), LikelihoodConfig())
    some = Instance("one", ("predator",), np.arange(3.0), np.ones((1, 3)), np.ones((1, 3), dtype=bool))
    with pytest.raises(UsageError) as of_model:
        fit_instances(model, [some], InferenceConfig(method="collapsed"))
    assert str(of_config.value) == f"config: {of_model.value}"


@pytest.mark.parametrize(
    "content",
    [
        GENES | {"force": MATERN, "inference": {"method": "filter"}},
        GENES | {"inference": {"method": "exact"}},
        {"mechanism": {"kind": "linear_ode"}, "inference": {"method": "collapsed"}},
        FIELD | {"inference": {"method": "collapsed", "preestimate": {"enabled": False}}},
        {"mechanism": {"kind": "transcription", "fixed": {"decay": {"p21": 0.8}}}, "inference": {"method": "exact"}},
    ],
)
def test_what_a_method_can_do_is_taken(content: dict[str, Any]) -> None:
    assert build(FitConfig, content).inference.method == content["inference"]["method"]


def test_names_that_only_the_data_tell_are_waited_for_and_no_store_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = {"hill_weight": {"p21,f": 1.0}}
    mechanism = {"kind": "transcription", "fixed": fixed, "response": {"kind": "hill"}, "forces": ["f", "g"]}
    content = {"mechanism": mechanism, "inference": {"method": "collapsed"}}
    assert build(FitConfig, content).mechanism == mechanism
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "genes.csv").write_text("instance,time,p21\n" + "".join(f"a,{t},{1 + t % 3}\n" for t in range(6)))
    out = tmp_path / "run"
    data = str(tmp_path / "genes.csv")
    assert main(["fit", str(tmp_path / "fit.yaml"), "--data", data, "--out", str(out)]) == 2
    assert "needs a linear mechanism" in " ".join(capsys.readouterr().err.split())
    assert not (out / "store.zarr").exists()


def test_outputs_of_other_names_than_the_datas_are_told_once_before_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.csv").write_text("hour,conc\n0,1.0\n1,1.5\n2,1.2\n3,1.1\n")
    columns = {"time": "hour", "values": "conc"}
    content = {"verb": "fit", "mechanism": {"kind": "glucose", "outputs": ["plasma"]}, "data": {"columns": columns}}
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(content))
    given = ["--data", str(tmp_path / "data.csv"), "--out", str(tmp_path / "run")]
    assert main(["fit", str(tmp_path / "fit.yaml"), *given]) == 2
    said = capsys.readouterr().err
    assert "The data have no output of mechanism.outputs, plasma: theirs are conc." in said
    assert "Set mechanism.outputs=[conc], or leave it out to take the data's." in said
    assert "tried again" not in said
