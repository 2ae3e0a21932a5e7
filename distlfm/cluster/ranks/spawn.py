"""Several ranks on this machine, as processes that this one starts and that end with it.

`spawn` is the driver's side. This module is also the program of a rank: `python -m distlfm.cluster.ranks.spawn RANK
WORLD RENDEZVOUS`. The task comes through the standard input, which stays open: its end is the driver's, and then the
rank ends too. The last line of output is the rank's answer.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from distlfm.cluster.blocks.job import Failure, death, failure_of
from distlfm.cluster.machine import adopt_import_path, import_environment, import_path
from distlfm.cluster.ranks.group import RankTask, joined
from distlfm.cluster.ranks.place import Place
from distlfm.cluster.ray.actors import decode, encode
from distlfm.runtime.process import Stop, short_temporary

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


LOOK_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""After one rank has failed, the others may finish their sentence for so long."""

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""The ranks talk to each other on this machine only."""

TAIL = 600
"""Characters of a dead rank's last words that are shown."""


class _Rank:
    def __init__(self, number: int, workers: int, threads: int, folder: Path) -> None:
        rendezvous = f"file://{folder / 'rendezvous'}"
        command = [sys.executable, "-m", "distlfm.cluster.ranks.spawn", str(number), str(workers), rendezvous]
        environment = {**os.environ, **import_environment(), **LOOPBACK, "OMP_NUM_THREADS": str(threads)}
        self.output, self.errors = folder / f"{number}.out", folder / f"{number}.err"
        with self.output.open("wb") as out, self.errors.open("wb") as err:
            # A terminal's Ctrl-C would reach every process of this one's session; the driver decides what it means.
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment, start_new_session=True
            )

    def answer(self) -> tuple[dict[str, Any], Failure | None]:
        """What it said at its end."""
        code = self.process.returncode
        lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        if lines and lines[-1].startswith("{"):
            return decode(lines[-1])
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        words = " ".join(self.errors.read_text(encoding="utf-8", errors="replace").split())[-TAIL:]
        return {}, death(f"Process {self.process.pid} of the training ended {how}{': ' + words if words else ''}.")


def spawn(
    task: RankTask, workers: int, threads: int, stop: Stop, look: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Let `workers` processes do a task; gives the first one's report. look: called again and again meanwhile.

    A stop is passed on to the ranks as a signal. What one of them raises is raised here; the others are then ended.
    """
    payload = pickle.dumps((import_path(), pickle.dumps(task)))
    message = len(payload).to_bytes(LENGTH, "big") + payload
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlfm-ranks-", dir=short_temporary())))
        ranks: list[_Rank] = []
        stack.callback(_end, ranks)
        for number in range(workers):
            ranks.append(_Rank(number, workers, threads, folder))
        for one in ranks:
            assert one.process.stdin is not None
            with suppress(BrokenPipeError):  # it ended at once; its answer says why
                one.process.stdin.write(message)
                one.process.stdin.flush()
        _await(ranks, stop, look)
        answers = [one.answer() for one in ranks]
    failures = [failure for _, failure in answers if failure is not None]
    if failures:
        # The cause is what we raise on purpose, then a death, and last what may have followed from it.
        raise min(failures, key=lambda failure: {"death": 1, "other": 2}.get(failure.family, 0)).error()
    return answers[0][0]


def _await(ranks: list[_Rank], stop: Stop, look: Callable[[], None]) -> None:
    """Until all have ended, or some time after one has failed."""
    reported, failed = False, None
    while any(one.process.poll() is None for one in ranks):
        if stop.requested and not reported:
            reported = True
            for one in ranks:
                one.process.send_signal(stop.signal or signal.SIGTERM)
        if failed is None and any(one.process.poll() not in (None, 0) for one in ranks):
            failed = time.monotonic()
        if failed is not None and time.monotonic() - failed > GRACE_SECONDS:
            _end(ranks)
        look()
        time.sleep(LOOK_SECONDS)
    look()


def _end(ranks: list[_Rank]) -> None:
    for one in ranks:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        if one.process.stdin is not None:
            with suppress(OSError):
                one.process.stdin.close()


if __name__ == "__main__":
    # A rank whose fellows are gone may never get out of torch's own shutdown.
    code = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    sys.stderr.flush()
    os._exit(code)
