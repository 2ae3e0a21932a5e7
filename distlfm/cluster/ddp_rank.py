"""One of the processes that `ddp_spawn` starts: `python -m distlfm.cluster.ddp_rank RANK WORLD RENDEZVOUS`.

Its task comes through the standard input, which stays open: its end is the driver's, and then this process ends too.
Its last line of output is its answer.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from typing import Any

from distlfm.cluster.ddp import joined
from distlfm.cluster.failure import failure_of
from distlfm.cluster.paths import adopt_import_path
from distlfm.cluster.ranks import Place
from distlfm.cluster.ranks_task import RankTask
from distlfm.cluster.ray_actor import encode
from distlfm.runtime.signals import Stop

FAILED, ORPHANED = 1, 3
LENGTH = 8
"""Bytes that tell how long the task is."""


def main(rank: int, world: int, rendezvous: str) -> int:
    """Do the task; gives the exit code."""
    source = sys.stdin.buffer
    path, task = pickle.loads(source.read(int.from_bytes(source.read(LENGTH), "big")))  # noqa: S301 (of the driver)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    place = Place(rank, world, rank, world, "spawn", rendezvous)
    report: dict[str, Any] = {}
    failure = None
    try:
        adopt_import_path(path)
        work = pickle.loads(task)  # noqa: S301
        assert isinstance(work, RankTask)
        with Stop() as stop, joined(place) as ranks:
            report = work(ranks, lambda: stop.requested)
    except Exception as error:
        failure = failure_of(error)
    sys.stdout.write("\n" + encode(report, failure) + "\n")
    sys.stdout.flush()
    return 0 if failure is None else FAILED


def _end_with_driver() -> None:
    sys.stdin.buffer.read()
    os._exit(ORPHANED)


if __name__ == "__main__":
    # A rank whose fellows are gone may never get out of torch's own shutdown.
    code = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    sys.stderr.flush()
    os._exit(code)
