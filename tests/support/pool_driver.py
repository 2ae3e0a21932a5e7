"""A driver of its own: works on a toy job in a private Ray, and says as JSON lines what happens.

Arguments: the job's folder, seconds a block takes, grace seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from distlfm.cluster.ray.pool import RayPool
from distlfm.cluster.ray.session import ray_session
from distlfm.errors import WorkError
from distlfm.runtime.process import Stop
from tests.support.pool_toy import ToyJob

NUM_BLOCKS = 8


def say(event: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def state() -> list[object]:
    """What a session must put back."""
    return [dict(os.environ), [str(signal.getsignal(which)) for which in (signal.SIGINT, signal.SIGTERM)]]


def main() -> None:
    folder, seconds, grace = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    job = ToyJob(folder, num_blocks=NUM_BLOCKS, seconds=seconds)
    before = state()
    try:
        with Stop() as stop:
            inside = state()
            with ray_session(cpus=2) as session:
                say("up", address=session.address)
                for event in RayPool(session, grace=grace).work(job, range(NUM_BLOCKS), stop):
                    say(type(event).__name__)
            restored = state() == inside
        say("ended", stopped=stop.requested, restored=restored and state() == before)
    except WorkError as error:
        say("failed", text=str(error))


if __name__ == "__main__":
    main()
