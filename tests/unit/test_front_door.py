"""The front door in Python: a model of its parts, data of a program's own, results, and the same as a config file."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

import distlfm as lfm
from distlfm.config import build
from distlfm.errors import DataError, DistlfmWarning, UsageError
from distlfm.inference.model import ForceConfig
from distlfm.runs.settings import FitConfig

PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((PROJECT / "configs" / "fit").glob("*.yaml"))

BLOCK = """
import distlfm as lfm
model = lfm.Model(
    lfm.Transcription(["p21", "mdm2"], fixed={"sensitivity": {"p21": 1.0}}),
    force=lfm.RBF(lengthscale=lfm.LogNormal(2.0, 0.3)),
    likelihood=lfm.Gaussian(),
)
data = lfm.read_frame(df, time="hours", output="gene", value="level", instance="sample")
run = model.fit(data)                      # out="runs/x", executor="ray" where wanted
result = run[0]
result                                     # a short repr, and a picture with a table in a notebook
result.plot(); result.to_xarray(); result.parameters.to_frame(); result.draws(200)
"""


def table(samples: int = 2, points: int = 7) -> pd.DataFrame:
    """Two genes of a few samples, a row for each value."""
    random, hours = np.random.default_rng(0), np.linspace(0.0, 12.0, points)
    rows = [
        {"sample": f"sample-{i + 1}", "gene": gene, "hours": hour, "level": size * (1 + 0.5 * np.sin(hour / 2 + i))}
        for i in range(samples)
        for gene, size in (("p21", 1.0), ("mdm2", 0.6))
        for hour in hours
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(level=frame["level"] + 0.03 * random.standard_normal(len(frame)))


@pytest.fixture(scope="module")
def done() -> dict[str, object]:
    names: dict[str, object] = {"df": table()}
    exec(BLOCK, names)
    plt.close("all")
    return names


def test_the_block_of_the_documents_runs_as_it_is_written(done: dict[str, object]) -> None:
    run, result = done["run"], done["result"]
    assert isinstance(run, lfm.FitRun)
    assert isinstance(result, lfm.Answer)
    assert len(run) == 2
    assert [one.id for one in run] == ["sample-1", "sample-2"]
    assert run["sample-2"].id == "sample-2"
    assert run[-1].id == "sample-2"
    assert len(repr(run)) < 200
    assert len(repr(result)) < 300
    assert result.outputs.mean.shape == (2, 100)
    assert list(run.to_frame().index) == ["sample-1", "sample-2"]
    with pytest.raises(UsageError, match="Did you mean 'sample-2'"):
        _ = run["sample-22"]


def test_draws_hold_the_parameters_that_made_them(done: dict[str, object]) -> None:
    """The outputs of a draw solve the equation with its own force and its own parameters."""
    result = done["result"]
    assert isinstance(result, lfm.FitResult)
    times = np.linspace(0, 12, 481)
    for draw in result.draws(4, times):
        basal, decay = draw.parameters["basal[p21]"], draw.parameters["decay[p21]"]
        slope = np.gradient(draw["p21"], times)
        off = slope - (basal + draw["force"] - decay * draw["p21"])
        assert np.abs(off[5:-5]).max() < 0.01 * np.abs(slope).max()
    with pytest.raises(UsageError, match="number of draws"):
        result.draws([0.0, 1.0])  # type: ignore[arg-type]


def test_functionals_have_intervals(done: dict[str, object]) -> None:
    result = done["result"]
    assert isinstance(result, lfm.FitResult)
    area = result.summarise(lfm.Integral("p21", 2.0, 6.0), count=60)
    assert area.lower95 < area.lower68 < area.mean < area.upper68 < area.upper95
    assert area.values.shape == (60,)
    peak, height = result.summarise(lfm.PeakTime("p21"), 60), result.summarise(lfm.PeakHeight("p21"), 60)
    assert 0 <= peak.mean <= 12
    assert height.mean == pytest.approx(result.summarise(lambda draw: draw["p21"].max(), 60).mean)
    assert result.summarise(lfm.Exceedance(-100.0), 10).mean == pytest.approx(12.0)
    assert result.summarise(lfm.Exceedance(100.0), 10).mean == 0.0
    assert result.summarise(lambda draw: draw.force, 10).mean.shape == (1, 100)
    with pytest.raises(UsageError, match="not within the times"):
        result.summarise(lfm.Integral(stop=40.0), 5)
    with pytest.raises(UsageError, match="no interval"):
        result.summarise(lambda draw: "much", 5)


def test_exceedance_is_exact_for_a_straight_line() -> None:
    times = np.linspace(0, 10, 5)
    draw = lfm.Draw(times, times[None] - 4.2, np.zeros((0, 5)), {}, ("force",), ())
    assert lfm.Exceedance(0.0)(draw) == pytest.approx(5.8)
    assert lfm.Exceedance(0.0, stop=5.2)(draw) == pytest.approx(1.0)
    assert lfm.Integral(start=4.2, stop=6.2)(draw) == pytest.approx(2.0)


# ---- the model and its file ------------------------------------------------------------------------------------------


def test_a_model_is_its_config(done: dict[str, object], tmp_path: Path) -> None:
    model = done["model"]
    assert isinstance(model, lfm.Model)
    path = model.save(tmp_path / "model.yaml")
    assert lfm.Model.from_config(path) == model
    assert lfm.Model.from_config(str(path)).to_config() == model.to_config() == yaml.safe_load(path.read_text())
    assert model.to_config()["force"]["priors"]["lengthscale"] == {"kind": "lognormal", "median": 2.0, "spread": 0.3}
    assert len(repr(model)) < 200


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_goes_through_a_model(path: Path) -> None:
    model = lfm.Model.from_config(path)
    again = lfm.Model.from_config(model.to_config())
    assert again == model
    assert build(FitConfig, yaml.safe_load(path.read_text())) == again.config


def test_fit_takes_a_mapping_and_refuses_what_is_no_config(done: dict[str, object]) -> None:
    model, data, result = done["model"], done["data"], done["result"]
    assert isinstance(model, lfm.Model)
    run = lfm.fit(model.to_config(), data)  # type: ignore[arg-type]
    np.testing.assert_array_equal(run[0].force.mean, result.force.mean)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"model\.fit"):
        lfm.fit(model, data)  # type: ignore[arg-type]


def test_every_verb_takes_a_mapping_with_overrides(tmp_path: Path) -> None:
    content = {"mechanism": {"kind": "transcription"}, "num_outputs": 1, "points": 5, "run": {"executor": "serial"}}
    store = lfm.generate({"verb": "generate", **content}, ["instances=2", f"run.dir={tmp_path / 'store'}"])
    assert store.spec.instances == 2
    with pytest.raises(UsageError, match="no data to probe"):
        lfm.estimate({"verb": "fit", "mechanism": {"kind": "transcription"}})
    with pytest.raises(UsageError, match="Unknown key 'lop'"):
        lfm.train({"verb": "train", "lop": {}})


@pytest.mark.parametrize("verb", [lfm.fit, lfm.estimate, lfm.generate, lfm.train])
def test_every_verb_refuses_what_is_no_config(verb: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match=r"The config is of type int\. Give the path of a config file or a mapping"):
        verb(5)


def test_what_is_no_data_and_no_fit_is_refused(tmp_path: Path) -> None:
    for data, words in ((5, "The data are of type int"), ([1, 2], "list, of no instances"), (table(), "read_frame")):
        with pytest.raises(UsageError, match=words):
            lfm.fit({"mechanism": {"kind": "transcription"}}, data)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not a fit, but of type str\. Give one of a run"):
        lfm.save_fit("x", tmp_path / "a.npz")  # type: ignore[arg-type]
    assert not (tmp_path / "a.npz").exists()


def test_a_run_in_a_folder_is_read_from_it(done: dict[str, object], tmp_path: Path) -> None:
    model, data, result = done["model"], done["data"], done["result"]
    assert isinstance(model, lfm.Model)
    run = model.fit(data, out=tmp_path / "run", executor="serial")  # type: ignore[arg-type]
    assert (tmp_path / "run" / "report.html").is_file()
    np.testing.assert_allclose(run["sample-1"].force.mean, result.force.mean)  # type: ignore[attr-defined]
    assert str(tmp_path / "run") in repr(run)
    lfm.save_fit(run[0], str(tmp_path / "one.npz"))
    assert lfm.load_fit(str(tmp_path / "one.npz")).id == "sample-1"
    with pytest.raises(UsageError, match="out="):
        model.fit(data, executor="ray")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("force", "expected"),
    [
        (lfm.RBF(1.5, 2.0), {"kernel": {"kind": "rbf"}, "fixed": {"lengthscale": 1.5, "variance": 2.0}}),
        (
            lfm.Matern52({"t": lfm.LogNormal(1.0), "x": 0.2}),
            {
                "kernel": {"kind": "matern52"},
                "priors": {"lengthscale[t]": {"kind": "lognormal", "median": 1.0}},
                "fixed": {"lengthscale": {"x": 0.2}},
            },
        ),
        (
            lfm.Sum(lfm.RBF(lfm.Uniform(1, 2)), lfm.Periodic(24.0), variance=lfm.HalfNormal(1.0)),
            {
                "kernel": {"kind": "sum", "parts": [{"kind": "rbf"}, {"kind": "periodic"}]},
                "priors": {
                    "0.lengthscale": {"kind": "uniform", "low": 1, "high": 2},
                    "variance": {"kind": "halfnormal", "scale": 1.0},
                },
                "fixed": {"period_length": 24.0},
            },
        ),
    ],
)
def test_kernels_are_sections_of_a_config(force: lfm.Kernel, expected: dict[str, object]) -> None:
    assert force.to_config().model_dump() == build(ForceConfig, expected).model_dump()


def test_kernels_are_added_and_multiplied() -> None:
    assert (lfm.RBF() + lfm.Periodic()).to_config().kernel.kind == "sum"
    assert (lfm.RBF() * lfm.Periodic()).to_config().kernel.kind == "product"
    with pytest.raises(UsageError, match="share one variance"):
        lfm.RBF(variance=1.0) + lfm.Periodic()


def test_the_parts_of_a_model_are_refused_with_a_sentence() -> None:
    calls = {
        "Did you mean 'fixed'": lambda: lfm.Transcription(["a"], fxed={}),
        "neither a prior nor a number": lambda: lfm.RBF("long").to_config(),  # type: ignore[arg-type]
        "greater than 0": lambda: lfm.LogNormal(-2.0),
        "takes 2 numbers": lambda: lfm.LogNormal(1, 2, 3),  # type: ignore[call-arg]
        "needs 'median'": lambda: lfm.LogNormal(),  # type: ignore[call-arg]
        "Give an equation with its outputs": lambda: lfm.Model(lfm.Transcription),  # type: ignore[arg-type]
        "Give a kernel": lambda: lfm.Model(lfm.Transcription(), force=3),  # type: ignore[arg-type]
        "has no parameter 'sensitivty'": lambda: lfm.Model(lfm.Transcription(["a"], fixed={"sensitivty": 1.0})),
        "read_frame": lambda: lfm.Model(lfm.Transcription()).fit(table()),  # type: ignore[arg-type]
        "of no instances": lambda: lfm.Model(lfm.Transcription()).fit([]),
    }
    for words, call in calls.items():
        with pytest.raises(UsageError, match=re.escape(words)):
            call()


def test_likelihoods_are_sections_of_a_config() -> None:
    assert lfm.Gaussian(lfm.LogNormal(0.05, 0.5)).to_config().prior == lfm.LogNormal(0.05, 0.5)
    assert lfm.Gaussian("given").to_config().noise == "given"
    assert lfm.NegativeBinomial(lfm.LogNormal(0.2)).to_config().kind == "negative_binomial"
    assert lfm.Poisson().to_config().kind == "poisson"


# ---- data of a program's own -----------------------------------------------------------------------------------------


def test_long_and_wide_tables_are_the_same_instances() -> None:
    long = table()
    wide = long.pivot_table(index=["sample", "hours"], columns="gene", values="level").reset_index()
    one = lfm.read_frame(long, time="hours", output="gene", value="level", instance="sample")
    other = lfm.read_frame(wide, time="hours", value=["p21", "mdm2"], instance="sample", units={"time": "h"})
    for left, right in zip(one, other, strict=True):
        assert left.outputs == right.outputs
        np.testing.assert_array_equal(left.values, right.values)
    assert other["sample-1"].metadata["time_unit"] == "h"
    indexed = lfm.read_frame(wide.set_index(["sample", "hours"]), time="hours", value="p21", instance="sample")
    np.testing.assert_array_equal(indexed[0].values[0], one[0].values[0])


def test_a_table_without_instances_is_one_and_missing_values_are_not_observed() -> None:
    frame = pd.DataFrame({"t": [0, 1, 2], "y": [1.0, np.nan, 3.0]})
    (only,) = lfm.read_frame(frame, time="t", value="y")
    assert only.mask.tolist() == [[True, False, True]]
    numbered = frame.assign(who=[7, 7, 7])
    assert lfm.read_frame(numbered, time="t", value="y", instance="who")[0].id == "7"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"t": ["a", "b", "c"]}, "'a' is not a number"),
        ({"t": pd.date_range("2026-01-01", periods=3)}, "Count from a start"),
        ({"y": [np.nan] * 3}, "every cell is empty"),
        ({"y": [1.0, np.inf, 2.0]}, "'inf' is not a finite number"),
        ({"t": [0, 0, 1]}, "set duplicates to 'average'"),
        ({"y": [1.0, "high", 2.0]}, "'high' is not a number"),
    ],
)
def test_bad_tables_are_refused_with_the_cause_and_the_fix(change: dict[str, object], words: str) -> None:
    frame = pd.DataFrame({"t": [0, 1, 2], "y": [1.0, 2.0, 3.0]}).assign(**change)
    with pytest.raises(DataError, match=re.escape(words)):
        lfm.read_frame(frame, time="t", value="y")


def test_columns_that_are_not_there_and_what_is_no_table() -> None:
    frame = pd.DataFrame({"hours": [0, 1], "level": [1.0, 2.0]})
    with pytest.raises(DataError, match="Did you mean 'hours'"):
        lfm.read_frame(frame, time="hour", value="level")
    with pytest.raises(UsageError, match="pandas DataFrame"):
        lfm.read_frame(frame.to_dict(), time="hours", value="level")
    with pytest.raises(UsageError, match="Known are: time, value, position"):
        lfm.read_frame(frame, time="hours", value="level", units={"tme": "h"})


def test_one_bad_instance_is_set_aside_with_a_warning() -> None:
    frame = pd.concat([table(), pd.DataFrame([{"sample": "bad", "gene": "p21", "hours": 0.0, "level": 1.0}])])
    with pytest.warns(DistlfmWarning, match="Only one time point"):
        report = lfm.read_frame(frame, time="hours", output="gene", value="level", instance="sample")
    assert [one.id for one in report] == ["sample-1", "sample-2"]
    assert "1 set aside" in repr(report)


def test_doubtful_values_of_a_table_are_told() -> None:
    frame = table(samples=1, points=20)
    frame.loc[[3, 5, 8], "level"] = -9999.0
    with pytest.warns(DistlfmWarning, match="-9999"):
        lfm.read_frame(frame, time="hours", output="gene", value="level")


def test_labelled_arrays_are_read() -> None:
    hours, values = np.linspace(0, 4, 5), np.random.default_rng(0).random((2, 3, 5))
    array = xr.DataArray(
        values,
        dims=("sample", "gene", "time"),
        coords={"sample": ["A", "B"], "gene": ["a", "b", "c"], "time": hours},
        name="level",
    )
    report = lfm.read_xarray(array, output="gene", instance="sample")
    assert [one.id for one in report] == ["A", "B"]
    np.testing.assert_array_equal(report["B"].values, values[1])
    data = xr.Dataset({"a": ("time", values[0, 0]), "b": ("time", values[0, 1])}, {"time": hours})
    (one,) = lfm.read_xarray(data)
    assert one.outputs == ("a", "b")
    places = xr.DataArray(values[0], dims=("x", "time"), coords={"x": [0.0, 0.5, 1.0], "time": hours}, name="y")
    (field,) = lfm.read_xarray(places, positions="x")
    assert field.positions is not None
    assert field.positions.shape == (15, 1)
    with pytest.raises(UsageError, match="a dimension 'gene' that has no part"):
        lfm.read_xarray(array, instance="sample")
    with pytest.raises(UsageError, match="no dimension or coordinate 'hour'"):
        lfm.read_xarray(array, time="hour", output="gene", instance="sample")
    with pytest.raises(UsageError, match="read_frame"):
        lfm.read_xarray(table())


def test_instances_are_made_of_lists() -> None:
    one = lfm.Instance("A", ["p21", "mdm2"], [0, 1, 2], [[1, 2, 3], [1, float("nan"), 2]])
    assert one.mask.tolist() == [[True] * 3, [True, False, True]]
    assert one.values[1, 1] == 0.0
    assert lfm.Instance("A", "p21", [0, 1], [1, 2]).values.shape == (1, 2)
    assert lfm.Instance("A", ["p21"], [0, 1], [[1, 2]], [[1, 0]]).mask.dtype == np.bool_
    wrong = {
        "is not an array of numbers": lambda: lfm.Instance("A", ["p21"], ["a", "b"], [[1, 2]]),
        "not an array of numbers": lambda: lfm.Instance("A", ["p21"], [0, 1], [[1, 2], [3]]),
        "times has shape": lambda: lfm.Instance("A", ["p21"], [[0, 1]], [[1, 2]]),
        "values has shape": lambda: lfm.Instance("A", ["p21"], [0, 1], [1, 2]),
        "mask holds something else": lambda: lfm.Instance("A", ["p21"], [0, 1], [[1, 2]], [[0, 2]]),
        "not finite": lambda: lfm.Instance("A", ["p21"], [0, 1], [[1, float("inf")]]),
        "Sort the times": lambda: lfm.Instance("A", ["p21"], [1, 0], [[1, 2]]),
    }
    for words, call in wrong.items():
        with pytest.raises(DataError, match=words):
            call()


# ---- the module ------------------------------------------------------------------------------------------------------


def test_every_name_is_shown_and_can_be_had() -> None:
    assert set(lfm.__all__) <= set(dir(lfm))
    for name in lfm.__all__:
        assert getattr(lfm, name) is not None
    others = set(dir(lfm)) - set(lfm.__all__)
    assert [name for name in others if not name.startswith("__") and f"distlfm.{name}" not in sys.modules] == []
    with pytest.raises(AttributeError, match="no attribute 'Modle'"):
        _ = lfm.Modle  # type: ignore[attr-defined]


def test_instances_are_simulated_by_the_model_alone() -> None:
    """`distlfm.simulation.instances.simulate` takes a model of inference, and not `lfm.Model`."""
    assert not hasattr(lfm, "simulate")
    (one,) = lfm.Model(lfm.Transcription(["p21"], fixed={"sensitivity": 1.0})).simulate(points=5)
    assert one.outputs == ("p21",)
    assert one.truth is not None


def test_an_equation_is_shown_as_it_is_written() -> None:
    assert repr(lfm.Transcription(["p21", "mdm2"])) == "Transcription(['p21', 'mdm2'])"
    assert repr(lfm.ReactionDiffusion()) == "ReactionDiffusion(['output'])"
    assert len(repr(lfm.Transcription([f"gene {i}" for i in range(1000)]))) < 100
    for made in (lfm.AdvectionDiffusion, lfm.FisherKpp, lfm.ReactionDiffusion):
        assert getattr(importlib.import_module(made.__module__), made.__name__) is made


def test_importing_it_loads_nothing_large() -> None:
    program = (
        "import sys, distlfm; dir(distlfm);"
        "print([name for name in ('torch', 'pandas', 'xarray', 'matplotlib', 'pyarrow') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "[]\n"
