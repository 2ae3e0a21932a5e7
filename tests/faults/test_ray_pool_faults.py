"""However a driver ends, its private Ray ends with it, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.importing import import_environment
from tests.support.pool_toy import results

pytestmark = pytest.mark.slow

STRAY = {"RAY_ADDRESS": "127.0.0.1:1", "RAY_NAMESPACE": "elsewhere"}
"""Settings of another Ray, which a private one must not heed."""


class Driver:
    """A driver process in a process group of its own, with all its descendants."""

    def __init__(self, folder: Path, seconds: float, grace: float = 10.0) -> None:
        self.temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.pool_driver", str(folder), str(seconds), str(grace)],
            env={**import_environment(), **STRAY, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: list[dict[str, Any]] = []
        self.family: set[tuple[int, str]] = set()

    def until(self, event: str, times: int = 1) -> None:
        """Wait until it has said something so many times."""
        assert self.process.stdout is not None
        while sum(line["event"] == event for line in self.said) < times:
            line = self.process.stdout.readline()
            assert line, f"it ended before: {self.process.stderr and self.process.stderr.read()}"
            self.said.append(json.loads(line))
        self.family = set(descendants(self.process.pid))

    def end(self, seconds: float = 40.0) -> dict[str, Any]:
        """Wait for its end; what it said last."""
        out, _ = self.process.communicate(timeout=seconds)
        self.said += [json.loads(line) for line in out.splitlines()]
        return self.said[-1]

    def left(self, patience: float = 5.0) -> list[int]:
        """Which of its descendants are still there after a while."""
        until = time.monotonic() + patience
        while time.monotonic() < until and any(born(number) == when for number, when in self.family):
            time.sleep(0.05)
        return [number for number, when in self.family if born(number) == when]

    def one(self, program: str) -> int:
        """The descendant that runs this program."""
        (number,) = [number for number, _ in self.family if command(number).endswith(program)]
        return number


def descendants(number: int) -> Iterator[tuple[int, str]]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    stack = list(parents.get(number, []))
    while stack:
        child = stack.pop()
        stack += parents.get(child, [])
        yield child, born(child)


def stat(number: int) -> list[str]:
    """State, parent and so on; nothing of a process that is gone."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def born(number: int) -> str:
    """When a process was started; empty if it is gone or waits to be buried."""
    fields = stat(number)
    return fields[19] if fields and fields[0] != "Z" else ""


def command(number: int) -> str:
    return Path(f"/proc/{number}/cmdline").read_text().split("\0")[0]


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    started: list[Driver] = []
    yield started
    for driver in started:
        if driver.process.poll() is None:
            driver.process.kill()
            driver.process.communicate()
        until = time.monotonic() + 5
        while list(driver.temporary.iterdir()) and time.monotonic() < until:
            time.sleep(0.05)
        for name in driver.temporary.iterdir():
            pytest.fail(f"{name} was left behind")
        driver.temporary.rmdir()


@pytest.mark.parametrize(
    ("which", "whole_group"),
    [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)],
    ids=["kill", "Ctrl-C", "kill the group"],
)
def test_a_signal_lets_blocks_in_hand_finish_and_leaves_nothing(
    tmp_path: Path, drivers: list[Driver], which: signal.Signals, whole_group: bool
) -> None:
    drivers.append(driver := Driver(tmp_path, seconds=1.0))
    driver.until("Started")
    (private,) = driver.temporary.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    (os.killpg if whole_group else os.kill)(driver.process.pid, which)
    last = driver.end()
    assert last == {"event": "ended", "stopped": True, "restored": True}
    assert driver.process.returncode == 0
    done = sum(line["event"] == "BlockDone" for line in driver.said)
    assert done == len(results(tmp_path))
    # SIGTERM to the whole group ends the raylet and its workers too: then blocks in hand may be dropped, whole.
    if not (whole_group and which == signal.SIGTERM):
        assert done == sum(line["event"] == "Started" for line in driver.said)
        assert done >= 1
    assert done < 8
    assert driver.left(patience=0.0) == []


def test_a_driver_killed_outright_leaves_no_process_and_no_file(tmp_path: Path, drivers: list[Driver]) -> None:
    drivers.append(driver := Driver(tmp_path, seconds=2.0))
    driver.until("Started")
    assert len(driver.family) > 5
    driver.process.kill()
    driver.process.communicate()
    assert driver.left() == []
    time.sleep(2.5)
    assert results(tmp_path) == {}, "an orphan stored its block"


@pytest.mark.parametrize("program", ["/raylet", "/gcs_server"])
def test_a_ray_that_dies_ends_the_run_with_a_sentence(tmp_path: Path, drivers: list[Driver], program: str) -> None:
    drivers.append(driver := Driver(tmp_path, seconds=2.0))
    driver.until("Started")
    os.kill(driver.one(program), signal.SIGKILL)
    last = driver.end()
    assert last["event"] == "failed"
    assert "has ended. The same command goes on with what is left." in last["text"]
    assert driver.left() == []


def test_a_second_signal_drops_all_at_once(tmp_path: Path, drivers: list[Driver]) -> None:
    drivers.append(driver := Driver(tmp_path, seconds=60.0, grace=60.0))
    driver.until("Started")
    os.killpg(driver.process.pid, signal.SIGINT)
    time.sleep(0.5)
    os.killpg(driver.process.pid, signal.SIGINT)
    driver.process.communicate(timeout=20)
    assert driver.process.returncode != 0
    assert driver.left() == []
    assert results(tmp_path) == {}
