"""A small fleet and real `distlfm fit` processes on it, for tests that disturb them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import build
from distlfm.data import write_npz
from distlfm.inference.model import ForceConfig, Model
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.mechanisms.priors import LogNormal
from distlfm.runs.settings import FitConfig
from distlfm.simulation.instances import simulate
from distlfm.store import Store

INSTANCES, BATCH = 40, 4
TIMED = {"wall_s"}
"""What no two runs share."""

CONFIG: dict[str, Any] = {
    "verb": "fit",
    "mechanism": {"kind": "transcription", "outputs": ["a", "b"], "initial": "steady"},
    "likelihood": {"prior": {"kind": "lognormal", "median": 0.05, "spread": 0.5}},
    "inference": {"optimiser": {"rounds": 1, "iterations": 20}, "posterior": {"draws": 16}},
    "run": {"batch": BATCH, "keep": "none", "seed": 5},
}


def write_fleet(folder: Path, count: int = INSTANCES) -> None:
    """`config.yaml` and `data.npz` of a fleet, in `folder`."""
    model = Model(
        build_system(CONFIG["mechanism"]),
        ForceConfig(),
        LikelihoodConfig(prior=LogNormal(median=0.05, spread=0.5)),
    )
    times = [float(t) for t in np.linspace(0, 10, 12)]
    write_npz(folder / "data.npz", simulate(model, num_instances=count, times=times, truth_times=times, seed=1))
    build(FitConfig, CONFIG)
    (folder / "config.yaml").write_text(json.dumps(CONFIG), encoding="utf-8")


def command(folder: Path, out: Path, *more: str) -> list[str]:
    verb = ["fit", str(folder / "config.yaml"), "--data", str(folder / "data.npz"), "--out", str(out)]
    return [sys.executable, "-m", "distlfm", *verb, *more]


class Driver:
    """A running `distlfm fit`, in a process group of its own; everything it started is gone at the end."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        self.family: set[int] = set()

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def watch(self) -> set[int]:
        """Note every process below this one that is alive now."""
        self.family |= descendants(self.process.pid)
        return self.family

    def wait(self, seconds: float = 240.0) -> int:
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, f"still running after {seconds} s:\n{self.text}"
            self.watch()
            time.sleep(0.1)
        return self.process.returncode

    def kill(self) -> None:
        self.watch()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def driving(arguments: list[str], log: Path) -> Iterator[Driver]:
    driver = Driver(arguments, log)
    try:
        yield driver
    finally:
        driver.watch()
        driver.kill()
        for pid in driver.family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> set[int]:
    """Every living process below `root`."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def all_gone(pids: set[int], seconds: float = 20.0) -> bool:
    """Whether these processes end by themselves."""
    until = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def events(out: Path) -> list[dict[str, Any]]:
    """What the driver has told so far; the last line may be half written."""
    found = []
    if (out / "events.jsonl").exists():
        for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def wait_for(out: Path, kind: str, count: int, driver: Driver, seconds: float = 120.0) -> list[dict[str, Any]]:
    """Wait until `count` events of a kind are told."""
    until = time.monotonic() + seconds
    while True:
        found = [event for event in events(out) if event["event"] == kind]
        if len(found) >= count:
            return found
        assert driver.process.poll() is None, f"it ended too early:\n{driver.text}"
        assert time.monotonic() < until, f"no {kind} within {seconds} s:\n{driver.text}"
        time.sleep(0.02)


def numbers(out: Path) -> dict[str, Any]:
    """Every array of a finished run's store, but for those that hold times of day."""
    store = Store.open(out)
    assert store.missing() == []
    return {name: store.read(name) for name in store.variables if name not in TIMED}


def assert_same(out: Path, reference: Path, count: int = INSTANCES) -> None:
    """A run has every instance once, whole by checksum, and the reference's numbers to the last bit."""
    from distlfm.store.inspection import verify

    assert verify(Store.open(out)).flaws == []
    found, wanted = numbers(out), numbers(reference)
    assert sorted(found["id"]) == sorted({f"sim-{i:06d}" for i in range(count)})
    assert [row["id"] for row in Store.open(out).rows()] == list(found["id"])
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
