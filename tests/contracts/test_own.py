"""What CONTRIBUTING.md adds, used as a user's own: through a config, and through the suites."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import build
from distlfm.data import base
from distlfm.errors import UsageError
from distlfm.inference.archive import load_fit
from distlfm.inference.method import SERIES
from distlfm.instance import Instance
from distlfm.likelihoods import LIKELIHOODS
from distlfm.mechanisms import REGISTRY
from distlfm.runs.folder import identity
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.fit import fit
from tests.support.importing import import_environment

PROJECT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {
    "posterior": {"stages": [8, 10], "draws": 8},
    "variational": {"num_inducing": 6, "features": 16},
    "grid_points": 9,
}
MECHANISM = {"kind": "transcription", "fixed": {"sensitivity": {"a": 1.0}}}


def example(section: str) -> str:
    """The program of a section of CONTRIBUTING.md."""
    text = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    return re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    registries: list[dict[str, Any]] = [LIKELIHOODS, SERIES, REGISTRY, base.FORMATS]
    before = [dict(one) for one in registries]
    yield tmp_path
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)
    for name in ("student_plugin", "prior_plugin", "leaky_plugin", "tsv_plugin", "other_plugin"):
        sys.modules.pop(name, None)


def levels(outlier: float) -> Instance:
    times = np.linspace(0, 7, 9)
    values = 1 + 0.5 * np.sin(np.stack([times, times - 0.5]))
    values += 0.02 * np.random.default_rng(1).standard_normal(values.shape)
    values[0, 4] += outlier
    return Instance(f"off by {outlier:g}", ("a", "b"), times, values, np.ones(values.shape, dtype=bool))


@pytest.mark.slow
def test_a_likelihood_of_ones_own_fits_and_an_outlier_costs_it_little(folder: Path) -> None:
    (folder / "student_plugin.py").write_text(example("A likelihood"))
    content = {
        "plugins": ["student_plugin"],
        "mechanism": MECHANISM,
        "likelihood": {"kind": "student", "prior": {"kind": "lognormal", "median": 0.02, "spread": 0.5}},
        "inference": {"method": "nested", **SMALL},
        "run": {"dir": "run", "executor": "serial"},
    }
    config = build(FitConfig, content)
    run = fit(config, data=[levels(0.0), levels(1.0)])
    clean, spoilt = run.results
    assert clean.method == spoilt.method == "nested"
    assert {one.parameter for one in clean.estimates if one.kind == "noise"} == {"scale"}
    moved = np.abs(clean.grid.outputs.mean - spoilt.grid.outputs.mean).max()
    assert moved < 0.2, "with normal noise it is 0.4"
    kept = load_fit(next((folder / "run" / "fits").glob("*.npz")))
    assert kept.posterior.model.likelihood.options.kind == "student"
    drawn = {"plugins": content["plugins"], "likelihood": content["likelihood"], "mechanism": {"kind": "glucose"}}
    assert "scale" in simulate_from(build(SimulateConfig, drawn))[0].truth.parameters
    assert build(FitConfig, config.model_dump(mode="json")) == config


OWN_OPTION = """
from distlfm.likelihoods import LikelihoodConfig
class Options(LikelihoodConfig):
    freedom: float = 6.0
