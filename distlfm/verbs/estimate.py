"""What a fleet will cost, from a probe of a few of its instances: core hours, memory, and nodes.

The probe goes the way of a fit, in a folder of its own that is removed: the data are read, some instances of blocks
that lie evenly over the fleet are fitted in this process, and nothing is kept.
"""

from __future__ import annotations

import json
import math
import os
import resource
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distlfm.cluster.blocks.job import Worker
from distlfm.cluster.machine import usable_cpus
from distlfm.cluster.slurm.script import Resources, bytes_of, seconds_of
from distlfm.config import Overrides, load
from distlfm.errors import UsageError
from distlfm.fleets.fit_plan import open_folder, prepare
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig
from distlfm.runtime.process import torch_threads
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store import Store
from distlfm.store.layout import variables
from distlfm.verbs.fit import with_data

EFFICIENCY = 0.75
"""Share of all cores' time in which they fit: less than was measured on four virtual nodes (docs/cluster.md)."""

START_SECONDS = 60.0
"""For the start of Ray and the report."""

CORES = 32
"""Of a node, where none is named."""

LIMIT_HOURS = 4.0
"""In which a job should end, where no limit is named."""

ENOUGH_SECONDS = 30.0
"""Processor time that a probe may take, about."""

PLACES = 3
"""Blocks over the fleet of which instances are probed."""

FIRST = 2
"""Instances of the first and smallest of the probed batches."""


@dataclass(frozen=True)
class Estimate:
    """What all fits of a fleet cost.

    instances, blocks: how many the fleet has. probed: how many instances were fitted for the estimate. batch: the
    largest number of them fitted at once. seconds: processor time per instance in the largest batch. least, most: the
    range of that time over the probed batches. worker_bytes: peak memory of a worker. store_bytes: size of all answers
    before compression, without the posteriors that `run.keep` keeps.
    """

    instances: int
    blocks: int
    probed: int
    batch: int
    seconds: float
    least: float
    most: float
    worker_bytes: int
    store_bytes: int

    @property
    def core_hours(self) -> float:
        """Processor time of the whole fleet, in hours of a core like the one that the probe ran on."""
        return self.instances * self.seconds / 3600

    def hours(self, nodes: int = 1, cores: int = CORES, *, start: float = START_SECONDS) -> float:
        """Return the hours that the fleet takes on a cluster.

        nodes: number of nodes. cores: cores per node; no more can work than there are blocks. start: seconds for the
        start of Ray and the report.
        """
        busy = max(1, min(nodes * cores, self.blocks))
        rounds = math.ceil(self.blocks / busy) * busy / self.blocks
        share = EFFICIENCY if busy > 1 else 1.0
        return (start + self.instances * self.seconds / busy * max(rounds, 1 / share)) / 3600

    def nodes(self, hours: float = LIMIT_HOURS, cores: int = CORES) -> int | None:
        """Return the smallest number of nodes on which the fleet ends in time, or None if it has too few blocks.

        hours: the time limit. cores: cores per node.
        """
        most = max(1, math.ceil(self.blocks / cores))
        return next((count for count in range(1, most + 1) if self.hours(count, cores) <= hours), None)

    def lines(self, workers: int) -> list[str]:
        """Return the estimate in words, a list of lines. workers: number of workers that this machine would use."""
        workers = min(workers, self.blocks)
        nodes = self.nodes()
        asked = "more than four hours on any number of nodes: set a smaller run.batch" if nodes is None else ""
        if nodes is not None:
            asked = f"{nodes} node{'s' if nodes > 1 else ''}, {in_words(self.hours(nodes))}"
        spread = f"{self.least:.2g} to {self.most:.2g} in its batches, of up to {self.batch}"
        return [
            f"probe: {self.probed} of {self.instances} instances fitted, none kept",
            f"an instance: {self.seconds:.2g} s of a core like this one ({spread})",
            f"the fleet: {self.core_hours:.2g} core hours in {self.blocks} block{'s' if self.blocks > 1 else ''}",
            f"memory: {_gigabytes(self.worker_bytes)} a worker; store: at most {_gigabytes(self.store_bytes)}",
            f"this machine: {in_words(self.hours(1, workers, start=0.0))} with {workers} "
            f"worker{'s' if workers > 1 else ''}",
            f"a cluster, {CORES} cores a node: {asked}",
        ]


