"""The store when disks are full or read-only, writers are killed, and two of them meet. All with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from distlfm.errors import StorageError, UsageError
from distlfm.store import Store, driver_lock, holder, write_progress
from distlfm.store.inspection import verify
from tests.support.importing import import_environment
from tests.support.store_factories import fill, make_block, make_spec, make_store

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can mount")
WRITER = """
import sys
from distlfm.store import Store
from tests.support.store_factories import fill
store = Store.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
fill(store, [int(block) for block in sys.argv[2:]])
"""
SLOW_WRITER = """
import os, sys, time
import distlfm.store.files as files
from distlfm.store import Store
from tests.support.store_factories import fill
flush, calls = os.fsync, []
def slow(descriptor):
    calls.append(descriptor)
    if len(calls) == int(sys.argv[3]):
        print("half", flush=True)
        time.sleep(600)
    flush(descriptor)
os.fsync = slow
files.FLUSHES = 1
fill(Store.open(sys.argv[1]), [int(sys.argv[2])])
"""
DRIVER = """
import sys, time
from pathlib import Path
from distlfm.store import driver_lock
with driver_lock(Path(sys.argv[1]), role="generate") as me:
    print(me.pid, flush=True)
    time.sleep(600)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=import_environment(),
    )


def first_word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=60)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def leftovers(store: Store) -> list[str]:
    return sorted(str(path.relative_to(store.path)) for path in store.path.rglob("*.part"))


def assert_holds(store: Store, blocks: list[int]) -> None:
    """Exactly these blocks are there, whole, with the numbers that they were given."""
    assert sorted(store.markers()) == blocks
    found = verify(store)
    assert found.ok, [str(flaw) for flaw in found.flaws]
    for index in blocks:
        where = store.block_range(index)
        arrays, rows = make_block(store, index)
        for name in ("observed", "force_mean", "params_var", "id", "seed"):
            np.testing.assert_array_equal(store.read(name, where.start, where.stop), arrays[name], err_msg=name)
        assert list(store.rows([index])) == rows


def test_writers_of_different_blocks_lose_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec(instances=96))
    even = start(WRITER, store.path, *range(0, 24, 2))
    odd = start(WRITER, store.path, *range(1, 24, 2))
    assert [first_word(even), first_word(odd)] == ["ready", "ready"]
    for process in (even, odd):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in (even, odd):
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert_holds(store, list(range(24)))
    assert leftovers(store) == []


def test_writers_of_the_same_blocks_agree_on_one_of_them(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.zarr", make_spec(instances=32))
    writers = [start(WRITER, store.path, *range(8)) for _ in range(3)]
    assert [first_word(process) for process in writers] == ["ready"] * 3
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in writers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert_holds(store, list(range(8)))
    assert leftovers(store) == []


@pytest.mark.parametrize("flush", [1, 7, 20, 29])
def test_writer_killed_midway_leaves_no_marker_and_the_next_one_replaces_all(tmp_path: Path, flush: int) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    dying = start(SLOW_WRITER, store.path, 1, flush)
    assert first_word(dying) == "half"
    assert store.missing() == [1, 2]
    kill(dying)
    assert_holds(store, [0])
    fill(store, [1, 2])
    assert_holds(store, [0, 1, 2])
    assert leftovers(store) == []
    assert verify(store).mentions == []


def test_second_writer_of_a_block_waits_for_the_first_and_goes_on_when_it_dies(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    dying = start(SLOW_WRITER, store.path, 1, 5)
    assert first_word(dying) == "half"
    waiting = start(WRITER, store.path, 1)
    assert first_word(waiting) == "ready"
    assert waiting.stdin is not None
    waiting.stdin.write("\n")
    waiting.stdin.flush()
    time.sleep(1)
    assert waiting.poll() is None
    kill(dying)
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert_holds(store, [0, 1])
    assert leftovers(store) == []


@needs_root
def test_full_disk_stops_the_block_and_nothing_else(small_disk: Path) -> None:
    store = make_store(small_disk / "s.zarr", blocks=[0], instances=12, block=4, steps=100)
    ballast = small_disk / "ballast"
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    ballast.write_bytes(bytes(free - 3 * 4096))
    with pytest.raises(StorageError, match=r"Cannot write block 1 in .*No space left on device.*Free space") as caught:
        fill(store, [1])
    assert caught.value.exit_code == 1
    assert_holds(store, [0])
    assert leftovers(store) == []
    assert verify(store).mentions[1:] == []
    with pytest.raises(StorageError):
        fill(store, [1])
    ballast.unlink()
    fill(store, [1, 2])
    assert_holds(store, [0, 1, 2])


@needs_root
def test_disk_that_is_full_from_the_start_takes_no_half_a_store(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2**21 - 8 * 4096))
    with pytest.raises(StorageError, match="Cannot write a new store"):
        Store.create(small_disk / "s.zarr", make_spec())
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]
    ballast.unlink()
    fill(Store.create(small_disk / "s.zarr", make_spec()))


@needs_root
def test_read_only_disk_is_read_and_not_written(small_disk: Path) -> None:
    store = make_store(small_disk / "s.zarr", blocks=[0])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_holds(Store.open(store.path), [0])
    assert holder(store.path) is None
    with pytest.raises(StorageError, match=r"Read-only file system.*Mount it for writing"):
        fill(store, [1])
    with pytest.raises(StorageError, match="Cannot write a new store"):
        Store.create(small_disk / "t.zarr", make_spec())
    with pytest.raises(StorageError, match="Cannot write the lock"), driver_lock(store.path):
        pass
    with pytest.raises(StorageError, match="Cannot write the progress"):
        write_progress(store.path, {})
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    fill(store, [1])
    assert_holds(store, [0, 1])


def test_second_driver_is_refused_and_told_who_is_the_first(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    first = start(DRIVER, store.path)
    pid = int(first_word(first))
    who = holder(store.path)
    assert who is not None
    assert (who.pid, who.role) == (pid, "generate")
    told = rf"is in use: generate on \S+, process {pid}, since 20"
    with pytest.raises(UsageError, match=told), driver_lock(store.path):
        pass
    kill(first)
    assert holder(store.path) is None
    with driver_lock(store.path, role="fit") as mine:
        assert mine.pid == os.getpid()
        assert holder(store.path) == mine
    assert holder(store.path) is None


def test_stopped_driver_frees_the_store(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    first = start(DRIVER, store.path)
    assert first_word(first)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    with driver_lock(store.path):
        pass


def test_who_asks_for_the_driver_never_keeps_one_out(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    with driver_lock(store.path):
        pass
    asking = start(
        "import sys\nfrom pathlib import Path\nfrom distlfm.store import holder\nprint('go', flush=True)\n"
        "while True: holder(Path(sys.argv[1]))",
        store.path,
    )
    assert first_word(asking) == "go"
    try:
        for _ in range(200):
            with driver_lock(store.path):
                pass
    finally:
        kill(asking)
