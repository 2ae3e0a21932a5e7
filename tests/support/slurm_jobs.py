"""Jobs of the virtual cluster: submitted as a user does, watched, and read afterwards."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from distlfm.store.files import put_quickly
from tests.support.importing import ROOT
from tests.support.slurm_cluster import Cluster

SCRIPTS = ROOT / "slurm"
SMALL = ("--cpus-per-task=1", "--mem-per-cpu=0")
"""The virtual nodes are small."""

QUICK = {"optimiser": {"rounds": 1, "iterations": 5}, "posterior": {"draws": 4}}
"""Inference of fits whose numbers are compared, and not judged."""

FLEET, BLOCKS = 24, 12
"""Instances of the fleet that all tests of fits share, and into how many blocks it is cut."""

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY"}
LOOK_SECONDS = 0.4
"""Asking Slurm costs a few processes each time."""

SITE = """export DISTLFM_PYTHON={python}
export PYTHONPATH={root} SLOWLY={pace} DIVIDED={divided}
# Sooner than users have it.
export RAY_gcs_rpc_server_reconnect_timeout_s=5
# More ranks than cores: none may spin, and none may be bound.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
"""


class Job:
    """One job, or one task of an array."""

    def __init__(self, cluster: Cluster, name: str, log: Path) -> None:
        self.cluster, self.name, self.log = cluster, name, log

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else "(no log)"

    @property
    def facts(self) -> dict[str, str]:
        """What Slurm says of it."""
        told = self.cluster.ask("scontrol", "show", "job", "-o", self.name)
        return dict(re.findall(r"(\w+)=(\S*)", told))

    @property
    def state(self) -> str:
        return self.facts.get("JobState", "?")

    def wait(self, seconds: float = 400.0) -> str:
        """Wait for its end; gives its last state."""
        return self.wait_for(ENDED, seconds)

    def wait_for(self, states: set[str], seconds: float = 400.0) -> str:
        until = time.monotonic() + seconds
        while (state := self.state) not in states:
            assert time.monotonic() < until, f"{state} after {seconds:g} s:\n{self.cluster.describe()}\n{self.text}"
            time.sleep(LOOK_SECONDS)
        return state

    def wait_for_restart(self, count: int, seconds: float = 400.0) -> None:
        """Wait until it was queued again so often. Slurm lets it begin when each of its nodes has answered."""
        until = time.monotonic() + seconds
        while (facts := self.facts).get("Restarts") != str(count):
            assert time.monotonic() < until, f"not queued again after {seconds:g} s:\n{self.text}"
            assert facts.get("JobState") not in ENDED, self.text
            time.sleep(LOOK_SECONDS)

    def wait_for_reason(self, reason: str, seconds: float = 60.0) -> None:
        """Wait until Slurm says why it waits: of a job that was just sent it says nothing yet."""
        until = time.monotonic() + seconds
        while (found := self.facts.get("Reason")) != reason:
            assert time.monotonic() < until, f"it waits for {found}:\n{self.cluster.describe()}"
            time.sleep(LOOK_SECONDS)

    @property
    def code(self) -> int:
        """The exit code of its script."""
        return int(self.facts["ExitCode"].partition(":")[0])

    @property
    def restarts(self) -> int:
        return int(self.facts["Restarts"])


def wait_until(reached: Callable[[], bool], what: str, job: Job, seconds: float = 240.0) -> None:
    """Until something is so that is not heard of by Slurm; `what` and the job's log are told if it never is."""
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, f"no {what} within {seconds:g} s:\n{job.text}"
        time.sleep(0.05)


class Queue:
    """Where jobs go; their logs are in `folder`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.site, self._pace, self.divided = (folder / name for name in ("site.sh", "pace", "divided.npz"))
        self.site.write_text(
            SITE.format(python=sys.executable, root=ROOT, pace=self._pace, divided=self.divided), encoding="utf-8"
        )
        self.pace(0.0)

    @property
    def login(self) -> list[str]:
        """What a command at the login node begins with, so that it can read a config with the plugin `slowly`."""
        return ["env", f"PYTHONPATH={ROOT}", f"SLOWLY={self._pace}"]

    def pace(self, seconds: float, task: int | None = None) -> None:
        """So long a block or a step takes from now on in addition, even in jobs that run, with the plugin `slowly`.

        task: of an array, for it alone.
        """
        path = self._pace if task is None else self._pace.with_name(f"{self._pace.name}.{task}")
        put_quickly(path, str(seconds).encode())

    def submit(self, script: str, *arguments: str | Path, options: tuple[str, ...] = ()) -> Job:
        """Send slurm/SCRIPT.sbatch with arguments."""
        number = self._send(*options, str(SCRIPTS / f"{script}.sbatch"), *map(str, arguments))
        return Job(self.cluster, number, self.folder / f"{number}.log")

    def array(self, script: str, tasks: int, *arguments: str | Path, options: tuple[str, ...] = ()) -> list[Job]:
        """The tasks of an array."""
        log = f"--output={self.folder}/%A_%a.log"
        number = self._send(
            f"--array=0-{tasks - 1}", log, *options, str(SCRIPTS / f"{script}.sbatch"), *map(str, arguments)
        )
        names = [f"{number}_{task}" for task in range(tasks)]
        return [Job(self.cluster, name, self.folder / f"{name}.log") for name in names]

    def urgent(self) -> Job:
        """A job that takes all nodes from whoever has them, for a moment."""
        words = ("--partition=urgent", f"--nodes={len(self.cluster.nodes)}", "--exclusive", "--wrap=true")
        number = self._send(*words)
        return Job(self.cluster, number, self.folder / f"{number}.log")

    def _send(self, *words: str) -> str:
        site = f"--export=ALL,DISTLFM_SITE={self.site}"
        done = self.cluster.run("sbatch", "--parsable", f"--output={self.folder}/%j.log", *SMALL, site, *words)
        return done.stdout.strip()
