"""Figures of operators: drawn for whatever is known, and silent about what is not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from distlfm.answer.parameters import Estimated
from distlfm.inference.findings.scores import Tally
from distlfm.instance import Instance, Truth
from distlfm.lfo import GridDim, OperatorAnswer, OperatorSchema
from distlfm.report.operator_curves import plot_calibration, plot_learning, plot_resolutions, plot_scores
from distlfm.report.operator_page import Example, query_page
from distlfm.report.operator_plots import plot_answer, plot_beside, save_figure, true_map

BANDS = ("mean", "sd", "lower68", "upper68", "lower95", "upper95")
SHAPES = {1: (12,), 2: (6, 5), 3: (6, 5, 4), 4: (4, 3, 3, 3)}


def made(num_dims: int, truth: bool = True) -> tuple[Instance, OperatorAnswer, OperatorSchema]:
    """An invented instance of one output, its answer, and the schema, over time and `num_dims` − 1 space dimensions."""
    shape, random = SHAPES[num_dims], np.random.default_rng(0)
    dims = tuple(GridDim(name=name, size=n, start=0.0, stop=1.0) for name, n in zip("txyz", shape, strict=False))
    axes = tuple(dim.points() for dim in dims)
    points = np.stack([one.ravel() for one in np.meshgrid(*axes, indexing="ij")], -1)
    values = random.normal(size=(1, len(points)))
    positions = points[:, 1:] if num_dims > 1 else None
    known = Truth(points[:, 0], force=values, positions=positions) if truth else None
    instance = Instance("one", ("u",), points[:, 0], values, np.ones(values.shape, bool), positions, truth=known)
    mean, sd = random.normal(size=(1, *shape)), np.full((1, *shape), 0.3)
    bands = {"lower68": mean - sd, "upper68": mean + sd, "lower95": mean - 2 * sd, "upper95": mean + 2 * sd}
    numbers = {"mean": 1.0, "sd": 0.1, "lower68": 0.9, "upper68": 1.1, "lower95": 0.8, "upper95": 1.2}
    parameters = (Estimated("decay[u]", "mechanism", **numbers), Estimated("noise", "noise", **numbers))
    schema = OperatorSchema(
        mechanism={"kind": "transcription"},
        outputs=("u",),
        forces=("f",),
        parameters=("decay[u]", "noise"),
        parameter_kinds=("mechanism", "noise"),
        dims=dims,
        units={"t": "h", "u": "unknown"},
    )
    answer = OperatorAnswer(
        id="one",
        forces=("f",),
        dims=tuple(dim.name for dim in dims),
        axes=axes,
        mean=mean,
        sd=sd,
        **bands,
        estimates=parameters,
        novelty=0.4,
        warning=None,
    )
    return instance, answer, schema


def texts(figure: Figure) -> str:
    found = [text.get_text() for axes in figure.findobj(lambda one: hasattr(one, "get_title")) for text in axes.texts]
    found += [axes.get_title(loc) for axes in _axes(figure) for loc in ("left", "center", "right")]
    return " ".join(found)


def _axes(figure: Figure) -> list:  # type: ignore[type-arg]
    found = list(figure.axes)
    for part in getattr(figure, "subfigs", []):
        found += _axes(part)
    return found


@pytest.mark.parametrize("num_dims", [1, 2, 3, 4])
@pytest.mark.parametrize("truth", [True, False], ids=["with truth", "without"])
def test_answers_in_any_number_of_dimensions_are_drawn(num_dims: int, truth: bool) -> None:
    instance, answer, schema = made(num_dims, truth)
    figure = plot_answer(instance, answer, schema, {"decay[u]": 1.05})
    figure.draw_without_rendering()
    if num_dims > 1:
        assert ("truth" in texts(figure)) == truth


def test_pictures_are_named_by_place_and_id(tmp_path: Path) -> None:
    save_figure(plot_answer(*made(1)), tmp_path, 3, "a/b c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00003_a_b_c.png", "00003_a_b_c.svg"]


def test_resolutions_of_a_series_and_of_a_field_are_drawn() -> None:
    for num_dims in (1, 2, 3):
        instance, answer, schema = made(num_dims)
        figure = plot_resolutions(instance, (answer, answer), schema)
        assert texts(figure).count("points") == 2


def test_learning_is_drawn_from_whatever_lines_there_are() -> None:
    lines = [
        {"event": "start", "step": 0, "total": 4},
        {"event": "step", "step": 1, "loss": 2.0, "lr": 1e-3},
        {"event": "step", "step": 2, "loss": math.nan, "lr": None},
        {"event": "epoch", "step": 2, "train_total": 2.0, "validation_loss": 1.9, "validation_q2": 0.1},
    ]
    assert "not recorded" not in texts(plot_learning(lines))
    assert texts(plot_learning([])).count("not recorded") == 3
    assert texts(plot_learning(lines[:3])).count("not recorded") == 1


def test_scores_say_what_is_not_known() -> None:
    rows = [{"latent_q2": q2, "parameter_mae_sum": None, "novelty": 0.5} for q2 in (0.5, 0.9, -40.0, None)]
    shown = texts(plot_scores(rows))
    assert "n = 3" in shown
    assert shown.count("not known") == 1
    assert texts(plot_scores([])).count("not known") == 3


def test_calibration_is_drawn_without_parameters() -> None:
    figure = plot_calibration({"levels": [0.1, 0.5, 0.95], "force": [0.1, 0.5, 0.9], "parameters": None})
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["honest", "force"]


def test_page_tells_warnings_and_reasons_and_escapes_both(tmp_path: Path) -> None:
    instance, answer, schema = made(1)
    figures = dict.fromkeys(("latent_q2", "latent_correlation", "parameter_mae_sum", "seconds"))
    row = {"id": "<i>", "status": "unlike_training", "novelty": 3.0, "warning": "strange <script>", **figures}
    failed = {
        "id": "bad",
        "status": "failed",
        "novelty": None,
        "warning": None,
        "advice": "no such <output>",
        **figures,
    }
    tally = Tally([row, failed], set_aside=["line 3 is broken"])
    shown = replace(answer, warning="strange <script>", novelty=3.0)
    examples = [Example(instance, shown, row, "worst")]
    page = query_page(tmp_path / "p.html", tally, [row, failed], examples, schema, "verb: query", {}).read_text()
    assert "<script>" not in page
    for words in ("strange &lt;script&gt;", "no such &lt;output&gt;", "line 3 is broken", "1 of 2 instances"):
        assert words in page


def test_maps_of_a_fit_that_begins_later_than_the_operator_are_at_their_own_times() -> None:
    instance, answer, schema = made(2)
    assert instance.truth is not None
    times = instance.times[None]
    instance = replace(instance, values=times, truth=replace(instance.truth, force=times))
    curves = {name: getattr(answer, name)[:, 2:] for name in BANDS}
    fitted = replace(answer, axes=(answer.axes[0][2:], answer.axes[1]), **curves)
    shown = true_map(instance, fitted)
    assert shown is not None
    assert np.allclose(shown, fitted.axes[0][:, None])
    observed = plot_beside(instance, answer, fitted, schema).axes[0].collections[0]
    across = observed.get_coordinates()[..., 0]
    assert np.allclose(observed.get_array(), across, atol=1e-6)
