"""Figures: what is on them, what is left out, and that odd names and failed fits do not break them."""

from __future__ import annotations

import io
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlfm.errors import UsageError
from distlfm.inference.findings.scores import Tally
from distlfm.inference.observations import collate
from distlfm.report.panels import MAX_PANELS, grouped
from distlfm.report.plots import plot_fit, plot_overview, plot_phase, plot_trace
from distlfm.report.style import quantity
from tests.support.result_factories import make_result, make_rows


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def truth_lines(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata()) for axes in figure.axes for line in axes.lines if line.get_label() == "truth"]


def diamonds(figure: Figure) -> list[float]:
    marks = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "D"]
    return [float(x) for line in marks for x in np.ravel(line.get_xdata())]


def panel(figure: Figure, title: str) -> Axes:
    return next(axes for axes in figure.axes if axes.get_title() == title)


def drawn(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return buffer.getvalue()


def test_every_axis_is_labelled() -> None:
    result = make_result(metadata={"time_unit": "h", "value_unit": "cpm"})
    phase = plot_phase(make_result(kind="lotka_volterra"))
    for figure in (plot_trace(result), plot_overview(Tally(make_rows([result]))), phase):
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    figure = plot_fit(result)
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert all(axes.get_ylabel() or axes.get_title() for axes in figure.axes)
    assert {"time (h)", "value\n(cpm)", "force (cpm/h)", "value (1/h)"} <= set(texts(figure))


def test_units_are_shown_only_where_known() -> None:
    single = make_result(kind="lotka_volterra", metadata={"value_unit": "thousands"})
    assert {"predator (thousands)", "time", "prey"} <= set(texts(plot_fit(single)))


@pytest.mark.parametrize(
    ("name", "unit", "label"),
    [
        ("Conc. [mg/L]", "mg/L", "Conc. [mg/L]"),
        ("Conc. (mg/L)", "mg/L", "Conc. (mg/L)"),
        ("Conc. [ mg/L ] ", " mg/L", "Conc. [ mg/L ] "),
        ("Conc. [mg/L] free", "mg/L", "Conc. [mg/L] free (mg/L)"),
        ("Conc. [ng/mg/L]", "mg/L", "Conc. [ng/mg/L] (mg/L)"),
        ("Conc. [mg/L]", "g/L", "Conc. [mg/L] (g/L)"),
        ("dose mg", "mg", "dose mg (mg)"),
        ("rate [1/h]", "1.h", "rate [1/h] (1.h)"),
        ("what a long name it has, dose [mg]", "mg", "what a long name it has, do… (mg)"),
    ],
)
def test_a_unit_that_a_name_ends_in_is_not_shown_twice(name: str, unit: str, label: str) -> None:
    assert quantity(name, unit) == label


def test_truth_is_drawn_only_where_it_is_known() -> None:
    known = make_result(num_outputs=3)
    figure = plot_fit(known)
    assert len(truth_lines(figure)) == 4
    assert len(diamonds(figure)) == 9
    assert "truth" in texts(figure)
    figure = plot_fit(make_result(num_outputs=3, truth=False))
    assert not truth_lines(figure)
    assert not diamonds(figure)
    assert not {"truth", "true value"} & set(texts(figure))
    assert known.instance.truth is not None
    partly = replace(known, instance=replace(known.instance, truth=replace(known.instance.truth, force=None)))
    assert len(truth_lines(plot_fit(partly))) == 3


def test_data_and_truth_follow_names_when_the_instance_orders_outputs_otherwise() -> None:
    result = make_result(outputs=("a", "b", "c"))
    instance, truth = result.instance, result.instance.truth
    assert truth is not None
    assert truth.outputs is not None
    order = [2, 0]
    turned = replace(
        instance,
        outputs=("c", "a"),
        values=instance.values[order],
        mask=instance.mask[order],
        truth=replace(
            truth,
            outputs=truth.outputs[order],
            parameters={name: value[order] for name, value in truth.parameters.items()},
        ),
    )
    result.posterior.observations = collate([turned], ("a", "b", "c"))
    figure, straight = plot_fit(replace(result, instance=turned)), plot_fit(result)
    for name in ("a", "c"):
        before, after = panel(straight, name), panel(figure, name)
        seen = [[line.get_ydata() for line in axes.lines if line.get_label() == "truth"] for axes in (before, after)]
        np.testing.assert_array_equal(seen[0], seen[1])
        np.testing.assert_array_equal(before.containers[0][0].get_ydata(), after.containers[0][0].get_ydata())
    assert not panel(figure, "b").containers
    kept = [x for i, x in enumerate(diamonds(straight)) if i % 3 != 1]
    assert diamonds(figure) == kept


def test_outputs_beyond_the_limit_are_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PANELS == 24
    monkeypatch.setattr("distlfm.report.panels.MAX_PANELS", 4)
    figure = plot_fit(replace(make_result(num_outputs=7), estimates=()))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["gene0", "gene1", "gene2", "gene3", "Latent force"]
    assert "The first 4 are shown; 3 more outputs are not." in texts(figure)
    figure = plot_fit(replace(make_result(num_outputs=4), estimates=()))
    assert not any("are shown" in text for text in texts(figure))


def test_names_from_data_are_never_mathematics() -> None:
    result = make_result("$\\frac$", outputs=("$\\foo$", "a\nb\x00", "x" * 200))
    figure = plot_fit(result)
    assert drawn(figure)
    shown = texts(figure)
    assert "$\\foo$" in shown
    assert "a�b�" in shown
    assert all(len(text) < 60 for text in shown)


@pytest.mark.filterwarnings("error")
def test_a_failed_fit_still_gives_figures() -> None:
    failed = make_result(status="diverged")
    figure = plot_fit(failed)
    assert drawn(figure)
    assert "not estimated" in texts(figure)
    assert "no finite value" in texts(plot_trace(failed))
    assert drawn(plot_phase(make_result(kind="lotka_volterra", status="diverged")))


def test_intervals_on_the_figure_are_those_of_the_result() -> None:
    result = make_result()
    estimate = next(one for one in result.estimates if one.parameter == "decay")
    wide, narrow = panel(plot_fit(result), "decay (mechanism)").containers
    bars = [wide.patches[0], narrow.patches[0]]
    assert bars[0].get_x() == pytest.approx(estimate.lower95)
    assert bars[0].get_x() + bars[0].get_width() == pytest.approx(estimate.upper95)
    assert bars[1].get_width() == pytest.approx(estimate.upper68 - estimate.lower68)


def test_parameters_of_far_scales_do_not_share_an_axis() -> None:
    one = make_result(kind="lotka_volterra").estimates
    growth, mortality = one[0], one[1]
    far = replace(mortality, lower95=100.0, upper95=200.0, mean=150.0, lower68=120.0, upper68=180.0)
    assert len(grouped([growth, mortality])) == 1
    assert len(grouped([growth, far])) == 2


def test_positive_parameters_get_a_logarithmic_axis_and_others_do_not() -> None:
    result = make_result()
    wide = [replace(one, lower95=0.01, upper95=10.0) for one in result.estimates]
    signed = [replace(one, lower95=-1.0) for one in result.estimates]
    for estimates, scale in ((wide, "log"), (signed, "linear")):
        figure = plot_fit(replace(result, estimates=tuple(estimates)))
        assert panel(figure, "decay (mechanism)").get_xscale() == scale


def test_a_phase_plane_needs_one_force_and_one_output() -> None:
    with pytest.raises(UsageError, match="one force and one output"):
        plot_phase(make_result(num_outputs=2))


def test_fields_in_space_are_refused() -> None:
    result = make_result()
    spatial = replace(result.instance, positions=np.zeros((len(result.instance.times), 1)))
    with pytest.raises(UsageError, match="positions"):
        plot_fit(replace(result, instance=spatial))


def test_overview_leaves_out_what_is_unknown_and_counts_what_is_off_the_scale() -> None:
    results = [make_result(str(i)) for i in range(3)]
    assert "no true force is known" in texts(plot_overview(Tally(make_rows(results, truth=False))))
    rows = make_rows(results)
    rows[0] |= {"latent_q2": -1e6, "status": "max_iterations"}
    figure = plot_overview(Tally(rows))
    assert any("1 below −1 in the leftmost bar" in text for text in texts(figure))
    assert "max iterations" in texts(figure)
    counts = [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes[:3]]
    assert counts == [3, 3, 3]


def test_no_global_state_is_left_behind() -> None:
    names = [name for name in mpl.rcParams if name != "backend"]
    before = [mpl.rcParams[name] for name in names]
    plot_trace(make_result())
    assert before == [mpl.rcParams[name] for name in names]
