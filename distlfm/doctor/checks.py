"""`distlfm doctor`: what works on this machine, what is missing or broken, and the command that mends it.

Every question is asked by a probe in a process of its own, under a time limit, so that neither a library that crashes
or hangs on import nor a lost file system takes the doctor with it. Nothing that a probe started survives it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from distlfm.doctor.probe import Status
from distlfm.errors import UsageError
from distlfm.optional import SYSTEM_PACKAGES, install_line
from distlfm.runtime.process import scrubbed_mpi_environment, short_temporary

POLL_SECONDS = 0.05
GRACE_SECONDS = 3.0  # between asking and killing; Ray and mpirun need about one to end their children


def run_bounded(
    command: Sequence[str], environment: Mapping[str, str], time_limit: float, stop: threading.Event
) -> tuple[int | None, str, str]:
    """Run `command` in a session of its own until it ends, `time_limit` seconds pass, or `stop` is set.

    Returns its exit code, None where the time limit or a stop ended it, its output and its errors.
    Whatever of that session is still alive then is ended too. Output goes through files, not pipes: a child that
    outlives the command would hold a pipe open.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        deadline = time.monotonic() + time_limit
        try:
            while process.poll() is None and time.monotonic() < deadline and not stop.is_set():
                time.sleep(POLL_SECONDS)
            returncode = process.poll()
        finally:
            _end_session(process)
        return returncode, _text(stdout), _text(stderr)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the session that `process` leads: first asked, then killed."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        for member in _session_members(process):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member, which)
        deadline = time.monotonic() + GRACE_SECONDS
        while _session_members(process) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _session_members(process: subprocess.Popen[bytes]) -> list[int]:
    """Process ids in the session of `process`, itself among them while it runs. Without /proc, only itself."""
    members = [] if process.poll() is not None else [process.pid]
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == process.pid and int(entry.name) != process.pid:
                members.append(int(entry.name))
    return members


NUM_WORKERS = 2
LONGEST = 12
"""Characters of the directory for temporary files: below it the probes have one, and in that Ray has another."""

ANOTHER_DIRECTORY = (
    "distlfm doctor --dir DIR, with a DIR you may write to, on a local disk or a POSIX network file system"
)


@dataclass(frozen=True)
class Check:
    """One line of the doctor's answer. `fix` is the command that helps; empty where all is well."""

    name: str
    status: Status
    detail: str
    fix: str


@dataclass(frozen=True)
class Probe:
    """A question, the function in this package that answers it, and the fix unless the probe knows a better one."""

    name: str
    check: str
    fix: str
    time_limit: float = 60.0
    starts_processes: bool = False
    uses_mpi: bool = False
    asks_directory: bool = False


PROBES = (
    Probe("torch", "libraries.check_torch_cpu", "pip install --force-reinstall torch"),
    Probe("cuda", "libraries.check_cuda", "apt-get install --only-upgrade nvidia-driver"),
    Probe("gpytorch", "libraries.check_gpytorch", "pip install --force-reinstall gpytorch"),
    Probe("torchdiffeq", "libraries.check_torchdiffeq", "pip install --force-reinstall torchdiffeq"),
    # The first time, forms are compiled.
    Probe("fenics", "mpi.check_fenics", SYSTEM_PACKAGES["fem"], 120.0, starts_processes=True, uses_mpi=True),
    Probe("dolfin-adjoint", "mpi.check_adjoint", install_line("fem"), 120.0, starts_processes=True, uses_mpi=True),
    Probe("petsc", "mpi.check_petsc", "apt-get install python3-petsc4py", starts_processes=True, uses_mpi=True),
    Probe("mpi", "mpi.check_mpi", "apt-get install openmpi-bin python3-mpi4py", starts_processes=True, uses_mpi=True),
    Probe("ray", "libraries.check_ray", install_line("ray"), starts_processes=True),
    Probe("slurm", "system.check_slurm", "apt-get install slurm-wlm"),
    Probe("flower", "libraries.check_flower", install_line("federated")),
    Probe("page", "libraries.check_page", install_line("serve")),
    Probe("zarr", "system.check_zarr", ANOTHER_DIRECTORY, asks_directory=True),
    Probe("rename", "system.check_rename", ANOTHER_DIRECTORY, asks_directory=True),
    Probe("disk", "system.check_disk", ANOTHER_DIRECTORY, asks_directory=True),
    Probe("ports", "system.check_ports", "ip link set lo up"),
    Probe("open-files", "system.check_open_files", "ulimit -n 4096"),
)


