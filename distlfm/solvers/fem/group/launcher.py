"""How the ranks of a helper group are started, what is said of their end, and how nothing of them is left behind."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from distlfm.errors import MissingExtra, UsageError
from distlfm.optional import install_line
from distlfm.runtime.process import LOOPBACK, cannot_start, expand_hosts, own_address, scrubbed_mpi_environment

LauncherName = Literal["auto", "python", "mpirun", "srun"]
LAUNCHER = "DISTLFM_MPI_LAUNCHER"
"""Environment variable that says what `auto` is for several ranks: mpirun or srun."""

PYTHON = "DISTLFM_PYTHON"
"""Environment variable of the words that start Python on a node."""

RANK_MODULE = "distlfm.solvers.fem.group.rank"
POLL_SECONDS = 0.02
TERM_SECONDS = 2.0  # mpirun gives its ranks one second between asking and killing
KILL_SECONDS = 2.0
TAIL_LINES = 6
# A process without a launcher would start an MPI daemon, in a session of its own, for processes that it might spawn.
SINGLETON_SETTINGS = {"OMPI_MCA_ess_singleton_isolated": "1"}
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class LaunchPlan:
    """A way to start ranks: the command before the rank's own, its environment, and how the secret gets there.

    `mpirun` gives its standard input to one rank only: the secret is then a file that only this user can read, in a
    directory that only this user can enter, removed as soon as the ranks are there. Elsewhere it comes through a pipe,
    which `srun` passes to every task.
    """

    kind: Literal["python", "mpirun", "srun"]
    prefix: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def local(self) -> bool:
        return self.kind != "srun"

    @property
    def python(self) -> list[str]:
        """The words that start Python: on other nodes those of the site, as this one may run in a container."""
        return (shlex.split(self.environment.get(PYTHON, "")) if not self.local else []) or [sys.executable]

    @property
    def secret_by_pipe(self) -> bool:
        return self.kind != "mpirun"


def plan_launch(ranks: int, launcher: LauncherName, environment: Mapping[str, str]) -> LaunchPlan:
    """How to start `ranks` processes. `auto`: one without a launcher, several as the environment asks for; otherwise by
    mpirun, and by srun, inside a Slurm job of several nodes, when they are more than this node's cores."""
    kind = launcher
    if kind == "auto":
        spread = int(environment.get("SLURM_JOB_NUM_NODES", "1")) > 1 and ranks > len(os.sched_getaffinity(0))
        kind = "python" if ranks == 1 else _launcher_setting(environment) or ("srun" if spread else "mpirun")
    if kind == "python":
        if ranks != 1:
            raise UsageError(f"Without a launcher there is one rank, not {ranks}.", "Use mpirun or srun.")
        return LaunchPlan("python", (), scrubbed_mpi_environment(environment) | SINGLETON_SETTINGS)
    if kind == "mpirun":
        found = shutil.which("mpirun", path=environment.get("PATH"))
        if found is None:
            raise MissingExtra(
                "mpirun, which starts helper groups of several ranks, is not on the PATH.",
                f"Install it with: {install_line('fem')}; `distlfm doctor` says what else is missing.",
            )
        return LaunchPlan("mpirun", (found, "-n", str(ranks)), scrubbed_mpi_environment(environment))
    if "SLURM_JOB_ID" not in environment:
        raise UsageError(
            "srun can start a helper group only inside a Slurm job.", "Submit the run as a job, or use mpirun."
        )
    found = shutil.which("srun", path=environment.get("PATH"))
    if found is None:
        raise cannot_start(["srun"], FileNotFoundError(2, "it is not on the PATH"))
    # --overlap: the job's cores are already given to the step that this process runs in.
    prefix = (found, "--overlap", "--mpi=pmix", "--label", "--kill-on-bad-exit=1", "-n", str(ranks))
    return LaunchPlan("srun", prefix, scrubbed_mpi_environment(environment, local=False))


def _launcher_setting(environment: Mapping[str, str]) -> LauncherName | None:
    name = environment.get(LAUNCHER, "")
    if name not in ("", "mpirun", "srun"):
        raise UsageError(f"{LAUNCHER} is {name!r}.", "Set it to mpirun or srun, or leave it out.")
    return cast(LauncherName, name) if name else None


