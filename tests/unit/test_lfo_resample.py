"""What a store holds on its own times, lattice or mesh comes to the operator's even grid as the same functions."""

from __future__ import annotations

import numpy as np

from distlfm.lfo import GridDim
from distlfm.lfo.grid import Resampler
from distlfm.store import StoreSpec

TIME = GridDim(name="time", size=41, start=0.0, stop=4.0)
X = GridDim(name="x", size=11, start=0.0, stop=1.0)
Y = GridDim(name="y", size=9, start=0.0, stop=1.0)


def spec(**more: object) -> StoreSpec:
    content = {
        "kind": "fit",
        "instances": 2,
        "block": 2,
        "outputs": ("y",),
        "forces": ("f",),
        "parameters": (),
        "parameter_kinds": (),
        "samples": 5,
        "steps": 31,
    }
    return StoreSpec.model_validate({**content, **more})


def test_the_grid_of_the_store_itself_is_left_as_it_is() -> None:
    times = TIME.points()
    values = np.random.default_rng(0).standard_normal((2, 1, 41))
    found = Resampler(spec(steps=41, times=tuple(times)), [TIME])(values, None)
    np.testing.assert_array_equal(found, values)


def test_other_times_are_interpolated_smoothly_and_unknown_ones_are_nan() -> None:
    times = np.linspace(0.0, 3.0, 31)
    found = Resampler(spec(times=tuple(times)), [TIME])(np.sin(2 * times).reshape(1, 1, -1), None)
    known = TIME.points() <= 3.0 + 1e-9
    np.testing.assert_allclose(found[0, 0, known], np.sin(2 * TIME.points()[known]), atol=1e-4)
    assert np.isnan(found[0, 0, ~known]).all()


def test_instances_with_their_own_times_are_interpolated_one_by_one() -> None:
    times = np.full((3, 31), np.nan)
    times[0] = np.linspace(0.0, 4.0, 31)
    times[1, :20] = np.linspace(1.0, 3.0, 20)
    times[2, 0] = 1.0  # a single time tells nothing
    values = np.where(np.isfinite(times), 3 * times - 1, np.nan)[:, None]
    found = Resampler(spec(), [TIME])(values, times)
    np.testing.assert_allclose(found[0, 0], 3 * TIME.points() - 1)
    inside = (TIME.points() >= 1.0) & (TIME.points() <= 3.0)
    np.testing.assert_allclose(found[1, 0, inside], 3 * TIME.points()[inside] - 1)
    far = (TIME.points() < 1.0 - TIME.step - 1e-9) | (TIME.points() > 3.0 + TIME.step + 1e-9)
    assert np.isnan(found[1, 0, far]).all()
    assert np.isnan(found[2]).all()


def test_another_lattice_is_interpolated_in_time_and_space() -> None:
    times, places = np.linspace(0.0, 4.0, 31), np.linspace(0.0, 1.0, 21)
    values = np.sin(times)[:, None] * np.cos(3 * places)
    found = Resampler(spec(times=tuple(times), space=("x",), lattice=(tuple(places),)), [TIME, X])(
        values[None, None], None
    )
    expected = np.sin(TIME.points())[:, None] * np.cos(3 * X.points())
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-4)


def test_a_mesh_of_a_line_may_have_its_nodes_in_any_order() -> None:
    random = np.random.default_rng(1)
    nodes = random.permutation(np.concatenate([[0.0, 1.0], random.uniform(size=30)]))
    times = TIME.points()
    values = times[:, None] + 2 * nodes
    made = spec(steps=41, times=tuple(times), space=("x",), nodes=tuple((float(x),) for x in nodes))
    found = Resampler(made, [TIME, X])(values[None, None], None)
    np.testing.assert_allclose(found[0, 0], times[:, None] + 2 * X.points(), atol=1e-12)


def plane(nodes: np.ndarray) -> np.ndarray:
    """t + x − 3 y, known at nodes [N, 2], on the grid [T, X, Y]."""
    times = TIME.points()
    values = times[:, None] + nodes[:, 0] - 3 * nodes[:, 1]
    made = spec(steps=41, times=tuple(times), space=("x", "y"), nodes=tuple(map(tuple, nodes.tolist())))
    return Resampler(made, [TIME, X, Y])(values[None, None], None)[0, 0]


def test_linear_functions_on_the_nodes_of_a_plane_stay_linear_and_beyond_them_the_nearest_node_tells() -> None:
    inner = np.random.default_rng(2).uniform(size=(60, 2))
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    x, y = np.meshgrid(X.points(), Y.points(), indexing="ij")
    whole = plane(np.concatenate([corners, inner]))
    np.testing.assert_allclose(whole, TIME.points()[:, None, None] + x - 3 * y, atol=1e-9)
    cut = plane(np.concatenate([corners[1:], inner]))
    nearest = inner[np.square(inner).sum(-1).argmin()]
    np.testing.assert_allclose(cut[:, 0, 0], TIME.points() + nearest[0] - 3 * nearest[1], atol=1e-9)
    np.testing.assert_allclose(cut[:, 4:, 4:], whole[:, 4:, 4:], atol=1e-9)
