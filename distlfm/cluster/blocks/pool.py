"""The contract of those who do the work: blocks go in, events come out as they happen.

A pool keeps no results. Blocks are done in any order, each exactly once; the iterator ends when all are done, or soon
after a stop was asked for. What ends the whole run is raised from the iterator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlfm.cluster.blocks.job import Job
from distlfm.runtime.process import Stop

GRACE_SECONDS = 10.0
"""After a stop was asked for, blocks in hand may still be finished for so long."""


@dataclass(frozen=True)
class Started:
    """A block was given to a worker; `worker` is `host:pid`."""

    block: int
    worker: str


@dataclass(frozen=True)
class BlockDone:
    """A block is stored; `report` is what its worker said. `time_left` in seconds, NaN while nothing is known."""

    block: int
    report: Mapping[str, Any]
    worker: str
    time_left: float = math.nan


@dataclass(frozen=True)
class BlockRetried:
    """A block failed as a whole and is tried again, whole or in parts."""

    block: int
    why: str


@dataclass(frozen=True)
class RowsSetAside:
    """Rows that fail on their own, with the reason of each; comes just before the block's `BlockDone`."""

    block: int
    reasons: Mapping[int, str]


@dataclass(frozen=True)
class WorkerLost:
    """A worker's process is gone; another takes its place."""

    worker: str
    why: str


Event = Started | BlockDone | BlockRetried | RowsSetAside | WorkerLost


class Pool(ABC):
    """Who does the work; `workers` is how many are up, which is the most blocks in hand at a time."""

    workers: int

    @abstractmethod
    def work(self, job: Job, blocks: Sequence[int], stop: Stop) -> Iterator[Event]:
        """Do these blocks of a job, those that cost most first."""
