"""Fleets on Ray: two actors against two bare processes, writing, the driver's memory, and 2,000 days of glucose."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks import fleet_days
from benchmarks.fleet_days import OF_A_STORE
from benchmarks.generate import one_core, rates
from benchmarks.goals import at_least, at_most
from distlfm.cluster.pool import BlockDone, Started
from distlfm.cluster.ray_pool import RayPool
from distlfm.cluster.ray_session import RaySession, ray_session
from distlfm.config import load
from distlfm.pipeline.fit_job import FitJob
from distlfm.pipeline.fit_plan import make_job, make_plan, open_store
from distlfm.pipeline.generate import generate
from distlfm.pipeline.settings import FitConfig
from distlfm.runtime.reporting import Silent
from distlfm.runtime.signals import Stop

T = TypeVar("T")
GENES = [f"configs/{verb}/transcription{toy}.yaml" for verb, toy in (("generate", ""), ("fit", "_toy"))]
BLOCK = 8
SHORT = [
    "inference.optimiser.rounds=0",
    "inference.optimiser.iterations=2",
    "inference.posterior.draws=2",
    "inference.posterior.stages=[2]",
    "inference.grid_points=5",
]
"""As little fitting as possible: what is measured is the driver."""

NICENESS = 15
"""Ray's own for its workers; bare processes get it too, so that whatever else runs here slows both alike."""

BARE = """
import os, sys, time
os.nice(int(sys.argv[4]))
from benchmarks.fleet import prepared
job = prepared(*sys.argv[1:3])
worker = job.open()
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
for block in range(int(sys.argv[3]), job.num_blocks, 2):
    worker.run(block, {})
print(time.perf_counter() - start, flush=True)
"""
MEASURED = """
import resource, sys
from distlfm.cli import main
code = main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, code, flush=True)
"""


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shared = told("actors", _actors(folder, 32, rounds=1 if quick else 5))
        sizes = (50, 200) if quick else (500, 5000)
        peaks = told("driver", [_driver_peak(folder, count) for count in sizes])
        with one_core():
            drawn = told("generate", rates("transcription", 512 if quick else 4096))
    days = told("glucose", fleet_days.run(quick))
    return {
        "figures": {
            "two actors over two bare processes": at_least(shared["ratio"], 0.9),
            "writing as a share of fitting": at_most(shared["writing"], 0.03),
            f"driver's peak, MB more for {sizes[1]} instances than for {sizes[0]}": at_most(peaks[1] - peaks[0], 50.0),
            "transcription instances generated a second": at_least(drawn["written, a second"], 500.0),
            **days["figures"],
        },
        "instances a second": {name: shared[name] for name in ("ratios", "ray", "bare")},
        "driver's peak, MB": dict(zip(map(str, sizes), peaks, strict=True)),
        "glucose": days["glucose"],
    }


def told(part: str, found: T) -> T:
    """The same, said at once: the whole takes half an hour."""
    print(json.dumps({part: found}), file=sys.stderr, flush=True)
    return found


def prepared(data: str, out: str) -> FitJob:
    """A fit of a generated store, ready to be worked on."""
    settings = [*OF_A_STORE, f"data.path={data}", f"run.dir={out}", f"run.batch={BLOCK}", "run.keep=none"]
    config = load(FitConfig, Path(GENES[1]), settings)
    directory = Path(out)
    directory.mkdir(parents=True, exist_ok=True)
    plan = make_plan(config, None, directory / "input", Silent())
    return make_job(directory, config, plan, open_store(directory / "store.zarr", config, plan))


def _actors(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Two actors against two bare processes, in turns: ratio of their rates in each turn, and the share of writing.

    Turns are short and many, and their median counts: whatever else this machine does for a while spoils few of them.
    """
    data = folder / "genes.zarr"
    generate(GENES[0], [f"instances={count}", "sampling.every=10", f"run.dir={data}"])
    rates: dict[str, list[float]] = {"ray": [], "bare": []}
    writing: list[float] = []
    with ray_session() as session:
        for turn in range(rounds):
            for kind in ("ray", "bare") if turn % 2 == 0 else ("bare", "ray"):
                out = folder / f"{kind}{turn}"
                if kind == "ray":
                    seconds, share = _by_ray(session, data, out)
                    writing.append(share)
                else:
                    seconds = _by_processes(data, out)
                rates[kind].append(count / seconds)
    ratios = [ray / bare for ray, bare in zip(rates["ray"], rates["bare"], strict=True)]
    return {"ratio": median(ratios), "ratios": ratios, **rates, "writing": sum(writing) / len(writing)}


def _by_ray(session: RaySession, data: Path, out: Path) -> tuple[float, float]:
    job = prepared(str(data), str(out))
    first, last, fitted, written = 0.0, 0.0, 0.0, 0.0
    with Stop() as stop:
        for event in RayPool(session, 2).work(job, range(job.num_blocks), stop):
            if isinstance(event, Started):
                first = first or time.perf_counter()
            if isinstance(event, BlockDone):
                last = time.perf_counter()
                fitted += float(event.report["seconds"])
                written += float(event.report["write_s"])
    return last - first, written / fitted


def _by_processes(data: Path, out: Path) -> float:
    prepared(str(data), str(out))
    command = [sys.executable, "-c", BARE, str(data), str(out)]
    both = [
        subprocess.Popen([*command, str(half), str(NICENESS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for half in (0, 1)
    ]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline().strip() == "ready"
    for one in both:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return max(float(one.communicate()[0]) for one in both)


def _driver_peak(folder: Path, count: int) -> float:
    """Peak memory in MB of the process that drives a fit of so many instances on Ray."""
    data = folder / f"driver{count}.zarr"
    few = ["num_outputs=2", "points=6", f"instances={count}"]
    generate(GENES[0], [*few, f"run.dir={data}"])
    arguments = ["-q", "fit", GENES[1], "--data", str(data), "--out", str(folder / f"driver{count}")]
    more = ["--executor", "ray", *OF_A_STORE, *SHORT, "run.batch=50"]
    command = [sys.executable, "-c", MEASURED, *arguments, *more]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said[-1] in ("0", "1"), said
    return float(said[said.index("peak") + 1])