def estimate(
    config: FitConfig | Mapping[str, Any] | Path | str,
    data: Instance | Sequence[Instance] | Path | str | None = None,
    overrides: Overrides = (),
    reporter: Reporter | None = None,
    seconds: float = ENOUGH_SECONDS,
) -> Estimate:
    """Probe what a fit will cost. Only a temporary folder is written to.

    config: the path of a config file, a mapping with its content, or a config. data: instances, or a path to them, in
    place of the config's. overrides: settings to change, as for `fit`. reporter: where warnings go, by default nowhere.
    seconds: approximate processor time that the probe may take; at least two instances are fitted, where there are two.

    Returns the estimate. Raises `UsageError` if config or data are wrong.
    """
    config, data = with_data(load(FitConfig, config, overrides), data)
    if data is None and config.data.path is None and config.data.dataset is None:
        raise UsageError("There are no data to probe.", "Give the data, or set data.path or data.dataset.")
    with tempfile.TemporaryDirectory() as name, torch_threads(config.run.threads):
        folder = Path(name) / "probe"
        probed = config.located().changed("run", dir=folder)
        _, fleet = prepare(open_folder(folder, probed), probed, data, reporter or Silent())
        worker, store = fleet.job.open(), fleet.store
        try:
            batches = _probe(worker, store, seconds)
        finally:
            worker.close()
        costs = [spent / count for count, spent in batches]
        largest = max(count for count, _ in batches)
        of_largest = [cost for cost, (count, _) in zip(costs, batches, strict=True) if count == largest]
        return Estimate(
            instances=store.spec.instances,
            blocks=store.spec.num_blocks,
            probed=sum(count for count, _ in batches),
            batch=largest,
            seconds=sum(of_largest) / len(of_largest),
            least=min(costs),
            most=max(costs),
            worker_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            store_bytes=sum(8 * math.prod(one.shape) for one in variables(store.spec)),
        )


def _probe(worker: Worker, store: Store, seconds: float) -> list[tuple[int, float]]:
    """How many instances were fitted at once, and the processor time that took, of growing batches."""
    worker.attempt(0, [0])  # libraries are loaded and compiled once in a worker's life
    last = store.spec.num_blocks - 1
    places = sorted({round(last * part / (PLACES - 1)) for part in range(PLACES)})
    probes = [_fitted(worker, 0, min(FIRST, len(store.block_range(0))))]
    size = int(seconds / PLACES / (probes[0][1] / probes[0][0]))
    if size > FIRST:  # a batch of more is cheaper for each
        probes += [_fitted(worker, block, min(size, len(store.block_range(block)))) for block in places]
    return probes


def _fitted(worker: Worker, block: int, count: int) -> tuple[int, float]:
    since = _spent()
    worker.attempt(block, range(count))
    return count, _spent() - since


def _spent() -> float:
    """Processor time of this process and of all below it, of which some may have ended, in seconds."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end while we look
            fields = entry.read_text().rpartition(") ")[2].split()
            process = int(entry.parent.name)
            parents[process], ticks[process] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[process] for process in ours) / os.sysconf("SC_CLK_TCK")


def tell_estimate(config: Path, overrides: Sequence[str] = (), *, as_json: bool = False) -> list[str]:
    """Return the lines that `distlfm fit --estimate` prints."""
    settled = load(FitConfig, config, overrides)
    result, run = estimate(settled), settled.run
    if as_json:
        nodes = result.nodes()
        more = {
            "core_hours": result.core_hours,
            "nodes": nodes,
            "hours": None if nodes is None else result.hours(nodes),
        }
        return [json.dumps({**asdict(result), **more})]
    return result.lines(1 if run.executor == "serial" else run.workers or usable_cpus())


def of_job(found: Estimate, asked: Resources) -> list[str]:
    """Return what is to be said of the job that would do a fleet's fits: how long it takes, and what it lacks."""
    tasks, at_once = (int(part) if part else 0 for part in f"{asked.array}%".split("%")[:2])
    nodes, cores = (at_once or tasks, asked.cpus) if asked.array else (asked.nodes, asked.cpus)
    hours, limit = found.hours(nodes, cores), seconds_of(asked.time) / 3600
    what = f"{nodes} task{'s' if nodes > 1 else ''}" if asked.array else f"{nodes} node{'s' if nodes > 1 else ''}"
    lines = [
        f"this job: {in_words(hours)} on {what} of {cores} core{'s' if cores > 1 else ''}; its limit is {asked.time}"
    ]
    if hours > limit:
        lines.append(
            "its time ends before the work does, and it would be queued again: "
            f"give --time {math.ceil(1.2 * 60 * hours)}, or ask for more cores if there are blocks for them"
        )
    share = asked.memory or asked.memory_per_cpu
    given = bytes_of(share) / (cores if asked.memory else 1)
    if found.worker_bytes > given:
        lines.append(
            f"a worker needs {_gigabytes(found.worker_bytes)} and would have {_gigabytes(given)}: "
            f"give --memory {math.ceil(1.2 * cores * found.worker_bytes / 1e9)}G"
        )
    return lines


def in_words(hours: float) -> str:
    """Return a time in words, rounded."""
    if hours < 1 / 60:
        return f"about {max(1, round(3600 * hours))} s"
    return f"about {60 * hours:.0f} min" if hours < 2 else f"about {hours:.1f} h"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{math.ceil(size / 1e6)} MB"