def run_checks(
    directory: Path,
    *,
    quick: bool = False,
    only: Collection[str] | None = None,
    time_limit: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Check]:
    """Ask every probe, and answer in the order of `PROBES`.

    `directory`: where results shall go; its speed, renames and space are tried. `quick` leaves out what starts MPI or
    Ray. `only` keeps the probes of these names. `time_limit` in seconds replaces each probe's own. `environment` is
    what the probes see, by default that of this process.
    """
    chosen = _choose(quick, only)
    base = dict(os.environ if environment is None else environment)
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="dl", dir=short_temporary(LONGEST), ignore_cleanup_errors=True) as scratch,
        ThreadPoolExecutor(NUM_WORKERS) as pool,
    ):
        base["TMPDIR"] = scratch
        limited = [probe if time_limit is None else replace(probe, time_limit=time_limit) for probe in chosen]
        # The long ones first, so that no worker ends alone.
        queue = sorted(limited, key=lambda probe: not probe.starts_processes)
        try:  # from the first submission on: it may be interrupted before the second
            answers = {probe.name: pool.submit(_ask, probe, directory, base, stop) for probe in queue}
            return [answers[probe.name].result() for probe in chosen]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def to_json(checks: Sequence[Check]) -> str:
    """The answer for programs: a list of objects with `name`, `status`, `detail` and `fix`."""
    return json.dumps([asdict(check) for check in checks], indent=2)


def to_rows(checks: Sequence[Check]) -> list[tuple[str, str, str, str]]:
    """The answer for a table: name, status, detail, fix."""
    return [(check.name, check.status, check.detail, check.fix) for check in checks]


def _choose(quick: bool, only: Collection[str] | None) -> list[Probe]:
    known = [probe.name for probe in PROBES]
    unknown = sorted(set(only or ()) - set(known))
    if unknown:
        raise UsageError(f"No check is called {', '.join(unknown)}.", f"There are: {', '.join(known)}.")
    return [
        probe for probe in PROBES if (only is None or probe.name in only) and not (quick and probe.starts_processes)
    ]


def _ask(probe: Probe, directory: Path, base: Mapping[str, str], stop: threading.Event) -> Check:
    """Run one probe, and turn whatever happens into a line."""
    # -P: a file of the working directory must not be taken for a library.
    command = [sys.executable, "-P", "-m", "distlfm.doctor.probe", probe.check]
    if probe.asks_directory:
        command.append(str(directory.absolute()))
    environment = scrubbed_mpi_environment(base) if probe.uses_mpi else base
    try:
        code, output, errors = run_bounded(command, environment, probe.time_limit, stop)
    except OSError as error:
        return Check(probe.name, "broken", f"the probe did not start: {error}", probe.fix)
    if code is None:
        return Check(probe.name, "broken", f"no answer within {probe.time_limit:g} s", probe.fix)
    # Native libraries may have written around the probe's line.
    answers = [line for line in output.splitlines() if line.startswith('{"status": ')]
    if code != 0 or not answers:
        return Check(probe.name, "broken", _last_error(code, errors), probe.fix)
    check = Check(probe.name, **json.loads(answers[-1]))
    return check if check.status == "ok" or check.fix else replace(check, fix=probe.fix)


def _last_error(returncode: int, stderr: str) -> str:
    if returncode < 0:
        return f"ended by {signal.Signals(-returncode).name}"
    lines = [line.strip() for line in stderr.splitlines() if any(letter.isalnum() for letter in line)]
    return lines[-1] if lines else f"ended with exit code {returncode}"
