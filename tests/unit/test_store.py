"""The store: what goes in comes out, whatever the layout, and what is not finished is not there."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distlfm.errors import DistlfmError, StorageError, UsageError, WorkError
from distlfm.inference.optimise import Status
from distlfm.store import SCHEMA, STATUSES, Store, find_store, is_store, read_progress, write_progress
from distlfm.store.block import chunk_rows
from distlfm.store.layout import Variable
from tests.support.store_factories import MESH, NODES, SQUARE, fill, make_block, make_spec, make_store

LAYOUTS: dict[str, dict[str, Any]] = {
    "ode": {},
    "own times": {"times": None},
    "generated": {"kind": "generate"},
    "lattice": {**SQUARE, "draws": 3},
    "nodes": {**NODES, "variance": True},
    "line": {"kind": "generate", "space": ("x",), "lattice": ((0.0, 0.1, 0.7),), "times": None},
    "one block": {"instances": 3, "block": 64},
    "no parameters": {"parameters": (), "parameter_kinds": ()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_array_comes_back_as_it_was_written(tmp_path: Path, layout: str) -> None:
    written = make_store(tmp_path / "s.zarr", **LAYOUTS[layout])
    store = Store.open(tmp_path / "s.zarr")
    assert store.spec == written.spec
    for index in range(store.spec.num_blocks):
        where = store.block_range(index)
        arrays, rows = make_block(store, index)
        for name, expected in arrays.items():
            np.testing.assert_array_equal(store.read(name, where.start, where.stop), expected, err_msg=name)
        assert list(store.rows([index])) == rows
    assert store.missing() == []


@given(
    kind=st.sampled_from(["fit", "generate"]),
    instances=st.integers(1, 9),
    block=st.integers(1, 10),
    outputs=st.integers(1, 3),
    forces=st.integers(0, 2),
    samples=st.integers(1, 4),
    steps=st.integers(1, 4),
    own_times=st.booleans(),
    grid=st.sampled_from([{}, SQUARE, NODES]),
    draws=st.integers(0, 2),
    variance=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_layout_with_any_numbers_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    instances: int,
    block: int,
    outputs: int,
    forces: int,
    samples: int,
    steps: int,
    own_times: bool,
    grid: dict[str, Any],
    draws: int,
    variance: bool,
    seed: int,
) -> None:
    spec = make_spec(
        kind=kind,
        instances=instances,
        block=block,
        outputs=tuple(f"o{i}" for i in range(outputs)),
        forces=tuple(f"f{i}" for i in range(forces)),
        samples=samples,
        steps=steps,
        times=None if own_times else tuple(float(i) for i in range(steps)),
        draws=draws,
        variance=variance,
        **grid,
    )
    store = Store.create(tmp_path_factory.mktemp("any") / "s.zarr", spec)
    rng = np.random.default_rng(seed)
    odd = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, 1.7e308, -1.5])
    written: dict[str, list[Any]] = {name: [] for name in store.variables}
    for index in range(spec.num_blocks):
        count = len(store.block_range(index))
        arrays = {name: rng.choice(odd, (count, *one.shape[1:])) for name, one in store.variables.items()}
        arrays["status"] = rng.choice(list(STATUSES.values()), count)
        arrays["seed"] = rng.integers(-(2**63), 2**63 - 1, count)
        arrays["id"] = np.array(["".join(map(chr, rng.integers(32, 0xD7FF, 5))) for _ in range(count)], dtype=object)
        store.write_block(index, arrays, [{}] * count)
        for name in arrays:
            written[name].append(arrays[name])
    reopened = Store.open(store.path)
    assert reopened.spec == spec
    for name, parts in written.items():
        np.testing.assert_array_equal(reopened.read(name), np.concatenate(parts), err_msg=name)


def test_blocks_without_a_marker_are_missing_and_read_as_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0, 2])
    assert store.missing() == [1]
    assert sorted(store.markers()) == [0, 2]
    assert [row["id"] for row in store.rows()] == [f"patient-{i}" for i in (0, 1, 2, 3, 8, 9)]
    status = store.read("status")
    assert (status[4:8] == -1).all()
    assert (status[[0, 8]] == STATUSES["converged"]).all()
    assert np.isnan(store.read("force_mean", 4, 8)).all()
    assert list(store.read("id", 3, 5)) == ["patient-3", ""]


def test_shard_without_its_marker_is_not_there(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    (store.path / "markers" / "00001.json").unlink()
    assert store.missing() == [1]
    assert np.isnan(store.read("elbo", 4, 8)).all()
    fill(store, [1])
    np.testing.assert_array_equal(store.read("elbo", 4, 8), make_block(store, 1)[0]["elbo"])


def test_rows_between_blocks_are_read_across_them(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    whole = np.concatenate([make_block(store, index)[0]["solution_mean"] for index in range(3)])
    np.testing.assert_array_equal(store.read("solution_mean", 3, 9), whole[3:9])
    np.testing.assert_array_equal(store.read("solution_mean", -2), whole[-2:])
    assert store.read("solution_mean", 5, 5).shape == (0, 2, 5)


def test_finished_block_is_never_written_twice(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.path.rglob("*") if path.is_file()}
    before = store.markers()[1]
    arrays, rows = make_block(store, 1)
    arrays["elbo"] = arrays["elbo"] + 1
    assert store.write_block(1, arrays, rows) == before
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.path.rglob("*") if path.is_file()}
    assert after == files


def test_marker_tells_what_is_in_its_block(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec())
    marker = store.write_block(1, *make_block(store, 1), seconds=2.5)
    assert (marker.block, marker.first, marker.count, marker.seconds) == (1, 4, 4, 2.5)
    assert marker.statuses == {"converged": 3, "failed": 1}
    assert set(marker.checksums) == {path.relative_to(store.path).as_posix() for path in store.block_files(1)}
    assert marker.bytes == sum(path.stat().st_size for path in store.block_files(1))
    assert store.markers() == {1: marker}


def test_what_is_not_given_is_nothing_but_name_and_status_are_needed(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec())
    arrays, rows = make_block(store, 0)
    store.write_block(0, {name: arrays[name] for name in ("id", "status")}, rows)
    assert np.isnan(store.read("force_mean", 0, 4)).all()
    with pytest.raises(UsageError, match="'status' is not given"):
        store.write_block(1, {"id": arrays["id"]}, rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"force_man": np.zeros(4)}, "Did you mean 'force_mean'"),
        ({"elbo": np.zeros(3)}, r"elbo has shape \(3,\), and instances 0 to 3 need \(4,\)"),
        ({"status": np.full(4, 99)}, "99 is not a status"),
    ],
)
def test_block_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec())
    arrays, rows = make_block(store, 0)
    with pytest.raises(UsageError, match=message):
        store.write_block(0, arrays | change, rows)
    with pytest.raises(UsageError, match="2 rows are given for 4 instances"):
        store.write_block(0, arrays, rows[:2])
    with pytest.raises(UsageError, match="There is no block 3"):
        store.write_block(3, arrays, rows)
    assert not any(path.exists() for path in store.block_files(0))


def test_rows_keep_text_and_numbers_and_lose_what_is_not_finite(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec(instances=1))
    row = {"id": "Ä", "q2": np.float64(0.5), "bad": float("nan"), "n": np.int64(3), "all": np.array([1.0, np.inf])}
    store.write_block(0, {"id": np.array(["Ä"]), "status": np.array([1])}, [row])
    assert list(store.rows()) == [{"id": "Ä", "q2": 0.5, "bad": None, "n": 3, "all": [1.0, None]}]


def test_statuses_are_those_of_a_fit_with_the_same_numbers() -> None:
    assert {name: code for name, code in STATUSES.items() if name not in ("failed", "generated")} == {
        status.name.lower(): int(status) for status in Status
    }
    assert len(set(STATUSES.values())) == len(STATUSES)


def test_store_of_a_run_is_found_by_the_run(tmp_path: Path) -> None:
    make_store(tmp_path / "run" / "store.zarr")
    assert find_store(tmp_path / "run") == tmp_path / "run" / "store.zarr"
    assert is_store(tmp_path / "run")
    assert not is_store(tmp_path)
    assert Store.open(tmp_path / "run").spec == make_spec()


def test_mesh_is_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", **SQUARE)
    mesh = store.mesh()
    assert mesh is not None
    np.testing.assert_array_equal(mesh[0], MESH[0])
    np.testing.assert_array_equal(mesh[1], MESH[1])
    assert make_store(tmp_path / "ode.zarr").mesh() is None


def test_store_goes_to_other_processes_by_pickle(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    store.read("elbo")
    copy = pickle.loads(pickle.dumps(store))
    fill(copy, [1])
    assert store.missing() == [2]


def test_new_store_takes_the_place_of_nothing(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    with pytest.raises(UsageError, match="is a store already"):
        Store.create(tmp_path / "s.zarr", make_spec())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("…")
    with pytest.raises(UsageError, match="is not empty"):
        Store.create(tmp_path / "other", make_spec())
    (tmp_path / "empty").mkdir()
    assert Store.create(tmp_path / "empty", make_spec()).missing() == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "other", "s.zarr"]


def test_schema_of_the_future_is_refused_and_so_is_what_is_no_store(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    file = store.path / "zarr.json"
    content = json.loads(file.read_text())

    def opened(**attributes: Any) -> str:
        file.write_text(json.dumps({**content, "attributes": {**content["attributes"], **attributes}}))
        with pytest.raises(DistlfmError) as caught:
            Store.open(store.path)
        return str(caught.value)

    assert "newer version" in opened(schema=SCHEMA + 1)
    assert "older version" in opened(schema=SCHEMA - 1)
    assert "not a store of distlfm" in opened(schema=None)
    assert "damaged" in opened(layout={"outputs": []})
    assert "damaged" in opened(instances="many")
    file.write_text("{")
    with pytest.raises(WorkError, match=r"damaged: zarr.json is not valid JSON"):
        Store.open(store.path)
    with pytest.raises(UsageError, match="There is no store"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is not a store"):
        Store.open(tmp_path)


def test_damaged_or_lost_shard_is_an_error_and_never_silent_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    shard = store.path / "force_mean" / "c.1.0.0"
    content = bytearray(shard.read_bytes())
    content[20] ^= 0xFF
    shard.write_bytes(content)
    with pytest.raises(WorkError, match=r"Block 1 .* is damaged: force_mean cannot be read"):
        store.read("force_mean")
    shard.unlink()
    with pytest.raises(WorkError, match="Block 1"):
        store.read("force_mean", 4, 5)
    assert np.isfinite(store.read("force_mean", 0, 4)).all()
    (store.path / "rows" / "00002.jsonl").write_text('{"id": "pati')
    with pytest.raises(WorkError, match=r"Block 2 .* the rows"):
        list(store.rows())


def test_damaged_marker_says_how_to_go_on(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    (store.path / "markers" / "00001.json").write_text("{}")
    with pytest.raises(WorkError, match=r"00001.json is damaged. Remove it"):
        store.markers()


def test_copy_without_its_empty_folders_can_be_filled(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec())
    (store.path / "markers").rmdir()
    (store.path / "rows").rmdir()
    assert Store.open(store.path).missing() == [0, 1, 2]
    fill(Store.open(store.path))
    assert store.missing() == []


def test_a_store_that_was_removed_and_made_anew_takes_no_blocks_of_the_old_one(tmp_path: Path) -> None:
    """A driver may still be at work when its folder is removed and another run is begun there."""
    old = Store.create(tmp_path / "s.zarr", make_spec())
    shutil.rmtree(old.path)
    with pytest.raises(StorageError, match="no longer the store"):
        fill(old)
    new = Store.create(tmp_path / "s.zarr", make_spec())
    with pytest.raises(StorageError, match="no longer the store"):
        fill(old)
    assert new.missing() == [0, 1, 2]
    fill(new)
    assert new.missing() == []


def test_nothing_but_the_store_is_left_after_writing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    assert [path for path in store.path.rglob("*") if path.name.startswith(".") or path.suffix == ".part"] == []
    assert list(tmp_path.iterdir()) == [store.path]


def test_progress_is_the_last_word_of_each_driver_or_nothing(tmp_path: Path) -> None:
    assert read_progress(tmp_path) == []
    write_progress(tmp_path, {"done": 1})
    write_progress(tmp_path, {"done": 2, "running": [3]})
    write_progress(tmp_path, {"done": 5}, "2/16")
    assert sorted(one["done"] for one in read_progress(tmp_path)) == [2, 5]
    (tmp_path / "progress.json").write_text('{"do')
    assert read_progress(tmp_path) == [{"done": 5}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress-2-of-16.json", "progress.json"]


def test_files_beside_a_block_are_there_before_its_marker_and_gone_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec())
    beside = tmp_path / "fit.npz"

    def published(*_: object) -> None:
        assert beside.read_bytes() == b"whole"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("distlfm.store.store.publish", published)
    with pytest.raises(StorageError):
        store.write_block(0, *make_block(store, 0), beside={beside: b"whole"})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]
    store.write_block(0, *make_block(store, 0), beside={beside: b"whole"})
    store.write_block(0, *make_block(store, 0), beside={beside: b"late"})
    assert beside.read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": ("a", "a")}, "repeat a name"),
        ({"parameter_kinds": ()}, "one kind per parameter"),
        ({"times": (0.0, 1.0)}, "2 values for 5 steps"),
        ({"space": ("x",)}, "either a lattice or nodes"),
        ({"space": ("x",), "lattice": ((0.0,), (1.0,))}, "one list of coordinates"),
        ({"space": ("x", "y"), "nodes": ((0.0,),)}, "one coordinate per axis"),
    ],
)
def test_layout_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_spec(**changes)


@pytest.mark.parametrize("block", [1, 7, 37, 64, 256, 1000])
@pytest.mark.parametrize("row", [1, 500, 20_000, 10**6])
def test_chunks_divide_the_block_and_stay_small(block: int, row: int) -> None:
    rows = chunk_rows(Variable("v", ("instance", "time"), (10**4, row)), block)
    assert block % rows == 0
    assert rows == 1 or rows * row * 8 <= 2**18
