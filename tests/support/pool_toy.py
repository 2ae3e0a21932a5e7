"""A job without mathematics: a block's sum, written to a file; its rows fail, die or wait as they are told."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distlfm.cluster.blocks.job import Job, Past, Worker
from distlfm.errors import StartError, StorageError, UsageError, WorkError

ERRORS = {
    "usage": UsageError,
    "work": WorkError,
    "storage": StorageError,
    "start": StartError,
    "value": ValueError,
}


class Unpicklable(Exception):
    """Cannot cross a process: it needs two arguments, and holds what cannot be pickled."""

    def __init__(self, one: int, other: object) -> None:
        super().__init__(f"row {one} is odd")
        self.other = lambda: other


@dataclass
class ToyJob(Job):
    """rows: what a row does, by its global number; see `ToyWorker.do`. Others give their number's square.

    refuse: how opening fails: `die`, `second` (all but the first), or the name of an error in `ERRORS`.
    crowded: a block that as a whole finds memory only when all others are done and no other worker lives.
    earlier: what `past` gives.
    """

    folder: Path
    num_blocks: int = 6
    block: int = 4
    rows: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    cpus: int = 1
    grouped: bool = False
    memory: int = 0
    weights: tuple[float, ...] = ()
    refuse: str = ""
    crowded: int = -1
    earlier: Past = field(default_factory=Past)

    def past(self) -> Past:
        return self.earlier

    def sizes(self) -> Sequence[float]:
        return self.weights or [1.0] * self.num_blocks

    def count(self, block: int) -> int:
        return self.block

    def open(self) -> Worker:
        if self.refuse == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.refuse == "second":
            (self.folder / "opened").touch(exist_ok=False)
        elif self.refuse:
            raise ERRORS[self.refuse]("It cannot be opened.")
        return ToyWorker(self)


class ToyWorker(Worker):
    def __init__(self, job: ToyJob) -> None:
        self.job = job
        (self.job.folder / f"up.{os.getpid()}").touch()

    def run(self, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
        path = self.job.folder / f"{block}.txt"
        with (self.job.folder / "log").open("a") as log:
            log.write(f"{block} {os.getpid()} {sorted(left_out)}\n")
        others = len(self.living()) > 1 or len(results(self.job.folder)) < self.job.num_blocks - 1
        if block == self.job.crowded and others:
            raise MemoryError
        if not path.exists():
            values = [
                "-" if row in left_out else str(self.do(block * self.job.block + row)) for row in range(self.job.block)
            ]
            time.sleep(self.job.seconds)
            scratch = path.with_suffix(f".{os.getpid()}")
            scratch.write_text(" ".join(values))
            scratch.replace(path)
        return {
            "count": self.job.block,
            "failed": len(left_out),
            "seconds": self.job.seconds,
            "pid": os.getpid(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        }

    def attempt(self, block: int, rows: Sequence[int]) -> None:
        for row in rows:
            self.do(block * self.job.block + row)

    def living(self) -> list[str]:
        """Workers of this job whose processes are there."""
        opened = [path.suffix[1:] for path in self.job.folder.glob("up.*")]
        return [number for number in opened if Path(f"/proc/{number}").exists()]

    def close(self) -> None:
        (self.job.folder / f"closed.{os.getpid()}").touch()

    def do(self, row: int) -> int:
        """`die`: kill this process. `once:NAME`: die the first time only. `odd`: an exception that cannot be pickled.

        `exit`: call exit(). `sleep:S`: wait. Else the name of an error in `ERRORS`.
        """
        what = self.job.rows.get(row, "")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what.startswith("once:"):
            mark = self.job.folder / what[5:]
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif what == "odd":
            raise Unpicklable(row, object())
        elif what == "exit":
            sys.exit(3)
        elif what.startswith("sleep:"):
            time.sleep(float(what[6:]))
        elif what:
            raise ERRORS[what](f"row {row} is bad")
        return row * row


def results(folder: Path) -> dict[int, str]:
    """What was stored, by block."""
    return {int(path.stem): path.read_text() for path in folder.glob("*.txt")}
