"""Two Ray actors against two bare processes that fit the same instances, and the share of their time for writing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fleet_days import OF_A_STORE
from benchmarks.goals import at_least, at_most
from distlfm.cluster.blocks.job import BlockDone, Started
from distlfm.cluster.ray.pool import RayPool
from distlfm.cluster.ray.session import RaySession, ray_session
from distlfm.config import load
from distlfm.fleets.fit_job import FITS, FitJob
from distlfm.fleets.fit_plan import make_job, make_plan, open_store
from distlfm.runs.settings import FitConfig
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Silent
from distlfm.verbs.generate import generate

GENES = [f"configs/{verb}/transcription{toy}.yaml" for verb, toy in (("generate", ""), ("fit", "_toy"))]
BLOCK = 8
NICENESS = 15
"""Ray's own for its workers; bare processes get it too, so that whatever else runs here slows both alike."""

BARE = """
import os, sys, time
os.nice(int(sys.argv[4]))
from benchmarks.fleet_actors import prepared
job = prepared(*sys.argv[1:3])
worker = job.open()
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
for block in range(int(sys.argv[3]), job.num_blocks, 2):
    worker.run(block, {})
print(time.perf_counter() - start, flush=True)
"""


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), 32, rounds=1 if quick else 5)
    return {
        "figures": {
            "two actors over two bare processes": at_least(found["ratio"], 0.9),
            "writing as a share of fitting": at_most(found["writing"], 0.03),
        },
        "instances a second": {name: found[name] for name in ("ratios", "ray", "bare")},
    }


def prepared(data: str, out: str) -> FitJob:
    """A fit of a generated store, ready to be worked on."""
    settings = [*OF_A_STORE, f"data.path={data}", f"run.dir={out}", f"run.batch={BLOCK}"]
    config = load(FitConfig, Path(GENES[1]), settings)
    directory = Path(out)
    (directory / FITS).mkdir(parents=True, exist_ok=True)
    plan = make_plan(config, None, directory / "input", Silent())
    return make_job(directory, config, plan, open_store(directory / "store.zarr", config, plan))


def compare(folder: Path, count: int, rounds: int) -> dict[str, Any]:
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
