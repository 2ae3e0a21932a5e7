"""What every answer offers, whoever gives it: a fit of a series, of counts by the solver, of a field; an operator."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pytest

import distlfm as lfm
from distlfm.answer import Answer
from distlfm.errors import DistlfmError, UsageError
from distlfm.lfo import Examples, LoopConfig, OperatorConfig, SplitConfig, Training, TrainSettings, finish
from distlfm.store import Store
from tests.support.field_problems import Line, line
from tests.support.lfo_toy import make_store

COLUMNS = ("mean", "sd", "lower68", "upper68", "lower95", "upper95")
SMALL = OperatorConfig(layers=2, width=12, modes=4, points=17, head=16, pooled=6, regressions=2, regressors=3)


@cache
def of_a_linear_fit() -> Answer:
    times = np.linspace(0, 8, 9)
    values = [1 + 0.4 * np.sin(times), 0.8 + 0.3 * np.sin(times - 0.3)]
    instance = lfm.Instance("one", ["p21", "mdm2"], times, values)
    model = lfm.Model(lfm.Transcription(["p21", "mdm2"], fixed={"sensitivity": {"p21": 1.0}}))
    return model.fit(instance)[0]


@cache
def of_a_fit_through_the_solver() -> Answer:
    instance = lfm.Instance("counted", "p21", np.arange(6.0), [2, 3, 5, 4, 3, 2])
    model = lfm.Model(
        lfm.Transcription(["p21"], fixed={"sensitivity": 1.0}),
        likelihood=lfm.Poisson(),
        inference={"method": "preestimate"},
    )
    return model.fit(instance)[0]


@cache
def of_a_fit_of_a_field() -> Answer:
    times, places = np.repeat(np.linspace(0, 1, 5), 3), np.tile([0.2, 0.5, 0.8], 5)
    tube = lfm.Instance("tube", "level", times, times * np.sin(np.pi * places), positions=places[:, None])
    few = {"refinements": 0, "num_times": 4, "num_places": 4, "shown_times": 4, "shown_places": 5}
    model = lfm.Model(
        lfm.ReactionDiffusion(fixed={"sensitivity": 1.0, "decay": 0.5, "diffusion": 0.05}),
        force=lfm.RBF(lengthscale=lfm.LogNormal(0.4, 0.2)),
        inference={"method": "collapsed", "posterior": {"stages": [4], "draws": 8}, "field": few},
    )
    by_hand = Line(line(np.linspace(0.2, 0.8, 7)), ("sensitivity", "decay", "diffusion"))
    with patch("distlfm.inference.field.settings.meshed", lambda *_: by_hand):
        return model.fit(tube)[0]


@cache
def of_an_operator() -> Answer:
    with TemporaryDirectory() as folder:
        store: Store = make_store(Path(folder) / "store", count=60)
        examples = Examples([store])
        config = TrainSettings(
            operator=SMALL, loop=LoopConfig(epochs=1, batch=16), split=SplitConfig(validation=0.2, calibration=0.3)
        )
        training = Training(config, examples.schema, examples)
        training.run()
        return finish(training)(store.instances(0, 1)[0])


PROJECT = Path(__file__).resolve().parents[2]
IMPLEMENTATIONS = [of_a_linear_fit, of_a_fit_through_the_solver, of_a_fit_of_a_field, of_an_operator]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda make: make.__name__)
def answer(request: pytest.FixtureRequest) -> Answer:
    make: Callable[[], Answer] = request.param
    return make()


def test_no_class_of_answers_is_left_out_here() -> None:
    files = [path for part in ("distlfm", "federated", "launch") for path in (PROJECT / part).rglob("*.py")]
    found = {name for path in files for name in re.findall(r"^class (\w+)\(Answer\b", path.read_text(), re.MULTILINE)}
    assert found == {type(make()).__name__ for make in IMPLEMENTATIONS}


def test_bands_have_the_shapes_that_their_names_say(answer: Answer) -> None:
    points = len(answer.times)
    assert answer.times.shape == (points,)
    for column in COLUMNS:
        assert getattr(answer.force, column).shape == (len(answer.force_names), points)
    assert (answer.force.lower95 <= answer.force.lower68).all()
    assert (answer.force.upper68 <= answer.force.upper95).all()
    if answer.has_outputs:
        assert answer.outputs.mean.shape == (len(answer.output_names), points)


def test_what_cannot_be_told_is_refused_with_what_can(answer: Answer) -> None:
    if not answer.has_outputs:
        with pytest.raises(UsageError, match=r"model\.fit"):
            _ = answer.outputs


def test_parameters_are_a_mapping_and_a_table(answer: Answer) -> None:
    parameters = answer.parameters
    assert list(parameters) == [one.name for one in answer.estimates]
    name = next(iter(parameters))
    frame = parameters.to_frame()
    assert frame.loc[name, "mean"] == parameters[name].mean
    assert {*COLUMNS} <= {*frame.columns}
    with pytest.raises(KeyError, match=r"There is no parameter 'dekay\[p21\]'"):
        _ = parameters["dekay[p21]"]
    assert len(repr(parameters)) < 400


def test_draws_are_joint_or_refused(answer: Answer) -> None:
    if not answer.has_outputs:
        for call in (lambda: answer.draws(12), lambda: answer.summarise(lfm.Integral())):
            with pytest.raises(UsageError, match=r"no joint draws.*model\.fit"):
                call()
        return
    draws = answer.draws(12)
    assert len(draws) == 12
    assert draws.force.shape == (12, len(answer.force_names), len(answer.times))
    assert list(draws.parameters) == list(answer.parameters)
    assert all(values.shape == (12,) for values in draws.parameters.values())
    assert draws[3][answer.output_names[0]].shape == answer.times.shape
    name = answer.output_names[0]
    table = draws.to_frame()
    np.testing.assert_array_equal(table[table["name"] == name]["value"], draws[name].ravel())
    assert len(table) == 12 * len(answer.times) * len(draws.names)
    again = answer.draws(12)
    np.testing.assert_array_equal(draws.outputs, again.outputs)


def test_tables_say_the_same_as_the_bands(answer: Answer) -> None:
    frame, data = answer.to_frame(), answer.to_xarray()
    first = frame[(frame["kind"] == "force") & (frame["name"] == answer.force_names[0])]
    np.testing.assert_array_equal(first["upper95"], answer.force.upper95[0])
    of_one = data["force_mean"].sel(force=answer.force_names[0])
    np.testing.assert_array_equal(of_one.values.ravel(), answer.force.mean[0])
    assert data.attrs["id"] == answer.id
    assert ("outputs_mean" in data) == answer.has_outputs
    assert list(data["parameter"].values) == list(answer.parameters)


def test_a_field_has_places_wherever_a_series_has_times_alone() -> None:
    answer = of_a_fit_of_a_field()
    assert answer.positions is not None
    assert answer.positions.shape == (20, 1)
    assert {"time", "x"} <= {*answer.to_frame().columns}
    data = answer.to_xarray()
    assert data["force_mean"].dims == ("force", "time", "x")
    assert data["observed_x"].dims == ("observation",)
    np.testing.assert_array_equal(data["outputs_sd"].sel(output="level").values.ravel(), answer.outputs.sd[0])
    scattered = answer.draws(4, [0.1, 0.5, 0.9], np.array([[0.3], [0.7], [0.4]])).to_xarray()
    assert scattered["force"].dims == ("draw", "force_name", "point")
    assert scattered["x"].dims == ("point",)
    if importlib.util.find_spec("arviz"):
        assert answer.to_arviz(6).posterior["outputs"].dims[-2:] == ("time", "x")
    axes = answer.plot(["level"])
    assert axes[0].get_ylabel() == "x"
    plt.close(axes[0].figure)


def test_pictures_and_words_are_short_and_whole(answer: Answer) -> None:
    axes = answer.plot()
    assert len(axes) == len(answer.force_names) + len(answer.output_names) * answer.has_outputs
    plt.close(axes[0].figure)
    assert len(repr(answer)) < 600
    assert repr(answer.id) in repr(answer)
    html = answer._repr_html_()
    assert "data:image/png;base64," in html
    assert next(iter(answer.parameters)) in html
    assert answer.plot(answer.force_names[0], ax=axes)[0] is axes[0]
    assert max(len(repr(one)) for one in (answer.force, answer.instance)) < 150
    with pytest.raises(UsageError, match="no force or output 'nothing'"):
        answer.plot(["nothing"])


def test_checkers_are_told_what_plot_and_to_arviz_return() -> None:
    told = [method.__annotations__["return"] for method in (Answer.plot, Answer.to_arviz)]
    assert told == ["NDArray[np.object_]", "InferenceData"]


def test_arviz_has_the_draws_or_says_what_is_missing(answer: Answer) -> None:
    try:
        found = answer.to_arviz(10)
    except DistlfmError as error:
        assert "joint draws" in str(error) or 'pip install "distlfm[arviz]"' in str(error)  # noqa: PT017
        return
    assert dict(found.posterior.sizes) | {"chain": 1, "draw": 10} == dict(found.posterior.sizes)
    assert "observed" in found.observed_data
