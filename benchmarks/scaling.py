"""How fits scale over nodes: seconds of processor time an instance, and 1 to 4 virtual nodes whose blocks take time.

A machine with two cores cannot show four nodes that compute. So what costs processor time is measured as such, and
what a cluster adds to it (sending blocks, telling of them, writing them, the wait for the last one) on virtual nodes: a
Ray over so many hosts, which are all this machine, whose workers draw a block, wait as long as a fit of it would take,
and write it. `sizes` puts both together; docs/cluster.md has its table.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.goals import at_least
from distlfm.cluster.blocks.job import BlockDone, Job, Started, Worker
from distlfm.cluster.ray.hosts import Machines, ray_over
from distlfm.cluster.ray.pool import RayPool
from distlfm.cluster.ray.session import ray_session
from distlfm.config import load
from distlfm.runs.settings import GenerateConfig
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Silent
from distlfm.verbs.estimate import CORES, EFFICIENCY, START_SECONDS, estimate
from distlfm.verbs.generate import GenerateJob, generate, open_store

STORE_DATA = ["data.dataset=null", "data.columns=null", "data.stride=1", "data.window=null", "data.fraction=1"]
KINDS: dict[str, tuple[str, str, list[str], int]] = {
    # Name: config of generate, config of fit, what is observed, instances of a block.
    "transcription": ("transcription", "transcription_toy", ["sampling.every=10"], 16),
    "glucose": ("glucose", "glucose", [], 8),
    "reaction_diffusion": ("reaction_diffusion", "reaction_diffusion_noisy", ["sampling.count=500"], 2),
}
NODES, CPUS = (1, 2, 3, 4), 2
BLOCKS, BLOCK, WAIT_SECONDS = 24, 16, 3.0
GOAL = 0.85
PROGRAM = "import sys; from benchmarks.scaling import drive; drive(*sys.argv[1:])"


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        costs = {kind: cost(kind, folder, quick) for kind in KINDS}
        over = {nodes: virtual(nodes, folder, quick) for nodes in (NODES[:2] if quick else NODES)}
    last = over[max(over)]
    tables = {kind: [sizes(count, each["seconds"]) for count in (10**4, 10**6)] for kind, each in costs.items()}
    return {
        "figures": {f"share of {max(over)} nodes' time that is work": at_least(last["efficiency"], GOAL)},
        "processor time of a fit": costs,
        "virtual nodes": over,
        "sizes": tables,
    }


# ---- what a fit costs ------------------------------------------------------------------------------------------------


def cost(kind: str, folder: Path, quick: bool) -> dict[str, float]:
    """Seconds of processor time an instance, of all processes that fit it; what is done once is no part of it."""
    drawn, fitted, sampling, block = KINDS[kind]
    count = 2 if quick else block
    data = folder / f"{kind}.zarr"
    drawing = [*sampling, f"instances={count}", f"run.dir={data}", "run.executor=serial"]
    generate(f"configs/generate/{drawn}.yaml", drawing)
    settings = [*STORE_DATA, f"data.path={data}", f"run.batch={count}", "run.keep=none"]
    since = time.perf_counter()
    found = estimate(Path(f"configs/fit/{fitted}.yaml"), settings)
    clock = (time.perf_counter() - since) / found.probed
    return {"instances": found.batch, "seconds": found.seconds, "on the clock, with the start": clock}


# ---- virtual nodes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WaitingJob(Job):
    """Blocks that are drawn and written, and take `seconds` as if they were fitted."""

    inner: GenerateJob
    seconds: float

    @property
    def num_blocks(self) -> int:  # type: ignore[override]
        return self.inner.num_blocks

    def sizes(self) -> Sequence[float]:
        return self.inner.sizes()

    def count(self, block: int) -> int:
        return self.inner.count(block)

    def open(self) -> Worker:
        return _Waiting(self.inner.open(), self.seconds)


class _Waiting(Worker):
    def __init__(self, inner: Worker, seconds: float) -> None:
        self.inner, self.seconds = inner, seconds

    def run(self, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
        time.sleep(self.seconds)
        return self.inner.run(block, left_out)

    def attempt(self, block: int, rows: Sequence[int]) -> None:
        self.inner.attempt(block, rows)


def virtual(nodes: int, folder: Path, quick: bool) -> dict[str, float]:
    """What a Ray over so many virtual nodes makes of blocks that take time."""
    blocks, wait = (BLOCKS // 4, WAIT_SECONDS / 4) if quick else (BLOCKS, WAIT_SECONDS)
    store = folder / f"virtual{nodes}.zarr"
    since = time.perf_counter()
    with ray_over(["localhost"] * nodes, "ssh", Machines(cpus=CPUS), Silent()) as ray:
        started = time.perf_counter() - since
        arguments = [ray.address, str(store), str(blocks), str(wait)]
        command = [sys.executable, "-c", PROGRAM, *arguments]
        done = subprocess.run(command, env=ray.environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {"workers": nodes * CPUS, "seconds to start Ray": started, **found}


def drive(address: str, store: str, blocks: str, wait: str) -> None:
    """The driver of `virtual`, in a process of its own: prints the share of the workers' time that was work.

    A worker's time begins with its first block: how long all of them take to load their libraries, on the two cores of
    one machine, says nothing of nodes that have cores of their own.
    """
    settings = [f"instances={int(blocks) * BLOCK}", f"run.block={BLOCK}", "points=12", f"run.dir={store}"]
    config = load(GenerateConfig, Path("configs/generate/transcription.yaml"), settings)
    job = WaitingJob(GenerateJob.of(config, open_store(config, Path(store))), float(wait))
    began: dict[str, float] = {}
    last = 0.0
    with ray_session(address) as session, Stop() as stop:
        before = time.process_time()
        for event in RayPool(session).work(job, range(job.num_blocks), stop):
            if isinstance(event, Started):
                began.setdefault(event.worker, time.perf_counter())
            if isinstance(event, BlockDone):
                last = time.perf_counter()
        spent = time.process_time() - before
    given = sum(last - since for since in began.values())
    told = {"workers that worked": len(began), "efficiency": job.num_blocks * float(wait) / given}
    print(json.dumps({**told, "driver's seconds a block": spent / job.num_blocks}))


# ---- the model -------------------------------------------------------------------------------------------------------


def sizes(instances: int, seconds: float, hours: float = 4.0, cores: int = CORES) -> dict[str, float]:
    """Nodes for so many fits of `seconds` each within `hours`, and how long these take."""
    work = instances * seconds / EFFICIENCY
    nodes = max(1, math.ceil(work / (cores * (hours * 3600 - START_SECONDS))))
    return {"instances": instances, "nodes": nodes, "hours": (START_SECONDS + work / (nodes * cores)) / 3600}
