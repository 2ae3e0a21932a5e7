"""This process: its environment, its host and job, its threads, and signals that ask it to stop.

A process that runs under Slurm, Ray or another mpirun carries variables that make a new MPI believe it belongs to that
launcher: `MPI_Init` then aborts or hangs. Helper groups therefore start from an environment without them. Lists of
hosts are read as Slurm writes them; addresses and ports of this one are those that other nodes need. The first of two
signals asks for a stop, and the second one insists.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from distlfm.errors import StartError, UsageError, WorkError

ANSWER_SECONDS = 60.0
TOO_LONG, NOT_THERE = 124, 127
"""Exit codes, as `timeout` and a shell have them, of commands that took too long, or are not there."""


def cannot_start(command: Sequence[str], error: OSError) -> StartError:
    """What is said of a program that is not there."""
    return StartError(
        f"{command[0]} cannot be started: {error.strerror}.",
        "Put it on the PATH; a container must be given Slurm's commands (slurm/site.example.sh shows how).",
    )


def run_within(
    command: Sequence[str], seconds: float = ANSWER_SECONDS, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without input; one that is not there, or takes longer, has failed and says so in `stderr`."""
    null = subprocess.DEVNULL
    try:
        return subprocess.run(command, env=environment, stdin=null, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        code = NOT_THERE if isinstance(error, OSError) else TOO_LONG
        return subprocess.CompletedProcess(command, code, "", str(error))


def number_in(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    """Return the whole number that a variable holds, or the default if it holds none."""
    text = environment.get(name, "")
    return int(text) if text.isdigit() else default


# Left by an enclosing launcher: PMI and PMIx, Open MPI 4 (ORTE) and 5 (PRRTE), Hydra (MPICH, Intel), Cray PALS.
# Of OMPI_MCA_*, only those that mpirun writes for its children; the user's own tuning stays.
LAUNCHER_PREFIXES = (
    "PMI",
    "OMPI_COMM_",
    "OMPI_APP_CTX_",
    "OMPI_NUM_APP_CTX",
    "OMPI_FIRST_RANKS",
    "OMPI_FILE_LOCATION",
    "OMPI_COMMAND",
    "OMPI_ARGV",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "OMPI_MCA_pmix",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_mpi_oversubscribe",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint",
    "ORTE_",
    "PRTE_",
    "HYDRA_",
    "HYDI_",
    "MPI_LOCAL",
    "PALS_",
)
SLURM_PREFIXES = ("SLURM_", "SLURMD_")
# An srun inside a job must still find the job; what belongs to the enclosing step or task would be inherited wrongly.
SLURM_STEP_PREFIXES = (
    "SLURM_STEP",
    "SLURM_SRUN_",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_GTIDS",
    "SLURM_TASK_PID",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_MPI_TYPE",
    "SLURM_PMI",
    "SLURM_CPU_BIND",
    "SLURM_MEM_BIND",
    "SLURM_DISTRIBUTION",
)

# One node: no remote launcher, shared memory only. Ranks are not bound, because every mpirun counts cores from the
# first one, and two helper groups on a node would share it while the others idle.
LOCAL_SETTINGS = {
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
ROOT_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def scrubbed_mpi_environment(base: Mapping[str, str], *, local: bool = True) -> dict[str, str]:
    """A copy of `base` in which an MPI program starts afresh.

    `local`: all ranks run on this node under mpirun, and nothing of Slurm remains. Otherwise the program is started by
    an `srun` inside the present job: the job's variables stay, those of the enclosing step and task go, and network
    and binding are left to the cluster.

    Compiled forms are cached in `DIJITSO_CACHE_DIR`, by default in `$XDG_CACHE_HOME/distlfm` or `~/.cache/distlfm`;
    each rank computes with one thread.
    """
    dropped = LAUNCHER_PREFIXES + (SLURM_PREFIXES if local else SLURM_STEP_PREFIXES)
    environment = {name: value for name, value in base.items() if not name.startswith(dropped)}
    if local:
        environment |= LOCAL_SETTINGS
    if os.geteuid() == 0:
        environment |= ROOT_SETTINGS
    environment["OMP_NUM_THREADS"] = "1"
    cache = base.get("XDG_CACHE_HOME") or Path(base.get("HOME") or Path.home()) / ".cache"
    environment.setdefault("DIJITSO_CACHE_DIR", str(Path(cache) / "distlfm" / "dijitso"))
    return environment


LONGEST_TEMPORARY = 22
"""A socket's path holds 107 characters, and Ray appends some 75 to its directory."""


def short_temporary(longest: int = LONGEST_TEMPORARY) -> Path:
    """Where temporary directories go: the usual place unless its name is too long for sockets below it."""
    usual = Path(tempfile.gettempdir())
    if len(str(usual)) > longest and os.access("/tmp", os.W_OK):  # noqa: S108 (mkdtemp makes it private)
        return Path("/tmp")  # noqa: S108
    return usual


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Tensor operations take `count` threads inside."""
    import torch  # a light process has no use for it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def job_name(environment: Mapping[str, str]) -> str:
    """Slurm's number of the job, `17`, or `12_3` for a task of an array; empty outside of Slurm."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def expand_hosts(names: str) -> tuple[str, ...]:
    """The hosts of a list as Slurm writes it: of `gpu[08-10,12],login` five."""
    hosts: list[str] = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", names):
        parts = re.split(r"\[([^\]]*)\]", word.strip())
        choices = [[part] if place % 2 == 0 else list(_numbers(part, names)) for place, part in enumerate(parts)]
        hosts += ["".join(chosen) for chosen in itertools.product(*choices)]
    if not hosts or not all(hosts):
        raise UsageError(f"The list of hosts is {names!r}, which names none.", "Write it as host1,host2 or node[1-4].")
    return tuple(dict.fromkeys(hosts))


def _numbers(ranges: str, names: str) -> list[str]:
    """Return the numbers of a range: four of `08-10,12`, with their leading zeros."""
    numbers: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"The list of hosts {names!r} has a range {part!r}.", "Write ranges as [1-4] or [01,03].")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return numbers


LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915
"""Linux's question for the address of an interface."""

TRIES = 200
"""Ports that are tried, one after another."""

DISCARD = 9


def own_address(peers: Sequence[str] = (), interface: str = "") -> str:
    """This machine's IPv4 address on `interface`, or on the way to the first peer that is another machine.

    Without either it is the loopback address, at which nobody else reaches this machine.
    """
    if interface:
        return interface_address(interface)
    for name in peers:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(name), DISCARD))  # nothing is sent: the route alone is looked up
            address: str = probe.getsockname()[0]
            if not address.startswith("127."):
                return address
    return LOOPBACK


