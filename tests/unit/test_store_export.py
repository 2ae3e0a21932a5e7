"""Exports: what distlfm's own reader gets back from an archive, and the layout of The Well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from distlfm.data import read
from distlfm.errors import UsageError
from distlfm.store import Store
from distlfm.store.export import export
from tests.support.store_factories import NODES, SQUARE, make_block, make_store


@pytest.mark.parametrize(
    "layout",
    [{"kind": "generate"}, {"times": None, "kind": "generate"}, {"variance": True}, {"kind": "generate", **NODES}],
)
def test_archive_is_read_back_as_the_same_instances(tmp_path: Path, layout: dict[str, Any]) -> None:
    store = make_store(tmp_path / "s.zarr", **layout)
    done = export(store, "npz", tmp_path / "s.npz")
    assert (done.num_instances, done.left_out) == (10, 0)
    for found, expected in zip(read(tmp_path / "s.npz").instances, store.instances(), strict=True):
        assert (found.id, found.outputs) == (expected.id, expected.outputs)
        for name in ("times", "values", "mask", "positions", "variance"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        assert (found.truth is None) == (expected.truth is None)
        if found.truth is not None and expected.truth is not None:
            np.testing.assert_array_equal(found.truth.force, expected.truth.force)
            np.testing.assert_array_equal(found.truth.outputs, expected.truth.outputs)
            np.testing.assert_array_equal(found.truth.times, expected.truth.times)
            assert {key: list(value) for key, value in found.truth.parameters.items()} == {
                key: list(value) for key, value in expected.truth.parameters.items()
            }


def test_folder_has_an_archive_a_block(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", kind="generate")
    told: list[int] = []
    export(store, "npz", tmp_path / "out", told.append)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["00000.npz", "00001.npz", "00002.npz"]
    assert told == [0, 1, 2]
    found = read(tmp_path / "out").instances
    assert [one.id for one in found[:5]] == [*(f"00000/patient-{i}" for i in range(4)), "00001/patient-4"]
    np.testing.assert_array_equal(found[9].values, store.instances()[9].values)


def test_well_has_the_documented_layout(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", kind="generate", **SQUARE)
    done = export(store, "well", tmp_path / "s.h5")
    assert done.num_instances == 10
    arrays, _ = make_block(store, 1)
    with h5py.File(tmp_path / "s.h5") as file:
        about = dict(file.attrs)
        assert (about["dataset_name"], about["grid_type"]) == ("transcription", "cartesian")
        assert (about["n_spatial_dims"], about["n_trajectories"]) == (2, 10)
        assert list(about["simulation_parameters"]) == []
        assert set(file) >= {"dimensions", "boundary_conditions", "scalars", "t0_fields", "t1_fields", "t2_fields"}
        dimensions = file["dimensions"]
        assert list(dimensions.attrs["spatial_dims"]) == ["x", "y"]
        np.testing.assert_array_equal(dimensions["time"], np.float32(store.spec.times))
        np.testing.assert_array_equal(dimensions["x"], np.float32([0, 0.5, 1]))
        assert not dimensions["time"].attrs["sample_varying"]
        assert not dimensions["x"].attrs["time_varying"]
        fields = file["t0_fields"]
        assert list(fields.attrs["field_names"]) == ["p21", "DDB2", "p53"]
        for name, source, row in (("DDB2", "solution_mean", 1), ("p53", "force_mean", 0)):
            assert fields[name].shape == (10, 5, 3, 2)
            assert fields[name].dtype == np.float32
            np.testing.assert_array_equal(fields[name][4:8], arrays[source][:, row].astype(np.float32))
            assert fields[name].attrs["sample_varying"]
            assert fields[name].attrs["time_varying"]
            assert list(fields[name].attrs["dim_varying"]) == [True, True]
        assert list(file["t1_fields"].attrs["field_names"]) == []
        scalars = file["scalars"]
        assert list(scalars.attrs["field_names"]) == ["decay[p21]", "decay[DDB2]", "noise"]
        np.testing.assert_array_equal(scalars["noise"][4:8], arrays["params_mean"][:, 2].astype(np.float32))
        assert scalars["noise"].attrs["sample_varying"]
        assert not scalars["noise"].attrs["time_varying"]
        wall = file["boundary_conditions/y_wall"]
        assert wall.attrs["bc_type"] == "wall"
        assert list(wall.attrs["associated_dims"]) == ["y"]
        assert list(file["boundary_conditions/x_wall/mask"]) == [True, False, True]
        assert [name.decode() for name in file["trajectory_ids"]] == [f"patient-{i}" for i in range(10)]


def test_mechanism_without_space_has_one_place(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", kind="generate", times=None)
    export(store, "well", tmp_path / "s.hdf5")
    with h5py.File(tmp_path / "s.hdf5") as file:
        assert file.attrs["n_spatial_dims"] == 1
        assert list(file["dimensions/x"]) == [0]
        assert file["t0_fields/p21"].shape == (10, 5, 1)
        assert file["dimensions/time"].attrs["sample_varying"]
        np.testing.assert_array_equal(file["dimensions/time"], store.read("time").astype(np.float32))
        assert list(file["boundary_conditions"]) == []


def test_failed_fits_are_left_out_and_variances_are_there(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    done = export(store, "well", tmp_path / "s.h5")
    assert (done.num_instances, done.left_out) == (8, 2)
    assert "2 instances failed and are left out." in done.notes
    keep = [i for i in range(10) if i % 5 != 4]
    with h5py.File(tmp_path / "s.h5") as file:
        names = ["p21", "DDB2", "p21_variance", "DDB2_variance", "p53", "p53_variance"]
        assert list(file["t0_fields"].attrs["field_names"]) == names
        expected = store.read("force_var")[keep, 0].astype(np.float32)
        np.testing.assert_array_equal(file["t0_fields/p53_variance"][..., 0], expected)
        assert file.attrs["n_trajectories"] == 8


def test_names_in_the_file_never_collide(tmp_path: Path) -> None:
    names = ("a/b", "a_b", "f")
    store = make_store(
        tmp_path / "s.zarr", outputs=names, forces=("f",), parameters=("f",), parameter_kinds=("m",), kind="generate"
    )
    export(store, "well", tmp_path / "s.h5")
    with h5py.File(tmp_path / "s.h5") as file:
        assert list(file["t0_fields"].attrs["field_names"]) == ["a_b", "output_a_b", "f", "force_f"]
        assert list(file["scalars"].attrs["field_names"]) == ["parameter_f"]


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    on_nodes = make_store(tmp_path / "nodes", **NODES)
    with pytest.raises(UsageError, match="The Well knows lattices only"):
        export(on_nodes, "well", tmp_path / "s.h5")
    ragged = make_store(tmp_path / "ragged", times=None, blocks=[0])
    arrays, rows = make_block(ragged, 1)
    arrays["time"][1, -1] = np.nan
    ragged.write_block(1, arrays, rows)
    with pytest.raises(UsageError, match="differ in their number of times"):
        export(ragged, "well", tmp_path / "s.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nodes", "ragged"]


def test_call_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    with pytest.raises(UsageError, match="Did you mean 'well'"):
        export(store, "wel", tmp_path / "s.h5")
    with pytest.raises(UsageError, match="is not an HDF5 file"):
        export(store, "well", tmp_path / "s.nc")
    with pytest.raises(UsageError, match="there already"):
        export(store, "npz", tmp_path / "s.zarr")
    empty = Store.create(tmp_path / "empty", store.spec)
    with pytest.raises(UsageError, match="no finished block"):
        export(empty, "npz", tmp_path / "e.npz")


def test_export_of_a_damaged_store_leaves_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    (store.path / "force_mean" / "c.2.0.0").unlink()
    (store.path / "observed" / "c.2.0.0").unlink()
    for form, name in (("well", "s.h5"), ("npz", "s.npz"), ("npz", "folder")):
        with pytest.raises(RuntimeError, match="Block 2"):
            export(store, form, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]
