"""One rank of a helper group: `python -m distlfm.solvers.fem.group.rank ADDRESS`, started by `owner`.

It dials the group's owner, proves that it holds the group's secret, and serves one request after another until the
connection ends. The verbs are those of a service: a module with `VERBS`, a mapping from names to functions of a
session (a dictionary that lasts as long as the rank), the request's header and its arrays, and with a header and
arrays as answer. The service is imported at the first verb of it, so that a rank is reachable before dolfin has loaded.

A rank must not outlive its owner, not even while it waits for another rank inside MPI, where no Python code can run.
So while it computes, the connection is set to raise SIGIO, whose default is to end the process, on any event: the owner
sends nothing before it has its answer, hence the only event that can come is the connection's end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from distlfm.errors import DistlfmError, UsageError
from distlfm.optional import install_line
from distlfm.solvers.fem.group.wire import SECRET_BYTES, Array, Channel, Message, PeerGone, greet_owner, tune

Answer = tuple[Mapping[str, Any], Mapping[str, Array]]
Verb = Callable[[dict[str, Any], Mapping[str, Any], Mapping[str, Array]], Answer]

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
DIAL_SECONDS = 30.0
OWNER_LOST = 3  # exit code
BROUGHT_BY_EXTRA = {"mpi4py", "petsc4py", "dolfin", "ufl", "ffc", "fenics_adjoint", "dolfin_adjoint", "pyadjoint"}
"""Modules of the extra `fem` and its system packages."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m distlfm.solvers.fem.group.rank")
    parser.add_argument("address", help="unix:PATH or tcp:HOST:PORT of the owner")
    parser.add_argument("--secret", default="-", help="the file that holds the group's secret; - is standard input")
    parser.add_argument("--logs", type=Path, help="the directory for what this rank prints")
    parser.add_argument("--service", required=True, help="the module that has the verbs")
    arguments = parser.parse_args()
    number = own_number()
    if arguments.logs is not None:
        _print_to(arguments.logs / f"rank-{number}.log")
    secret = _read_secret(arguments.secret)
    channel = greet_owner(_dial(arguments.address), secret, number, time.monotonic() + DIAL_SECONDS)
    about = {
        "rank": number,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "job": os.environ.get("PMIX_NAMESPACE", ""),
    }
    channel.send(Message(about))
    serve(channel, arguments.service)


def own_number() -> int:
    """The rank's number, from what the launcher left in the environment: MPI itself is not loaded yet."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def serve(channel: Channel, service: str) -> None:
    """Answer requests until the owner asks to stop, or is gone."""
    session: dict[str, Any] = {}
    try:
        while (request := channel.receive()).header["verb"] != "shutdown":
            with _ended_with(channel):
                answer = _answer(session, service, request)
            channel.send(answer)
        channel.send(Message({"ok": True}))
    except PeerGone:
        _leave(OWNER_LOST)


def _answer(session: dict[str, Any], service: str, request: Message) -> Message:
    verb = request.header["verb"]
    try:
        if verb == "ping":
            return Message({"ok": True, "header": request.header.get("header", {})}, request.arrays)
        if verb == "usage":
            used = {"peak_bytes": peak_memory(), "processor_seconds": time.process_time()}
            return Message({"ok": True, "header": used})
        verbs: Mapping[str, Verb] = importlib.import_module(service).VERBS
        if verb not in verbs:
            raise UsageError(f"The helper group has no verb {verb!r}.", f"It has {', '.join(sorted(verbs))}.")
        header, arrays = verbs[verb](session, request.header.get("header", {}), request.arrays)
        return Message({"ok": True, "header": header}, arrays)
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        return Message({"ok": False, "error": _described(error)})


def peak_memory() -> int:
    """The most memory, in bytes, that this process has held at any time; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _described(error: Exception) -> dict[str, str]:
    """An error in words: the class of it that the owner raises, the cause and the fix."""
    if isinstance(error, DistlfmError):
        return {"kind": type(error).__name__, "cause": error.cause, "fix": error.fix}
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in BROUGHT_BY_EXTRA:
        fix = f"Install it with: {install_line('fem')}"
        return {"kind": "MissingExtra", "cause": f"{error.name} is not installed.", "fix": fix}
    lines = [line.strip("* \t") for line in str(error).splitlines()]
    reasons = [line.partition(":")[2].strip() for line in lines if line.startswith(("Error:", "Reason:"))]
    cause = " ".join(reasons) or " ".join(line for line in lines if line)
    return {"kind": "WorkError", "cause": f"{type(error).__name__}: {cause}", "fix": ""}


@contextlib.contextmanager
def _ended_with(channel: Channel) -> Iterator[None]:
    """While in here, the process ends when the connection does, whatever it is doing."""
    descriptor = channel.fileno()
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        if select.select([descriptor], [], [], 0)[0]:  # it ended before it was set to tell
            _leave(OWNER_LOST)
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _leave(code: int) -> None:
    """Go at once: to finalise MPI would wait for the other ranks, which may be gone."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _dial(address: str) -> socket.socket:
    kind, _, place = address.partition(":")
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(place)
    else:
        host, _, port = place.rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=DIAL_SECONDS)
    tune(sock)
    return sock


def _read_secret(place: str) -> bytes:
    if place != "-":
        return bytes.fromhex(Path(place).read_text())
    text = sys.stdin.buffer.read(2 * SECRET_BYTES)
    if len(text) < 2 * SECRET_BYTES:
        raise SystemExit("the owner went before it gave the group's secret")
    return bytes.fromhex(text.decode())


def _print_to(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    main()