Student.Options = Options
"""


def test_its_options_may_be_its_own(folder: Path) -> None:
    (folder / "student_plugin.py").write_text(example("A likelihood") + OWN_OPTION)
    content = {"plugins": ["student_plugin"], "mechanism": MECHANISM, "likelihood": {"kind": "student", "freedom": 5}}
    config = build(FitConfig, content)
    assert config.model_dump(mode="json")["likelihood"]["freedom"] == 5.0
    assert build(FitConfig, config.model_dump(mode="json")) == config
    content["likelihood"] = {"kind": "student", "freedom": "much"}
    with pytest.raises(UsageError, match=r"'likelihood\.freedom' should be a valid number"):
        build(FitConfig, content)


def test_one_name_is_one_likelihood(folder: Path) -> None:
    (folder / "student_plugin.py").write_text(example("A likelihood"))
    (folder / "other_plugin.py").write_text(example("A likelihood").replace('"student"', '"poisson"'))
    with pytest.raises(UsageError, match=r"There is a likelihood 'poisson' already\. Register it by another name"):
        build(FitConfig, {"plugins": ["other_plugin"], "mechanism": MECHANISM})
    with pytest.raises(UsageError, match=r"'likelihood\.kind' should be .* 'negative_binomial', not 'student'"):
        build(FitConfig, {"mechanism": MECHANISM, "likelihood": {"kind": "student"}})
    build(FitConfig, {"plugins": ["student_plugin"], "mechanism": MECHANISM, "likelihood": {"kind": "student"}})


def test_a_method_of_ones_own_is_asked_for_by_a_config(folder: Path) -> None:
    (folder / "prior_plugin.py").write_text(example("A method"))
    content = {
        "plugins": ["prior_plugin"],
        "mechanism": MECHANISM,
        "inference": {"method": "prior", **SMALL},
        "run": {"dir": "run", "executor": "serial"},
    }
    config = build(FitConfig, content)
    (result,) = fit(config, data=[levels(0.0)]).results
    assert result.method == "prior"
    kept = load_fit(next((folder / "run" / "fits").glob("*.npz")))
    np.testing.assert_allclose(kept.predict([1.0, 2.0]).force.mean, result.predict([1.0, 2.0]).force.mean, rtol=1e-9)
    free = [one for one in result.estimates if one.kind == "mechanism"]
    assert max(abs(one.shrinkage) for one in free) < 0.6, "nothing was learned"
    assert build(FitConfig, config.model_dump(mode="json")) == config
    with pytest.raises(UsageError, match=r"Fields are not fitted by the method 'prior'\. Use one of auto, collapsed"):
        build(FitConfig, {**content, "mechanism": {"kind": "reaction_diffusion"}, "inference": {"method": "prior"}})


def test_a_method_that_no_plugin_brings_is_unknown(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"'inference\.method' should be 'auto', .* or 'laplace', not 'prior'"):
        build(FitConfig, {"mechanism": MECHANISM, "inference": {"method": "prior"}})
    with pytest.raises(UsageError, match=r"Series are not fitted by the method 'laplace'\. Use one of auto, collapsed"):
        build(FitConfig, {"mechanism": MECHANISM, "inference": {"method": "laplace"}})


def test_a_run_knows_the_code_of_ones_own_likelihood_and_method(folder: Path) -> None:
    for section, name in (("A likelihood", "student"), ("A method", "prior")):
        (folder / f"{name}_plugin.py").write_text(example(section))
    content = {"mechanism": MECHANISM, "plugins": ["student_plugin", "prior_plugin"]}
    shipped = identity(build(FitConfig, content))
    assert not {"equation", "likelihood", "method"} & shipped.keys()
    own = build(FitConfig, {**content, "likelihood": {"kind": "student"}, "inference": {"method": "prior"}})
    before = identity(own)
    (folder / "prior_plugin.py").write_text(example("A method").replace("FEATURES = 32, 32", "FEATURES = 8, 8"))
    assert identity(own)["likelihood"] == before["likelihood"]
    assert identity(own)["method"] != before["method"]


def test_a_mechanism_of_ones_own_is_simulated_and_fitted_by_configs(folder: Path) -> None:
    (folder / "leaky_plugin.py").write_text(example("A mechanism"))
    tank = {"plugins": ["leaky_plugin"], "mechanism": {"kind": "leaky_tank", "outputs": ["level"]}}
    (data,) = simulate_from(build(SimulateConfig, {**tank, "instances": 1, "points": 24}))
    config = build(FitConfig, {**tank, "inference": SMALL, "run": {"dir": "run", "executor": "serial"}})
    (result,) = fit(config, data=[data]).results
    assert result.method == "collapsed", "it is found to be linear"
    assert result.force_names == ("inflow",)
    assert data.truth is not None
    assert data.truth.force is not None
    inflow = result.predict(data.truth.times).force.mean[0]
    assert np.corrcoef(inflow, data.truth.force[0])[0, 1] > 0.9
    kept = load_fit(next((folder / "run" / "fits").glob("*.npz")))
    assert kept.posterior.model.mechanism.options.kind == "leaky_tank"
    assert build(FitConfig, config.model_dump(mode="json")) == config


def test_a_reader_of_ones_own_reads_the_data_of_a_config(folder: Path) -> None:
    (folder / "tsv_plugin.py").write_text(example("A reader"))
    one = levels(0.0)
    rows = [
        [f"{t:g}", *(f"{value:.6f}" for value in values)] for t, *values in zip(one.times, *one.values, strict=True)
    ]
    for mark, name in (("\t", "levels.tsv"), (",", "levels.csv")):
        lines = [mark.join(row) for row in (["hours", *one.outputs], *rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    content = {
        "mechanism": MECHANISM,
        "inference": SMALL,
        "data": {"path": "levels.tsv", "columns": {"time": "hours", "values": ["a", "b"]}},
    }
    with pytest.raises(UsageError, match=r"Files that end in '\.tsv' are not known"):
        fit(build(FitConfig, content))
    content["plugins"] = ["tsv_plugin"]
    (own,) = fit(build(FitConfig, content)).results
    (shipped,) = fit(build(FitConfig, content | {"data": content["data"] | {"path": "levels.csv"}})).results
    assert own.id == "levels"
    np.testing.assert_array_equal(own.grid.force.mean, shipped.grid.force.mean)


def test_one_ending_has_one_reader(folder: Path) -> None:
    (folder / "other_plugin.py").write_text(example("A reader").replace('".tsv"', '".tsv", ".csv"'))
    with pytest.raises(UsageError, match=r"There is a reader of \.csv files already\. Register it for another ending"):
        build(FitConfig, {"plugins": ["other_plugin"], "mechanism": MECHANISM})
    assert sorted(base.FORMATS) == [".csv", ".csv.gz", ".npz", ".parquet"]


OWN = {
    "A mechanism": ("test_mechanism", "leaky"),
    "A likelihood": ("test_likelihood", "student"),
    "A method": ("test_method", "prior"),
    "A reader": ("test_reader", ".tsv"),
    "A time scheme": ("test_scheme", "backward_euler"),
}
"""By the section that shows it: the suite, and the name under which it stands there."""


@pytest.mark.slow
def test_what_is_ones_own_is_put_through_the_suites(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    for section, (name, word) in OWN.items():
        plugin = folder / f"{word.strip('.')}_plugin.py"
        plugin.write_text(example(section))
        command += [f"tests/contracts/{name}.py", "--plugin", str(plugin)]
    command += ["-k", " or ".join(word.strip(".") for _, word in OWN.values())]
    done = subprocess.run(command, cwd=PROJECT, env=import_environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, word in OWN.values():
        assert len(re.findall(rf"/{name}\.py::\w+\[.*{re.escape(word)}.*\] PASSED", done.stdout)) > 5, done.stdout
