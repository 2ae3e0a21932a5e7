"""Verification finds every damage and says which block and array it is in; leftovers are mentioned, no more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from distlfm.store import Store
from distlfm.store.inspection import Flaw, stores_at, summarise, verify
from tests.support.store_factories import NODES, SQUARE, fill, make_block, make_store


def one_flaw(store: Store) -> Flaw:
    found = verify(Store.open(store.path)).flaws
    assert len(found) == 1, [str(flaw) for flaw in found]
    return found[0]


@pytest.mark.parametrize("layout", [{}, SQUARE, {**NODES, "kind": "generate", "times": None, "draws": 1}])
def test_store_as_it_was_written_is_whole(tmp_path: Path, layout: dict[str, object]) -> None:
    store = make_store(tmp_path / "s.zarr", **layout)
    told: list[int] = []
    found = verify(Store.open(store.path), told.append)
    assert found.ok
    assert found.mentions == []
    assert (found.num_blocks, found.num_instances) == (3, 10)
    assert found.num_bytes == sum(path.stat().st_size for index in range(3) for path in store.block_files(index))
    assert told == [0, 1, 2]


@pytest.mark.parametrize("array", ["observed", "force_mean", "id", "status", "params_var"])
def test_one_changed_bit_is_found_in_its_block_and_array(tmp_path: Path, array: str) -> None:
    store = make_store(tmp_path / "s.zarr")
    path = next(path for path in store.block_files(1) if path.parent.name == array)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    flaw = one_flaw(store)
    assert (flaw.block, flaw.array) == (1, array)
    assert str(flaw).startswith(f"Block 1: the shard of {array} ({array}/{path.name}) is damaged")
    assert "markers/00001.json" in str(flaw)


def test_advice_of_a_flaw_mends_it(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    (store.path / "force_mean" / "c.1.0.0").write_bytes(b"")
    assert not verify(store).ok
    (store.path / "markers" / "00001.json").unlink()
    fill(store, store.missing())
    assert verify(store).ok


def test_lost_shards_and_rows_are_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    (store.path / "solution_mean" / "c.2.0.0").unlink()
    flaw = one_flaw(store)
    assert (flaw.block, flaw.array) == (2, "solution_mean")
    assert "is gone" in str(flaw)
    (store.path / "rows" / "00000.jsonl").unlink()
    assert {(flaw.block, flaw.array) for flaw in verify(store).flaws} == {(2, "solution_mean"), (0, "rows")}
    shutil.rmtree(store.path / "elbo")
    assert {flaw.array for flaw in verify(store).flaws} >= {"elbo", "elbo/zarr.json"}


def test_changed_row_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    path = store.path / "rows" / "00001.jsonl"
    path.write_text(path.read_text().replace("converged", "diverged!", 1))
    assert (one_flaw(store).block, one_flaw(store).array) == (1, "rows")


def test_marker_that_lies_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    path = store.path / "markers" / "00001.json"
    marker = json.loads(path.read_text())
    path.write_text(json.dumps({**marker, "count": 3}))
    assert "its marker is for instances 4 to 6" in str(one_flaw(store))
    path.write_text(json.dumps({**marker, "statuses": {"converged": 4}}))
    assert "its marker counts {'converged': 4}" in str(one_flaw(store))
    path.write_text(json.dumps({**marker, "checksums": {}}))
    assert "other files than the store's layout" in str(one_flaw(store))
    path.write_text("{")
    assert "is damaged" in str(one_flaw(store))
    path.write_text(json.dumps(marker))
    shutil.copy(path, path.with_name("00007.json"))
    assert "block 7, and the store has 3" in str(one_flaw(store))


def test_names_that_repeat_are_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0, 1])
    arrays, rows = make_block(store, 2)
    arrays["id"][0] = rows[0]["id"] = "patient-5"
    store.write_block(2, arrays, rows)
    flaw = one_flaw(store)
    assert "the name 'patient-5' is in block 1 too" in str(flaw)
    assert flaw.block == 2


def test_rows_of_other_instances_are_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0, 1])
    arrays, rows = make_block(store, 2)
    store.write_block(2, arrays, rows[::-1])
    assert "is about another instance" in str(one_flaw(store))


def test_damage_of_what_all_instances_share_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    names = next(path for path in (store.path / "output").iterdir() if path.name != "zarr.json")
    names.write_bytes(b"\0" * 40)
    assert one_flaw(store).array == "output"
    names.unlink()
    assert one_flaw(store).array == "output"


def test_missing_blocks_and_leftovers_are_mentioned_and_no_flaw(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr")
    (store.path / "markers" / "00001.json").unlink()
    (store.path / "elbo" / ".c.1.part").write_bytes(b"half")
    (store.path / "markers" / ".00001.json.part").write_bytes(b"")
    found = verify(store)
    assert found.ok
    assert "1 of 3 blocks are not finished (1)" in found.mentions[0]
    count = len(store.block_files(1)) + 2
    assert f"{count} files belong to no finished block" in found.mentions[1]
    fill(store, [1])
    assert verify(store).mentions == []


def test_summary_counts_what_is_done_and_failed(tmp_path: Path) -> None:
    make_store(tmp_path / "runs" / "one" / "store.zarr", blocks=[0, 1], **SQUARE)
    make_store(tmp_path / "runs" / "two.zarr", kind="generate")
    (tmp_path / "runs" / "notes").mkdir()
    paths = list(stores_at([tmp_path / "runs"]))
    assert [path.name for path in paths] == ["one", "two.zarr"]
    one, two = map(summarise, paths)
    assert (one.kind, one.mechanism, one.config_hash) == ("fit", "transcription", "abc123")
    assert (one.done, one.failed, one.instances, one.blocks_done, one.blocks) == (8, 1, 10, 2, 3)
    assert one.dims == {"output": 2, "force": 1, "parameter": 3, "sample": 6, "time": 5, "x": 3, "y": 2}
    assert one.bytes > 0
    assert one.driver == ""
    assert (two.kind, two.done, two.failed) == ("generate", 10, 0)
    assert np.datetime64(two.created[:19]) <= np.datetime64("now")
