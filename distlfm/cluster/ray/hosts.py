"""A private Ray over several hosts: started on each, awaited, and ended, always.

Each host's part is a process of ours (`node.py`), started by srun inside a Slurm job, by ssh for a list of hosts, and
directly where it is this host. It lives as long as the pipe to it is open.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Literal

from distlfm.cluster.machine import import_environment
from distlfm.cluster.ray.node import END, START_SECONDS, NodeStarted, Orders
from distlfm.cluster.ray.session import JOINED, STRAY
from distlfm.errors import WorkError
from distlfm.runtime.process import LOOPBACK, cannot_start
from distlfm.runtime.reporting import Reporter

LOOK_SECONDS = 0.1
END_SECONDS = 10.0
"""How long the nodes may take to end by themselves."""

TERM_SECONDS = 5.0

Reach = Literal["srun", "ssh"]


@dataclass(frozen=True)
class Machines:
    """What a site says about its machines. python: the words that start Python on a node. port: where the head listens,
    or the next free one. See `Orders` for the others."""

    python: tuple[str, ...] = (sys.executable,)
    interface: str = ""
    scratch: str = ""
    port: int = 20000
    cpus: int = 0


@dataclass
class RayCluster:
    """A Ray that runs. environment: what a process needs in order to join it."""

    address: str
    environment: dict[str, str]
    nodes: list[HostProcess]
    reporter: Reporter
    _reported: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Say which nodes are lost since the last look."""
        for node in self.nodes:
            if node.process.poll() is not None and node.host not in self._reported:
                self._reported.add(node.host)
                left = len(self.nodes) - len(self._reported)
                self.reporter.warn(f"Ray: {node.host} is lost; {left} of {len(self.nodes)} nodes are left")


class HostProcess:
    """The process that keeps one host's Ray."""

    def __init__(self, host: str, command: Sequence[str], orders: Orders) -> None:
        self.host = host
        # A terminal's Ctrl-C would reach it too; whoever started it decides.
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **import_environment()},
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(command, error) from None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        with suppress(BrokenPipeError):
            self._input.write(json.dumps(asdict(orders)).encode() + b"\n")
            self._input.flush()

    def up(self, look: Callable[[], None]) -> NodeStarted:
        """Wait for its line."""
        until = time.monotonic() + START_SECONDS
        while not select.select([self._output], [], [], LOOK_SECONDS)[0]:
            look()
            if time.monotonic() > until:
                raise WorkError(f"{self.host} did not start Ray within {START_SECONDS:.0f} s.", self._advice)
        line = self._output.readline()
        if not line.startswith(b"{"):
            raise WorkError(f"{self.host} could not start Ray.", self._advice)
        return NodeStarted(**json.loads(line))

    _advice = "What it said is above; check that the node can be reached and that distlfm is installed there."

    def release(self) -> None:
        """Let it end."""
        with suppress(OSError), self._input:
            self._input.write(END)

    def end(self, until: float) -> None:
        """Take care that it has ended."""
        for patience, harder in ((until - time.monotonic(), self.process.terminate), (TERM_SECONDS, self.process.kill)):
            try:
                self.process.wait(max(0.0, patience))
                break
            except subprocess.TimeoutExpired:
                harder()
        self.process.wait()
        self._output.close()


@contextmanager
def ray_over(
    hosts: Sequence[str], reach: Reach, site: Machines, reporter: Reporter, look: Callable[[], None] = lambda: None
) -> Iterator[RayCluster]:
    """A Ray over these hosts, the head on the first. look: called again and again while we wait; may raise."""
    token = secrets.token_hex(32)
    nodes: list[HostProcess] = []
    try:
        orders = partial(Orders, token, interface=site.interface, scratch=site.scratch, cpus=site.cpus)
        first = orders(port=site.port, peers=tuple(hosts[1:]))
        nodes.append(HostProcess(hosts[0], start_command(hosts[0], reach, site), first))
        head = nodes[0].up(look)
        reporter.say(f"Ray: head on {head.host} at {head.address}; its own logs: {head.folder}/session_latest/logs")
        environment = {name: value for name, value in os.environ.items() if name not in STRAY}
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, JOINED: head.address}
        counter = _count(head.address, len(hosts), environment)
        try:
            for host in hosts[1:]:
                theirs = orders(address=head.address, peers=(hosts[0],))
                nodes.append(HostProcess(host, start_command(host, reach, site), theirs))
            for node in nodes[1:]:
                node.up(look)
            _await(counter, len(hosts), reporter, look)
        finally:
            counter.kill()
            counter.communicate()
        yield RayCluster(head.address, environment, nodes, reporter)
    finally:
        for node in nodes:
            node.release()
        until = time.monotonic() + END_SECONDS
        for node in reversed(nodes):
            node.end(until)


def start_command(host: str, reach: Reach, site: Machines) -> list[str]:
    """What starts a node's process on a host."""
    command = [*site.python, "-m", "distlfm.cluster.ray.node"]
    if reach == "srun":
        # --overlap: the batch script's own step has all cores already. Without a number of cores it gets them all.
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--mpi=none", "--cpu-bind=none"]
        return [*step, "--quiet", *command]
    if host in ("localhost", LOOPBACK, socket.gethostname()):
        return command
    there = [f"{name}={value}" for name, value in import_environment().items()]
    return ["ssh", "-o", "BatchMode=yes", host, shlex.join(["env", "-C", os.getcwd(), *there, *command])]


def _count(address: str, wanted: int, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A process that waits for the nodes, and meanwhile is one of Ray's."""
    command = [sys.executable, "-m", "distlfm.cluster.ray.contact", address, str(wanted), f"{START_SECONDS:.0f}"]
    return subprocess.Popen(
        command,
        env={**environment, **import_environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _await(counter: subprocess.Popen[str], wanted: int, reporter: Reporter, look: Callable[[], None]) -> None:
    while counter.poll() is None:
        look()
        time.sleep(LOOK_SECONDS)
    out, trouble = counter.communicate()
    try:
        alive = json.loads(out.splitlines()[-1])["nodes"]
    except (IndexError, KeyError, ValueError):
        raise WorkError(f"Ray was started, and cannot be joined: {' '.join((trouble + out).split())[-500:]}") from None
    if alive < wanted:
        reporter.warn(f"Ray: only {alive} of {wanted} nodes have joined; the work goes on with these")