def reachable_address(environment: Mapping[str, str]) -> str:
    """This machine's address on the network that the site names, or on the way to the job's other nodes."""
    names = expand_hosts(environment.get("SLURM_JOB_NODELIST") or socket.gethostname())
    interface = environment.get("DISTLFM_INTERFACE", "")
    address = own_address(names, interface)
    return address if interface or address != LOOPBACK else socket.gethostbyname(socket.gethostname())


class LaunchedRanks:
    """The launcher's process and, in the session it leads, those of the ranks on this machine."""

    def __init__(self, plan: LaunchPlan, arguments: Sequence[str], secret: bytes, directory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.names: set[str] = set()
        """MPI's names of this job, by which it calls its files."""
        secret_file = directory / "secret"
        if plan.secret_by_pipe:
            given = ["--secret", "-"]
        else:
            given = ["--secret", str(secret_file)]
            secret_file.touch(0o600, exist_ok=False)
            secret_file.write_text(secret.hex())
        if plan.local:
            given += ["--logs", str(directory)]
        # -P: a file of the working directory must not pass for one of ours.
        command = [*plan.prefix, *plan.python, "-P", "-m", RANK_MODULE, *arguments, *given]
        with open(directory / "launcher.log", "wb") as log:
            self.process = subprocess.Popen(
                command,
                env=dict(plan.environment),
                stdin=subprocess.PIPE if plan.secret_by_pipe else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(secret.hex().encode())
                self.process.stdin.close()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`, and return whether the launcher ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.ended()

    def end(self) -> None:
        """End all processes of the job, first asked, then killed, and remove their files."""
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            self.wait(TERM_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while members := self._members():
            for member in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(member, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            self.process.poll()
            time.sleep(POLL_SECONDS)
        self.process.poll()
        # A killed mpirun leaves the ranks' shared memory behind.
        for name in self.names:
            if name.isdigit():
                for segment in SHARED_MEMORY.glob(f"vader_segment.*.{int(name):x}.*"):
                    with contextlib.suppress(OSError):
                        segment.unlink()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _members(self) -> list[int]:
        """Processes of the launcher's session that still run. mpirun gives each rank a process group of its own."""
        members = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                if os.getsid(int(entry.name)) != self.process.pid:
                    continue
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    members.append(int(entry.name))
        return members

    def fate(self) -> tuple[int | None, str]:
        """Which rank ended first and how, in the launcher's words; (None, "") if it does not tell.

        (None, words) if srun could not reach a node; it kills the ranks that it has launched on the others.
        """
        if self.plan.kind == "python":
            code = self.process.poll()
            return (None, "") if code is None else (0, _how(code))
        text = self._log("launcher.log")
        if match := re.search(r"process rank (\d+) .*?exited on signal (\d+)", text, re.DOTALL):
            return int(match[1]), _how(-int(match[2]))
        if match := re.search(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)", text):
            return int(match[1]), _how(int(match[2]))
        if match := re.search(r"srun: error: Task launch for \S+ failed on node (\S+): (.+)", text):
            return None, f"node {match[1]} cannot be reached ({match[2].strip()})"
        if match := re.search(r"srun: error: task (\d+) launch failed: (.+)", text):
            return int(match[1]), f"could not be launched ({match[2].strip()})"
        if match := re.search(r"srun: error: \S+: task (\d+): (.+)", text):
            return int(match[1]), f"ended ({match[2].strip()})"
        return None, ""

    def last_words(self, rank: int | None) -> str:
        """The last lines that a rank printed; those of the launcher where it is not known which rank it was."""
        text = self._log("launcher.log")
        if rank is not None and self.plan.kind == "srun":
            lines = [line for line in text.splitlines() if line.strip().startswith(f"{rank}:")]
            text = "\n".join(line.partition(":")[2] for line in lines)
        elif rank is not None:
            text = self._log(f"rank-{rank}.log")
        lines = [line.rstrip() for line in text.splitlines() if line.strip(" -")]
        return "\n".join(lines[-TAIL_LINES:])

    def _log(self, name: str) -> str:
        try:
            return (self.directory / name).read_bytes()[-16384:].decode(errors="replace")
        except OSError:
            return ""


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"was ended by signal {-code}"