def interface_address(name: str) -> str:
    """The IPv4 address of a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            known = ", ".join(found for _, found in socket.if_nameindex())
            raise UsageError(
                f"{socket.gethostname()} has no IPv4 address on a network interface {name!r}.",
                f"Set DISTLFM_INTERFACE to one of: {known}.",
            ) from None
    return socket.inet_ntoa(answer[20:24])


def touch(address: str, seconds: float) -> None:
    """Connect to HOST:PORT, and leave again. Raises OSError if nobody listens there."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), seconds).close()


def free_port(first: int) -> int:
    """The first port from `first` on at which nobody listens."""
    for port in range(first, first + TRIES):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("", port))
                return port
    raise WorkError(f"All ports from {first} to {first + TRIES - 1} are taken.", "End what is left of other jobs.")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the end of a batch job, and the warning that Slurm gives before it."""


class BrokenOff(BaseException):
    """Work went on for too long after a stop was asked for. No ordinary handler of exceptions should catch it."""


class Signalled(BaseException):
    """A signal ended what was going on. No ordinary handler of exceptions should catch it."""

    def __init__(self, which: signal.Signals) -> None:
        super().__init__(which.name)
        self.which = which


def raised() -> AbstractContextManager[None]:
    """Inside this context a signal raises Signalled, where by itself it would end the process without a word.

    As with `Stop`, only in the main thread, and not for a signal that was ignored.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        raise Signalled(signal.Signals(number))

    return handled(handle, _heard())


@contextmanager
def handled(handle: Callable[[int, FrameType | None], None], signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Handle these signals; what handled them before does so again at the end."""
    before = {which: signal.signal(which, handle) for which in signals}
    try:
        yield
    finally:
        _give_back(before)


def _give_back(before: Mapping[signal.Signals, Any]) -> None:
    for which, handler in before.items():
        signal.signal(which, signal.SIG_DFL if handler is None else handler)


def _heard() -> list[signal.Signals]:
    """Signals that this thread can take, in the main one alone, and that are not ignored."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [which for which in SIGNALS if signal.getsignal(which) is not signal.SIG_IGN]


class Stop:
    """Inside this context the first signal sets `requested`, and a second one raises KeyboardInterrupt.

    Only the main thread can take signals: in any other the context changes nothing, and `request` is the way to ask.
    A signal that was ignored (as by `nohup`) stays ignored. The handlers found are put back at the end.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}  # plain data: a stop is pickled with what watches a sweep
        self._grace: float | None = None
        self._timer: threading.Timer | None = None
        self._overdue = False

    def request(self, which: signal.Signals | None = None) -> None:
        """Ask for the stop."""
        self.requested = True
        self.signal = self.signal or which

    @contextmanager
    def limit(self, grace: float) -> Iterator[None]:
        """What runs inside is broken off, by BrokenOff, `grace` seconds after a signal asked for the stop."""
        self._grace = grace
        if self.requested and self._before:
            self._arm(grace, self.signal or signal.SIGINT)
        try:
            yield
        finally:
            self._grace = None
            if self._timer is not None:
                self._timer.cancel()

    def __enter__(self) -> Stop:
        self._before = {which: signal.signal(which, self._handle) for which in _heard()}
        return self

    def __exit__(self, *_: object) -> None:
        _give_back(self._before)
        self._before = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._overdue:
            self._overdue = False
            if self._grace is not None:
                raise BrokenOff
        elif self.requested:
            raise KeyboardInterrupt
        else:
            self.request(signal.Signals(number))
            if self._grace is not None:
                self._arm(self._grace, number)

    def _arm(self, grace: float, number: int) -> None:
        self._timer = threading.Timer(grace, self._break_off, (number,))
        self._timer.daemon = True
        self._timer.start()

    def _break_off(self, number: int) -> None:
        """Handlers run in the main thread only, and a real signal also wakes it from a system call."""
        self._overdue = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)
