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


# ---- what newcomers write --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy() -> tuple[lfm.Model, lfm.FitRun]:
    """A model, and its fit of two instances, which takes a second."""
    model = lfm.Model(
        lfm.Transcription(["p21"], fixed={"sensitivity": 1.0}),
        inference={"posterior": {"stages": [8], "draws": 8}, "grid_points": 9},
    )
    hours = np.linspace(0, 6, 7)
    truth = lfm.Truth(hours, force=np.cos(hours)[None])
    one = lfm.Instance("s1", "p21", hours, 1 + 0.4 * np.sin(hours), truth=truth)
    return model, model.fit([one, lfm.Instance(2, "p21", hours, np.ma.masked_less(1 + 0.4 * np.cos(hours), 0.7))])  # type: ignore[arg-type]


def test_instances_are_found_by_their_ids_and_a_number_too_many_is_refused(toy: tuple[lfm.Model, lfm.FitRun]) -> None:
    _, run = toy
    report = lfm.read_frame(table(), time="hours", output="gene", value="level", instance="sample")
    assert ("s1" in run, "2" in run, "s3" in run, run[0] in run, 7 in run) == (True, True, False, True, False)
    assert ("sample-1" in report, "s3" in report, report[1] in report) == (True, False, True)
    assert (run.ids, report.ids) == (["s1", "2"], ["sample-1", "sample-2"])
    for some in (run, report):
        with pytest.raises(IndexError, match=r"no instance number 7: there are 2\. Count from 0") as caught:
            some[7]
        assert isinstance(caught.value, UsageError)
        assert len(list(some)) == len(some[:7]) == 2


def test_what_a_notebook_shows_is_short(toy: tuple[lfm.Model, lfm.FitRun]) -> None:
    model, run = toy
    result = run[0]
    for shown in (result.force, result.grid, result.at_data, result.instance.truth, result.draws(4), run, model):
        assert len(repr(shown)) < 150
    assert "(1, 9)" in repr(result.force)
    assert "converged" in run._repr_html_()
    assert "sensitivity: 1.0" in model._repr_html_()
    with pytest.warns(DistlfmWarning):
        report = lfm.read_frame(table().assign(level=[-999.0, -999.0, *[1.0] * 26]), **LONG)
    assert "-999" in report._repr_html_()


LONG = {"time": "hours", "output": "gene", "value": "level", "instance": "sample"}


def test_draws_are_had_by_name_and_as_a_table(toy: tuple[lfm.Model, lfm.FitRun]) -> None:
    draws = toy[1][0].draws(6)
    assert draws["p21"].shape == (6, 9)
    np.testing.assert_array_equal(draws["p21"][3], draws[3]["p21"])
    assert draws["decay"][3] == draws[3]["decay"] == draws.parameters["decay"][3]
    assert len(draws[draws["decay"] > np.median(draws["decay"])]) == 3
    with pytest.raises(UsageError, match=r"no force, output or parameter 'dekay'\. Did you mean 'decay'"):
        draws["dekay"]
    frame = draws.to_frame()
    assert list(frame.columns) == ["kind", "name", "draw", "time", "value"]
    some = frame[(frame["name"] == "p21") & (frame["draw"] == 4)]
    np.testing.assert_array_equal(some["value"], draws[4]["p21"])
    np.testing.assert_array_equal(some["time"], draws.times)


