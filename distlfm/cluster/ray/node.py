"""One node's Ray, for as long as its standard input is open; a process that `hosts.py` starts.

The first line of the input says what to be, the token among it, so that no command line and no file ever has it. One
line of output says where it listens. When the input ends, this node's Ray ends: however its starter went, and whether
srun, ssh or nothing is between them. An end that is meant is said in a line before; without, the starter's machine may
be gone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from distlfm.cluster.machine import MEBIBYTE, object_store_bytes, usable_cpus
from distlfm.cluster.ray.session import PRIVATE, STRAY, guarded_directory
from distlfm.cluster.slurm.allocation import look_after
from distlfm.errors import DistlfmError, WorkError
from distlfm.runtime.process import free_port, number_in, own_address, touch

END = b"end\n"
"""What the starter says before it closes the input."""

START_SECONDS = 90.0
LOOK_SECONDS = 0.1
CONNECT_SECONDS = 2.0
TAIL = 1500
"""Characters of Ray's last words that are shown."""

HEAD_GONE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "15"}
"""The head of a private Ray does not come back; its nodes would wait for it for a minute. A site may set another time
in the environment."""

RAY = "import sys; from ray.scripts.scripts import main; sys.exit(main())"


@dataclass(frozen=True)
class Orders:
    """The orders of a node. address: of the head; empty for the head itself, which listens at `port` or above.

    peers: hosts that must be able to reach it. interface: the network to use, chosen by the peers if empty. scratch:
    where its files go. cpus: how many to offer; all that it may use if it is 0.
    """

    token: str
    address: str = ""
    port: int = 0
    peers: tuple[str, ...] = ()
    interface: str = ""
    scratch: str = ""
    cpus: int = 0


@dataclass(frozen=True)
class NodeStarted:
    """What a node says when its Ray was started. folder: where Ray's own logs are while it runs."""

    host: str
    address: str
    cpus: int
    gpus: int
    folder: str


def main() -> int:
    """Be a node of Ray until the input ends."""
    # Slurm's warning may reach every process of a step. What was ignored stays so in all that Ray starts.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        orders = Orders(**json.loads(_line(sys.stdin.fileno())))
        if orders.scratch:
            os.environ["TMPDIR"] = orders.scratch
        with guarded_directory() as directory:
            meant = serve(orders, directory)
        if not meant:
            _after_the_head(orders)
    except DistlfmError as error:
        sys.stderr.write(f"{socket.gethostname()}: {error}\n")
        return error.exit_code
    return 0


def serve(orders: Orders, directory: Path) -> bool:
    """Start Ray, say so, and wait for the end; gives whether it is meant.

    `guarded_directory` ends Ray: its own way takes longer, and spares some of its children.
    """
    host = own_address(orders.peers, orders.interface)
    port = free_port(orders.port) if not orders.address else 0
    up = NodeStarted(
        host=socket.gethostname(),
        address=orders.address or f"{host}:{port}",
        cpus=orders.cpus or usable_cpus(),
        gpus=number_in(os.environ, "SLURM_GPUS_ON_NODE"),
        folder=str(directory),
    )
    log = directory / "start.log"
    with log.open("wb") as file:
        ray = subprocess.Popen(
            [sys.executable, "-c", RAY, *arguments(up, host, port)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment_of(orders, os.environ),
        )
    if not orders.address:
        _await_head(ray, host, port, log)
    sys.stdout.write(json.dumps(asdict(up)) + "\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if ray.poll() is not None:
            if orders.address and not _answers(orders.address):
                return False
            raise WorkError(f"Ray has ended. Its last words: {_tail(log)}", "Its logs are gone with it.")
    return os.read(sys.stdin.fileno(), len(END)) == END


def environment_of(orders: Orders, around: Mapping[str, str]) -> dict[str, str]:
    """What a node's Ray is started with."""
    kept = {name: value for name, value in around.items() if name not in STRAY}
    return HEAD_GONE | kept | PRIVATE | {"RAY_AUTH_TOKEN": orders.token}


def _after_the_head(orders: Orders) -> None:
    """This node of a Slurm job has lost the one that led it."""
    job, me = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURMD_NODENAME", "")
    again = os.environ.get("DISTLFM_REQUEUE") != "0"
    if orders.address and job and me and look_after(job, orders.peers[0], me, _pause, again):
        how = "queued again" if again else "cancelled, as DISTLFM_REQUEUE is 0; the same command goes on"
        sys.stderr.write(f"{me}: {orders.peers[0]} is lost; job {job} is {how}\n")


def _pause(seconds: float) -> bool:
    """Wait; says whether the starter is there after all, and means the end."""
    time.sleep(seconds)
    ready = select.select([sys.stdin], [], [], 0)[0]
    return bool(ready) and os.read(sys.stdin.fileno(), len(END)) == END


def arguments(up: NodeStarted, host: str, port: int) -> Sequence[str]:
    """The arguments of `ray start`: what it may use of the node, and ports that two jobs on a node do not share.

    Nobody reads the logs through Ray, and no node is added: what serves these ends is not started.
    """
    given = [
        "start",
        "--block",
        f"--node-ip-address={host}",
        f"--temp-dir={up.folder}",
        f"--num-cpus={up.cpus}",
        f"--num-gpus={up.gpus}",
        f"--object-store-memory={object_store_bytes()}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]
    number = partial(number_in, os.environ)
    memory = number("SLURM_MEM_PER_NODE") or number("SLURM_MEM_PER_CPU") * number("SLURM_CPUS_ON_NODE")
    if memory:
        given.append(f"--memory={max(MEBIBYTE, memory * MEBIBYTE - object_store_bytes())}")
    if not port:
        return [*given, f"--address={up.address}"]
    given += ["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"]
    if find_spec("grpc") is not None:  # Ray then offers one more server, at a port that all would share
        given.append(f"--ray-client-server-port={free_port(port + 1)}")
    return given


def _await_head(ray: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not _answers(f"{host}:{port}"):
        if ray.poll() is not None or time.monotonic() > until:
            raise WorkError(f"Ray did not start at {host}:{port}. Its last words: {_tail(log)}")
        if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            return


def _answers(address: str) -> bool:
    try:
        touch(address, CONNECT_SECONDS)
    except OSError:
        return False
    return True


def _line(descriptor: int) -> bytes:
    """The first line, and nothing beyond it, which `select` would not see any more."""
    text = b""
    while not text.endswith(b"\n") and (one := os.read(descriptor, 1)):
        text += one
    return text


def _tail(log: Path) -> str:
    return " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-TAIL:] or "none"


if __name__ == "__main__":
    sys.exit(main())
