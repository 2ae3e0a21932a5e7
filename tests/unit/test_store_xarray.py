"""What xarray sees in a store: names, units and coordinates, without any code of ours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from distlfm.store import STATUSES
from tests.support.store_factories import MESH, NODES, SQUARE, make_block, make_store


def opened(path: Path, **changes: Any) -> Any:
    """Opened by xarray alone, and any warning is an error."""
    make_store(path, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return xarray.open_dataset(path, engine="zarr", decode_timedelta=False)


def test_names_times_and_places_are_coordinates(tmp_path: Path) -> None:
    found = opened(tmp_path / "s.zarr", **SQUARE)
    assert found.solution_mean.dims == ("instance", "output", "time", "x", "y")
    assert list(found.output.values) == ["p21", "DDB2"]
    assert list(found.force.values) == ["p53"]
    assert list(found.parameter_kind.values) == ["mechanism", "mechanism", "noise"]
    assert {"id", "observed_time", "observed_x", "observed_y", "time", "x", "y"} <= set(found.coords)
    at = found.solution_mean.sel(output="DDB2", time=3.0, x=0.5, y=1.0).isel(instance=5)
    arrays, _ = make_block_of(tmp_path / "s.zarr", 1)
    assert float(at) == arrays["solution_mean"][1, 1, 3, 1, 1]
    assert str(at.id.values) == "patient-5"


def make_block_of(path: Path, index: int) -> Any:
    from distlfm.store import Store

    return make_block(Store.open(path), index)


def test_instances_with_their_own_times_have_a_coordinate_of_two_dimensions(tmp_path: Path) -> None:
    found = opened(tmp_path / "s.zarr", times=None)
    assert found.force_mean.dims == ("instance", "force", "step")
    assert found.force_mean.coords["time"].dims == ("instance", "step")
    arrays, _ = make_block_of(tmp_path / "s.zarr", 0)
    np.testing.assert_array_equal(found.time.values[:4], arrays["time"])


def test_nodes_have_their_places_and_the_mesh_is_there(tmp_path: Path) -> None:
    found = opened(tmp_path / "s.zarr", **NODES)
    assert found.solution_mean.dims == ("instance", "output", "time", "node")
    np.testing.assert_array_equal(np.stack([found.x, found.y], -1), NODES["nodes"])
    assert found.x.dims == ("node",)
    np.testing.assert_array_equal(found.mesh_cells, MESH[1])
    np.testing.assert_array_equal(found.mesh_points, MESH[0])


@pytest.mark.parametrize("layout", [{}, {"times": None, "variance": True, "draws": 2}, SQUARE, NODES])
def test_everything_has_a_unit_and_a_name(tmp_path: Path, layout: dict[str, Any]) -> None:
    found = opened(tmp_path / "s.zarr", **layout)
    for name, variable in found.variables.items():
        assert variable.attrs["long_name"], name
        assert variable.attrs.get("units") or name == "id", name
    assert found.time.attrs["units"] == "h"
    assert found.solution_mean.attrs["units"] == "nM"
    assert found.solution_var.attrs["units"] == "(nM)^2"
    assert found.force_mean.attrs["units"] == "unknown"


def test_units_that_differ_are_given_one_by_one(tmp_path: Path) -> None:
    found = opened(tmp_path / "s.zarr", units={"p21": "nM", "DDB2": "1"})
    assert found.observed.attrs["units"] == "unknown"
    assert found.observed.attrs["output_units"] == ["nM", "1"]
    assert found.solution_var.attrs["output_units"] == ["(nM)^2", "1"]


def test_statuses_explain_themselves(tmp_path: Path) -> None:
    found = opened(tmp_path / "s.zarr")
    meanings = found.status.attrs["flag_meanings"].split()
    codes = dict(zip(meanings, found.status.attrs["flag_values"], strict=True))
    assert codes == {"absent": -1, **STATUSES}
    assert found.status.dtype == np.int8
    assert int((found.status == codes["failed"]).sum()) == 2


def test_group_tells_where_the_numbers_come_from(tmp_path: Path) -> None:
    found = opened(tmp_path / "s.zarr")
    assert found.attrs["schema"] == 1
    assert found.attrs["kind"] == "fit"
    assert found.attrs["mechanism"] == "transcription"
    assert found.attrs["config"] == {"verb": "fit"}
    assert found.attrs["config_hash"] == "abc123"
    assert found.attrs["instances"] == 10
    assert found.attrs["block"] == 4


def test_store_opens_itself_as_a_dataset(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    np.testing.assert_array_equal(store.dataset().elbo, store.read("elbo"))