def test_further_functionals_of_the_same_draws_do_not_draw_again(
    toy: tuple[lfm.Model, lfm.FitRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, asked = toy[1][1], list[object]()
    draw = lfm.FitResult.draws
    monkeypatch.setattr(lfm.FitResult, "draws", lambda self, *given: asked.append(given) or draw(self, *given))

    def doubled(one: lfm.Draw) -> float:
        one.force[:] *= 2  # what a functional writes on is its own
        return float(one.force.max())

    first = result.summarise(doubled, 5)
    assert result.summarise(doubled, 5).values.tolist() == first.values.tolist()
    assert result.summarise(lfm.PeakHeight(), 5).values.tolist() == (first.values / 2).tolist()
    assert len(asked) == 1
    result.summarise(doubled, 5, seed=1)
    result.summarise(doubled, 5, times=[0, 1, 2])
    toy[1][0].summarise(doubled, 5)
    assert len(asked) == 4


def test_curves_are_drawn_into_axes_that_are_given(toy: tuple[lfm.Model, lfm.FitRun]) -> None:
    result = toy[1][0]
    figure, axes = plt.subplots(2, 2)
    assert result.plot("p21", ax=axes[0, 1]).tolist() == [axes[0, 1]]
    assert [one.get_title() for one in result.plot(ax=axes)] == ["force", "p21"]
    assert [axis.get_title() for axis in axes.flat] == ["force", "p21", "", ""]
    for wrong in (axes[0, 0], figure, "here"):
        with pytest.raises(UsageError, match=r"ax is not axes of matplotlib for each of force, p21\. Choose"):
            result.plot(ax=wrong)
    plt.close(figure)


def test_calls_that_cannot_be_meant_are_refused_in_their_own_words(toy: tuple[lfm.Model, lfm.FitRun]) -> None:
    model, run = toy
    result, one = run[0], run[0].instance
    frame = pd.DataFrame({"t": pd.date_range("2026-01-01", periods=3), "y": [1.0, 2.0, 3.0]})
    assert result.predict(3.0).force.mean.shape == (1, 1)
    calls: dict[str, Callable[[], object]] = {
        "list of finite numbers": lambda: result.predict(frame["t"]),
        "'peak', and not a function of a draw": lambda: result.summarise("peak"),  # type: ignore[arg-type]
        "Give one at a time": lambda: result.summarise([lfm.PeakTime()]),  # type: ignore[arg-type]
        "gives NoneType": lambda: result.summarise(lambda draw: None, 3),
        "no finite number for 3 of 3 draws": lambda: result.summarise(lambda draw: float("nan"), 3),
        "Two instances have the name 's1'": lambda: model.fit([one, one]),
        "workers share a run that is kept": lambda: model.fit(one, workers=2),
        "takes no list of them. Give points=24": lambda: model.simulate(times=[0, 1]),
        "Unknown key 'inference.restart'": lambda: model.fit(one, overrides={"inference.restart": 3}),
        "Unknown key 'inference.restarty'": lambda: model.fit(one, overrides="inference.restarty=3"),
        "Transcription is given 5": lambda: lfm.Transcription(5),
        "is given 'p21', 'mdm2'. Give the names": lambda: lfm.Transcription("p21", "mdm2"),
        "lengthscale is -2, which is not a positive number": lambda: lfm.RBF(-2).to_config(),
        "prior is the number 0.05, and it takes a prior. Write LogNormal(0.05": lambda: lfm.Gaussian(0.05),  # type: ignore[arg-type]
        "data['time'] = (data['time'] - data['time'].min())": lambda: lfm.read_xarray(
            xr.DataArray([1.0, 2.0, 3.0], {"time": frame["t"].to_numpy()}, dims="time")
        ),
        "The seed is None": lambda: result.draws(3, seed=None),  # type: ignore[arg-type]
        "Give a number first: Exceedance(1.0, 'p21')": lambda: lfm.Exceedance("p21"),  # type: ignore[arg-type]
        "no parameter 0": lambda: result.parameters[0],  # type: ignore[index]
        "The reporter is of type": lambda: model.fit(one, reporter=print),  # type: ignore[arg-type]
        "0 is not the name of a column": lambda: lfm.read_frame(frame, time=0, value="y"),  # type: ignore[arg-type]
        "value is not finite: inf, of p21 at 1": lambda: lfm.Instance("A", "p21", [0, 1], [1, np.inf]),
    }
    for words, call in calls.items():
        with pytest.raises((UsageError, DataError), match=re.escape(words)):
            call()


def test_instances_may_come_from_a_generator_and_a_model_from_another(toy: tuple[lfm.Model, lfm.FitRun]) -> None:
    model, run = toy
    again = model.fit(result.instance for result in run)  # type: ignore[arg-type]
    np.testing.assert_array_equal(again["2"].force.mean, run["2"].force.mean)
    assert lfm.Model.from_config(model, {"run.seed": 3}).config.run.seed == 3
    assert lfm.Model.from_config(model) == model


def test_numbers_of_numpy_are_numbers() -> None:
    for two in (np.float32(2), np.int64(2), np.float64(2)):
        assert lfm.RBF(two).to_config().fixed == {"lengthscale": 2.0}


def test_dates_become_times_by_the_fix_that_is_told() -> None:
    data = xr.DataArray([1.0, 2.0, 3.0], {"time": pd.date_range("2026-01-01", periods=3, freq="h")}, dims="time")
    with pytest.raises(DataError, match="dates or durations") as caught:
        lfm.read_xarray(data)
    exec(
        caught.value.problem.fix.removeprefix("Count from a start, in numbers: ").removesuffix("."),
        {"pandas": pd, "data": data},
    )
    assert lfm.read_xarray(data)[0].times.tolist() == [0.0, 1.0, 2.0]


WRITES = """
import sys
import distlfm as lfm
import own_euler, own_prior, own_student
one = lfm.Model(lfm.Transcription(["a"]), likelihood={"kind": "student"}, inference={"method": "prior"})
assert lfm.Model(lfm.Transcription(["a"]), likelihood=own_student.Student, inference={"method": "prior"}) == one
other = lfm.Model(lfm.ReactionDiffusion(scheme="backward_euler"))
for model, path in zip((one, other), sys.argv[1:], strict=True):
    model.save(path)
print([one, other])
"""
READS = "import sys; import distlfm as lfm; print([lfm.Model.from_config(path) for path in sys.argv[1:]])"


@pytest.mark.slow
def test_a_model_of_ones_own_parts_is_read_by_a_fresh_process(tmp_path: Path) -> None:
    """Its file names the modules of the likelihood, the method and the scheme, and not that of the equation alone."""
    texts = re.findall(r"```python\n(.*?)```", (PROJECT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    words = {"own_student": "@register_likelihood", "own_prior": "@register_method", "own_euler": "register(Scheme"}
    for name, word in words.items():
        (tmp_path / f"{name}.py").write_text(next(text for text in texts if word in text))
    paths = [str(tmp_path / name) for name in ("one.yaml", "other.yaml")]
    inside = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{WRITES}"
    # In processes of their own: what is registered in this one would be there for all tests that follow.
    written, read = (
        subprocess.run(
            [sys.executable, "-c", program, *paths], capture_output=True, text=True, timeout=120, check=True, cwd="/"
        ).stdout
        for program in (inside, READS)
    )
    assert written == read
    assert "student" in read
