"""Figures of fields: what is on them in one, two and three dimensions, and that pages stay small."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PathCollection, QuadMesh, TriMesh
from matplotlib.figure import Figure, SubFigure

from distlfm.answer import Band
from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.findings.residuals import residuals
from distlfm.inference.result import FitResult, Prediction
from distlfm.instance import BoolArray, FloatArray
from distlfm.mechanisms.field import FieldConfig
from distlfm.report.field_maps import plot_field
from distlfm.report.field_section import field_figures, plot_mesh, plot_parameters, plot_profiles, plot_residuals
from distlfm.report.field_view import MAX_COMPARED, Cloud, FieldView
from distlfm.report.fit_page import MAX_MAPPED
from distlfm.report.words import assumed_words
from tests.support.field_factories import make_field
from tests.support.result_factories import make_page, make_result


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def image(figure: Figure, title: str) -> QuadMesh:
    axes = next(axes for axes in figure.axes if axes.get_title(loc="left") == title)
    return next(one for one in axes.collections if isinstance(one, QuadMesh))


def test_map_on_a_line_holds_the_values_at_their_time_and_position() -> None:
    result = make_field()
    shown = image(plot_field(FieldView(result)), "force: posterior mean")
    times, places = np.unique(result.grid.times), np.unique(np.asarray(result.grid.positions))
    expected = result.grid.force.mean[0].reshape(len(times), len(places)).T
    assert np.array_equal(np.asarray(shown.get_array()).reshape(expected.shape), expected)
    corners = shown.get_coordinates()
    assert np.array_equal(corners[0, :, 0], times)
    assert np.array_equal(corners[:, 0, 1], places)


def test_truth_and_error_have_maps_only_where_the_truth_is_known() -> None:
    known = titles(plot_field(FieldView(make_field())))
    assert [name.split(": ")[1] for name in known if name.startswith("force")] == [
        "posterior mean",
        "sd",
        "truth",
        "mean − truth",
    ]
    unknown = titles(plot_field(FieldView(make_field(truth=False))))
    assert unknown == ["output: posterior mean", "output: sd", "force: posterior mean", "force: sd"]


def test_error_is_mean_minus_truth_on_colours_centred_at_zero() -> None:
    shown = image(plot_field(FieldView(make_field())), "force: mean − truth")
    assert np.asarray(shown.get_array()) == pytest.approx(0.03)
    assert shown.norm.vmin == -shown.norm.vmax
    assert shown.cmap.name == "RdBu_r"


def with_true_force(result: FitResult, force: FloatArray) -> FitResult:
    known = result.instance.truth
    assert known is not None
    return replace(result, instance=replace(result.instance, truth=replace(known, force=force[None])))


def test_force_and_its_truth_share_colours_unless_one_would_flatten_the_other() -> None:
    result = make_field()
    figure = plot_field(FieldView(result))
    mean, truth = image(figure, "force: posterior mean").norm, image(figure, "force: truth").norm
    assert (mean.vmin, mean.vmax) == (truth.vmin, truth.vmax)
    rng = np.random.default_rng(0)
    other = with_true_force(result, 50 * rng.normal(size=11 * 17))
    figure = plot_field(FieldView(other))
    assert image(figure, "force: truth").norm.vmax > 10 * image(figure, "force: posterior mean").norm.vmax


@pytest.mark.slow
def test_true_force_of_another_scale_is_shown_times_a_factor_that_is_told() -> None:
    result = make_field()
    known = result.instance.truth
    assert known is not None
    assert known.force is not None
    scaled = with_true_force(result, 50 * known.force[0])
    view = FieldView(scaled)
    assert view.truth_factor == pytest.approx(0.02, rel=0.1)
    assert "force: mean − truth × 0.02" in [
        title[: len("force: mean − truth × 0.02")] for title in titles(plot_field(view))
    ]
    assert any(text.startswith("truth × 0.02") for text in texts(plot_profiles(view)))
    assert "is shown times 0.02" in field_figures(scaled)[0].caption
    assert FieldView(result).truth_factor == 1.0


def test_fitted_and_held_back_points_are_marked_apart_and_counted() -> None:
    result = make_field()
    figure = plot_field(FieldView(result))
    fitted = len(result.instance.times)
    assert f"fitted ({fitted} points)" in texts(figure)
    assert f"held back for scoring ({11 * 17 - fitted} points)" in texts(figure)
    axes = next(axes for axes in figure.axes if axes.get_title(loc="left") == "output: posterior mean")
    marks = [one for one in axes.collections if isinstance(one, PathCollection)]
    assert sorted(len(np.asarray(one.get_offsets())) for one in marks) == sorted([fitted, 11 * 17 - fitted])
    assert not any("held back" in text for text in texts(plot_field(FieldView(make_field(truth=False)))))


def test_scattered_points_are_drawn_as_points() -> None:
    result = make_field(scattered=True)
    figure = plot_field(FieldView(result))
    axes = next(axes for axes in figure.axes if axes.get_title(loc="left") == "force: truth")
    assert not any(isinstance(one, QuadMesh) for one in axes.collections)
    assert any(isinstance(one, PathCollection) for one in axes.collections)


def test_units_are_on_the_axes() -> None:
    found = set(texts(plot_field(FieldView(make_field()))))
    assert {"time (min)", "position (mm)", "output (nM)", "force (nM/min)"} <= found
    assert {"x (mm)", "y (mm)", "t = 1 min"} <= set(texts(plot_field(FieldView(make_field(2)))))


def test_snapshots_in_the_plane_are_on_the_mesh() -> None:
    result = make_field(2)
    figure = plot_field(FieldView(result))
    drawn = [one for part in figure.subfigs for axes in part.axes for one in axes.collections]
    on_mesh = [one for one in drawn if isinstance(one, TriMesh)]
    assert len(on_mesh) == 4 * 7
    cells = result.posterior.marginal.map.discretised.cells  # type: ignore[attr-defined]
    assert len(on_mesh[0]._triangulation.triangles) == len(cells)


def rows_of(figure: Figure) -> dict[str, SubFigure]:
    return {part.get_suptitle(): part for part in figure.subfigs}


@pytest.mark.parametrize("dims", [2, 3])
def test_output_and_force_have_truth_and_error_in_the_plane_and_in_space(dims: int) -> None:
    rows = rows_of(plot_field(FieldView(make_field(dims))))
    shown = ["posterior mean", "truth", "mean − truth"]
    assert {f"{name}: {what}" for name in ("output", "force") for what in shown} <= set(rows)
    errors = [np.asarray(axes.collections[0].get_array()) for axes in rows["output: mean − truth"].axes[:4]]
    assert all(np.abs(one).max() < 1e-9 for one in errors)
    assert "output: truth" not in rows_of(plot_field(FieldView(make_field(dims, truth=False))))


def test_snapshots_fill_the_mesh_where_only_some_nodes_are_known() -> None:
    result = make_field(2)
    grid = result.grid
    assert grid.positions is not None
    some, name = np.arange(len(grid.times)) % 3 > 0, "force: posterior mean"
    fewer = Prediction(
        grid.times[some], *(_columns(one, some) for one in (grid.force, grid.outputs)), grid.positions[some]
    )
    whole, filled = (
        next(one for one in rows_of(plot_field(FieldView(field)))[name].axes[0].collections if isinstance(one, TriMesh))
        for field in (result, replace(result, grid=fewer))
    )
    expected, found = np.asarray(whole.get_array()), np.asarray(filled.get_array())
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 0.1


def _columns(one: Band, some: BoolArray) -> Band:
    return Band(*(getattr(one, name)[:, some] for name in Band.__dataclass_fields__))


def test_body_shows_its_middle_layer() -> None:
    figure = plot_field(FieldView(make_field(3)))
    drawn = [one for part in figure.subfigs for axes in part.axes for one in axes.collections]
    points = [one for one in drawn if isinstance(one, PathCollection)]
    assert points
    assert all(len(np.asarray(one.get_offsets())) == 32 for one in points)


def test_profiles_have_bands_at_a_few_times_and_the_truth() -> None:
    figure = plot_profiles(FieldView(make_field()))
    assert [axes.get_title() for axes in figure.axes] == [f"t = {time:g} min" for time in (0.2, 0.5, 0.8, 1.0)]
    for axes in figure.axes:
        lines = {line.get_label(): np.asarray(line.get_ydata()) for line in axes.lines}
        assert lines["posterior mean"] - lines["truth"] == pytest.approx(0.03)
    assert "truth" not in texts(plot_profiles(FieldView(make_field(truth=False))))


def test_residual_map_has_every_fitted_value_that_is_free_to_move() -> None:
    result = make_field(wave=3.0)
    found = residuals(result)
    assert found is not None
    assert 0 < len(found) < len(result.instance.times)
    figure = plot_residuals(FieldView(result), found)
    marks = [one for axes in figure.axes for one in axes.collections if isinstance(one, PathCollection)]
    assert [len(np.asarray(one.get_offsets())) for one in marks] == [len(found)] * 2
    assert marks[1].norm.vmin == -marks[1].norm.vmax


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.slow
def test_every_figure_of_a_field_has_words_and_can_be_drawn(dims: int) -> None:
    figures = field_figures(make_field(dims))
    assert len(figures) == (5 if dims == 1 else 4)
    assert all(one.alt.startswith("Instance field: ") and one.caption.endswith(".") for one in figures)


def test_what_was_assumed_at_boundary_and_start_is_told() -> None:
    def words(**options: object) -> str:
        return assumed_words(build(FieldConfig, {"kind": "reaction_diffusion", **options}))

    assert words() == "Assumed at the boundary: no flux anywhere. Assumed at the first observed time: y = 0 everywhere."
    robin = {"kind": "robin", "rate": 0.006, "value": 2}
    told = words(boundary={"left": {"kind": "dirichlet"}, "right": robin}, start=1.5, initial={"kind": "field"})
    assert "boundary: y = 0 (left); a flux into the domain of 0.006 · (2 − y) (right). Assumed at time 1.5: " in told
    assert "y = 0 (left); no flux elsewhere." in words(boundary={"left": {"kind": "dirichlet"}})
    assert any("no flux anywhere" in one.caption for one in field_figures(make_field()))


def test_mesh_on_a_line_counts_nodes_and_data() -> None:
    found = texts(plot_mesh(FieldView(make_field())))
    assert {"nodes (17)", "data (17)", "inducing points (6)"} <= set(found)


@pytest.mark.slow
def test_lengthscales_are_named_by_dimension_in_the_forest_and_the_table(tmp_path: Path) -> None:
    result = make_field(2)
    assert {"t", "x", "y"} <= set(texts(plot_parameters(result)))
    page = make_page(tmp_path / "page.html", [result]).read_text()
    for name in ("force.lengthscale[t]", "force.lengthscale[x]", "force.lengthscale[y]", "diffusion"):
        assert name in page


@pytest.mark.slow
def test_page_of_a_field_is_self_contained_and_says_whether_residuals_have_structure(tmp_path: Path) -> None:
    result = make_field()
    path = make_page(tmp_path / "page.html", [result])
    text = path.read_text()
    assert path.stat().st_size < 3_000_000
    assert "no figure is drawn" not in text
    assert "Residuals look independent of their neighbours in time and space" in text
    assert set(re.findall(r'src="([^,"]*)', text)) == {"data:image/svg+xml;base64"}
    wrong = make_field(wave=3.0)
    text = make_page(tmp_path / "wrong.html", [wrong]).read_text()
    assert "The misfit has structure" in text


@pytest.mark.slow
def test_page_of_many_fields_maps_only_some(tmp_path: Path) -> None:
    results = [make_field(name=f"field{i}") for i in range(3)]
    path = make_page(tmp_path / "page.html", results)
    assert path.read_text().count("maps of output") == MAX_MAPPED
    assert path.stat().st_size < 3_000_000


def test_page_of_a_failed_field_has_no_figure_of_it(tmp_path: Path) -> None:
    result = make_field(status="diverged")
    text = make_page(tmp_path / "page.html", [result]).read_text()
    assert "Instance field: " not in text
    assert json.dumps("Instance field")[1:-1] in text


def test_truth_with_many_points_is_compared_at_some() -> None:
    result = make_field()
    known = result.instance.truth
    assert known is not None
    assert known.positions is not None
    times = np.repeat(np.linspace(0, 1, 500), 17)
    positions = np.tile(known.positions[:17], (500, 1))
    force = np.zeros((1, len(times)))
    much = replace(known, times=times, positions=positions, force=force, outputs=None, scored=None)
    view = FieldView(replace(result, instance=replace(result.instance, truth=much)))
    assert view.at_truth is not None
    assert 100 < len(view.at_truth.times) <= MAX_COMPARED
    assert view.at_truth.times.max() == 1.0


def test_lattice_needs_every_pair_once() -> None:
    times, places = np.array([0.0, 0.0, 1.0, 1.0]), np.array([[0.0], [1.0], [0.0], [1.0]])
    values = np.arange(4.0)
    whole = Cloud(times, places, values).lattice()
    assert whole is not None
    assert np.array_equal(whole[2], [[0.0, 2.0], [1.0, 3.0]])
    assert Cloud(times[:3], places[:3], values[:3]).lattice() is None
    twice = np.array([[0.0], [0.0], [0.0], [1.0]])
    assert Cloud(times, twice, values).lattice() is None


def test_maps_of_a_result_without_positions_are_refused() -> None:
    with pytest.raises(UsageError, match="no positions"):
        FieldView(make_result())
