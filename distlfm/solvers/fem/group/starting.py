"""The start of a helper group: listen, launch, and let in the ranks that hold the group's secret."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from distlfm.errors import StartError, UsageError
from distlfm.solvers.fem.group.launcher import LaunchedRanks, LauncherName, plan_launch, reachable_address
from distlfm.solvers.fem.group.wire import Channel, WireError, admit_rank, new_secret, tune

HELLO_SECONDS = 5.0
SLICE_SECONDS = 0.05
LONGEST_SOCKET_PATH = 100

TransportName = Literal["auto", "unix", "tcp"]


@dataclass(frozen=True)
class Settings:
    ranks: int
    launcher: LauncherName
    transport: TransportName
    timeout: float
    grace: float
    host: str | None
    service: str
    environment: Mapping[str, str] = field(repr=False)


@dataclass(eq=False)
class RunningGroup:
    """The processes of a group and the connections to them. It outlives no owner."""

    job: LaunchedRanks
    channels: list[Channel]
    about: list[Mapping[str, Any]]
    owner: int = field(default_factory=os.getpid)

    def end(self) -> None:
        if os.getpid() != self.owner:  # a fork of the owner must not end the owner's group
            return
        self.drop()
        self.job.end()

    def drop(self) -> None:
        for channel in self.channels:
            channel.close()


# A fork of the owner that kept the connections would keep the ranks alive after the owner's death.
_RUNNING: weakref.WeakSet[RunningGroup] = weakref.WeakSet()


def _drop_in_fork() -> None:
    for running in list(_RUNNING):
        running.drop()


os.register_at_fork(after_in_child=_drop_in_fork)


def start_ranks(settings: Settings) -> RunningGroup:
    """Start the ranks and wait until all have dialled in; what was started is ended if they do not."""
    plan = plan_launch(settings.ranks, settings.launcher, settings.environment)
    transport = settings.transport
    if transport == "auto":
        transport = "unix" if plan.local else "tcp"
    if transport == "unix" and not plan.local:
        raise UsageError("Ranks on other nodes cannot use a unix socket.", "Use the transport tcp.")
    directory = _private_directory()
    secret = new_secret()
    job: LaunchedRanks | None = None
    try:
        if transport == "unix":
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(directory / "s"))
            address = f"unix:{directory / 's'}"
        else:
            host = settings.host or ("127.0.0.1" if plan.local else reachable_address(settings.environment))
            listener = socket.create_server((host, 0))
            address = f"tcp:{host}:{listener.getsockname()[1]}"
        with listener:
            listener.listen(settings.ranks + 8)
            job = LaunchedRanks(plan, [address, "--service", settings.service], secret, directory)
            admitted = admit_ranks(listener, job, secret, settings)
        (directory / "secret").unlink(missing_ok=True)  # every rank has it
        job.names = {str(about["job"]) for _, about in admitted}
        running = RunningGroup(job, [channel for channel, _ in admitted], [about for _, about in admitted])
        _RUNNING.add(running)
        return running
    except BaseException as error:
        if job is not None:
            job.end()
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, OSError):
            cause = f"The helper group of {settings.ranks} ranks did not start: {error}."
            raise StartError(cause, "`distlfm doctor` checks this machine.") from error
        raise


def admit_ranks(
    listener: socket.socket, job: LaunchedRanks, secret: bytes, settings: Settings
) -> list[tuple[Channel, Mapping[str, Any]]]:
    """Let in the ranks that hold the secret, each once; whoever does not is dropped and keeps nobody waiting."""
    deadline = time.monotonic() + settings.timeout
    arrived: queue.Queue[tuple[int, Channel, Mapping[str, Any]]] = queue.Queue()
    admitted: dict[int, tuple[Channel, Mapping[str, Any]]] = {}

    def hear(sock: socket.socket) -> None:
        limit = time.monotonic() + HELLO_SECONDS
        try:
            tune(sock)
            rank, channel = admit_rank(sock, secret, limit)
            arrived.put((rank, channel, channel.receive(limit).header))
        except (WireError, OSError):
            sock.close()

    listener.settimeout(SLICE_SECONDS)
    while len(admitted) < settings.ranks:
        with contextlib.suppress(TimeoutError):
            sock, _ = listener.accept()
            threading.Thread(target=hear, args=(sock,), daemon=True).start()
        with contextlib.suppress(queue.Empty):
            while True:
                rank, channel, about = arrived.get_nowait()
                if rank in admitted or rank >= settings.ranks:
                    channel.close()
                else:
                    admitted[rank] = (channel, about)
        ended = job.ended()
        if ended or time.monotonic() > deadline:
            gone, how = job.fate()
            otherwise = how or ("the launcher ended" if ended else "not all ranks were there in time")
            state = f"rank {gone} {how}" if gone is not None else otherwise
            cause = f"The helper group of {settings.ranks} ranks did not start: {state}."
            if gone is None and how:
                raise StartError(cause, "The same command goes on when the node is back, or with others.")
            words = job.last_words(gone)
            raise StartError(
                cause + (f" Last words:\n{words}\n" if words else ""), "`distlfm doctor` checks mpirun and FEniCS."
            )
    return [admitted[rank] for rank in range(settings.ranks)]


def _private_directory() -> Path:
    """A new directory that only this user can enter, with a path short enough for a socket."""
    base = tempfile.gettempdir()
    if len(base) + 24 > LONGEST_SOCKET_PATH:
        base = "/tmp"  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="distlfm-", dir=base))
