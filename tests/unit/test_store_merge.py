"""Merged stores hold everything of their sources, in order, and nothing that does not belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.errors import UsageError
from distlfm.store import Store
from distlfm.store.inspection import verify
from distlfm.store.merge import Merge, merge
from tests.support.store_factories import MESH, SQUARE, make_spec, make_store


def whole(stores: list[Store], name: str) -> Any:
    return np.concatenate([store.read(name) for store in stores])


@pytest.mark.parametrize("layout", [{}, {"times": None, "draws": 2}, {"kind": "generate", **SQUARE}])
@pytest.mark.slow
def test_merged_store_is_its_sources_one_after_another(tmp_path: Path, layout: dict[str, Any]) -> None:
    sources = [
        make_store(tmp_path / "a.zarr", tag="a", **layout),
        make_store(tmp_path / "run" / "store.zarr", tag="b", instances=7, block=3, **layout),
        make_store(tmp_path / "c.zarr", tag="c", instances=1, **layout),
    ]
    found = merge([tmp_path / "a.zarr", tmp_path / "run", tmp_path / "c.zarr"], tmp_path / "all.zarr")
    assert (found.spec.instances, found.spec.block, found.missing()) == (18, 4, [])
    for name in found.variables:
        np.testing.assert_array_equal(found.read(name), whole(sources, name), err_msg=name)
    assert list(found.rows()) == [row for source in sources for row in source.rows()]
    assert Store.open(found.path).spec == found.spec
    assert verify(found).ok
    assert (found.mesh() is not None) == bool(found.spec.space)


def test_unfinished_blocks_are_left_out_and_told(tmp_path: Path) -> None:
    make_store(tmp_path / "a", tag="a", blocks=[0, 2])
    make_store(tmp_path / "b", tag="b")
    work = Merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert work.notes == [f"1 of 3 blocks of {tmp_path / 'a'} are not finished and are left out."]
    told: list[int] = []
    found = work.run(told.append)
    assert list(found.read("id")) == [f"a{i}" for i in (0, 1, 2, 3, 8, 9)] + [f"b{i}" for i in range(10)]
    assert told == [0, 1, 2, 3]


def test_room_for_observations_is_that_of_the_largest(tmp_path: Path) -> None:
    one = make_store(tmp_path / "a", tag="a", samples=4)
    two = make_store(tmp_path / "b", tag="b", variance=True)
    found = merge([one.path, two.path], tmp_path / "all")
    assert found.spec.samples == 6
    for got, expected in zip(found.instances(), [*one.instances(), *two.instances()], strict=True):
        assert got.id == expected.id
        np.testing.assert_array_equal(got.times, expected.times)
        np.testing.assert_array_equal(got.values, expected.values)
        np.testing.assert_array_equal(got.mask, expected.mask)
        assert (got.variance is None) == (expected.variance is None)


def test_names_must_stay_unique_and_prefixes_make_them_so(tmp_path: Path) -> None:
    make_store(tmp_path / "monday" / "store.zarr")
    make_store(tmp_path / "tuesday.zarr")
    make_store(tmp_path / "old" / "monday")
    paths = [tmp_path / "monday", tmp_path / "tuesday.zarr", tmp_path / "old" / "monday"]
    with pytest.raises(UsageError, match=r"'patient-0' is in .* and in .*--prefix"):
        merge(paths, tmp_path / "all")
    assert not (tmp_path / "all").exists()
    found = merge(paths, tmp_path / "all", prefix=True)
    assert list(found.read("id"))[::10] == ["monday_patient-0", "tuesday_patient-0", "monday2_patient-0"]
    assert [row["id"] for row in found.rows()] == list(found.read("id"))
    assert verify(found).ok


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": ("p21", "MDM2"), "units": {}}, "differ in their outputs"),
        ({"forces": ("NFkB",)}, "differ in their forces"),
        ({"parameters": ("a", "b", "c")}, "differ in their parameters"),
        ({"times": (0.0, 1.0, 2.0, 3.0, 4.0)}, "differ in their times"),
        ({"times": None}, "differ in their times"),
        ({"kind": "generate"}, "differ in their kind: fit and generate"),
        ({"attributes": {"mechanism": "cascade"}}, "differ in their mechanism: transcription and cascade"),
        ({"units": {"time": "min"}}, "differ in their unit of time: h and min"),
        (SQUARE, "differ in their space"),
    ],
)
def test_stores_that_differ_are_not_merged(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    make_store(tmp_path / "a", tag="a")
    make_store(tmp_path / "b", tag="b", **changes)
    with pytest.raises(UsageError, match=message):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_different_meshes_are_not_merged(tmp_path: Path) -> None:
    make_store(tmp_path / "a", tag="a", **SQUARE)
    Store.create(tmp_path / "b", make_spec(**SQUARE), (MESH[0] + 1, MESH[1]))
    with pytest.raises(UsageError, match="different meshes"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")


def test_call_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "a", tag="a")
    make_store(tmp_path / "b", tag="b")
    for name in ("c", "d"):
        Store.create(tmp_path / name, make_spec())
    with pytest.raises(UsageError, match="One store alone"):
        merge([tmp_path / "a"], tmp_path / "all")
    with pytest.raises(UsageError, match="named twice"):
        merge([tmp_path / "a", tmp_path / "b" / ".." / "a"], tmp_path / "all")
    with pytest.raises(UsageError, match="there already"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "b")
    with pytest.raises(UsageError, match="finished block"):
        merge([tmp_path / "c", tmp_path / "d"], tmp_path / "all")


def test_origin_is_kept_where_sources_agree_and_named_where_they_differ(tmp_path: Path) -> None:
    make_store(tmp_path / "a", tag="a", attributes={"mechanism": "m", "seed": 1, "config_hash": "one", "title": "A"})
    make_store(tmp_path / "b", tag="b", attributes={"mechanism": "m", "seed": 1, "config_hash": "two", "title": "B"})
    about = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all").spec.attributes
    assert (about["mechanism"], about["seed"], about["title"]) == ("m", 1, "A and B")
    assert "config_hash" not in about
    assert [origin["config_hash"] for origin in about["merged_from"]] == ["one", "two"]


def test_merge_that_fails_leaves_nothing(tmp_path: Path) -> None:
    make_store(tmp_path / "a", tag="a")
    store = make_store(tmp_path / "b", tag="b")
    (store.path / "force_var" / "c.1.0.0").unlink()
    with pytest.raises(RuntimeError, match="Block 1"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
