"""Waits for a driver's end, and then ends what is left of its private Ray, however the driver ended.

Ray's servers die with their driver, but some of their children linger for half a minute. This runs as a process of its
own, on the standard library alone: its argument is Ray's directory, and its standard input closes when the driver is
gone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator

SWEEP_SECONDS = 5.0
LOOK_SECONDS = 1.0


def belongings(directory: str, driver: int) -> Iterator[int]:
    """Processes that hold a log of this Ray open: its servers, and what they started.

    directory: the private one, in which Ray has its own. Neither arguments nor environment tell, because Ray's
    processes overwrite both with their title. The driver has its own log there, which its forks share; those are not
    Ray's.
    """
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{process}/fd/{number}") for number in os.listdir(f"/proc/{process}/fd")]
        except OSError:  # of another user, or changing; what changes now is there at the next look
            continue
        logs = [link.removesuffix(" (deleted)") for link in links if link.startswith(f"{directory}/r/")]
        if any(not log.endswith(f"_{driver}.log") for log in logs):
            yield int(process)


def sweep(directory: str, driver: int) -> None:
    """End them all, and those that they start meanwhile; then remove the directory."""
    until, quiet = time.monotonic() + SWEEP_SECONDS, 0
    while time.monotonic() < until and quiet < 2:
        processes = list(belongings(directory, driver))
        quiet = 0 if processes else quiet + 1
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Guard the process that started this one."""
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(which, signal.SIG_IGN)
    driver = os.getppid()
    # A fork of the driver may hold the other end open; then its parent's number tells.
    while os.getppid() == driver and not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        continue
    sweep(sys.argv[1], driver)


if __name__ == "__main__":
    main()
