"""What runs inside a Ray actor: one worker of a job, whose answers are plain text."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from distlfm.cluster.failure import Failure, failure_of
from distlfm.cluster.job import Job, Worker
from distlfm.cluster.paths import adopt_import_path
from distlfm.cluster.perform import perform
from distlfm.cluster.rescue import Action
from distlfm.optional import require

PR_SET_PDEATHSIG = 1


class Host:
    """Holds the worker of one process.

    path: where the driver imports from. job: pickled; it is opened by `open`, so that what fails there can be told.
    """

    def __init__(self, path: Sequence[str], job: bytes) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the driver decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler raises SystemExit into whatever runs
        die_with_parent()
        adopt_import_path(path)
        self._job = job
        self._worker: Worker | None = None

    def open(self) -> str:
        """Open the worker; says which process this is."""
        try:
            job = pickle.loads(self._job)  # noqa: S301 (made by the driver that made this actor)
            assert isinstance(job, Job)
            self._worker = job.open()
        except Exception as error:
            return encode({}, failure_of(error))
        node = require("ray", extra="ray").get_runtime_context().get_node_id()
        return encode({"name": f"{socket.gethostname()}:{os.getpid()}", "node": node}, None)

    def perform(self, action: Action) -> str:
        """Do a piece of work."""
        assert self._worker is not None
        return encode(*perform(self._worker, action))

    def ping(self) -> None:
        """Be there."""

    def close(self) -> None:
        """Let go of what the worker holds."""
        if self._worker is not None:
            self._worker.close()


def die_with_parent() -> None:
    """Be killed when the process that started this one ends.

    Without it a worker whose node was given up would go on with its block, and store it while another does the same.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def encode(report: Mapping[str, Any], failure: Failure | None) -> str:
    """An outcome as text."""
    return json.dumps({"report": report, "failure": None if failure is None else asdict(failure)})


def decode(text: str) -> tuple[dict[str, Any], Failure | None]:
    """An outcome from its text."""
    outcome = json.loads(text)
    failure = outcome["failure"]
    return outcome["report"], None if failure is None else Failure(**failure)
