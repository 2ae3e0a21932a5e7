"""Probes of the machine: Slurm, the directory of results, ports and open files.

Blocks of a store and checkpoints are published by renames. Only readers on this machine are tried: a network file
system may still show another machine the old file for a while.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distlfm.doctor.probe import Finding, expect, load, requested_directory
from distlfm.runtime.process import run_within

COMMANDS = ("sinfo", "sbatch", "srun")
# Without a configuration the commands do not even tell their version.
EMPTY_CLUSTER = "ClusterName=none\nSlurmctldHost=localhost\n"
VERSION_SECONDS = 10.0


def check_slurm() -> str:
    """Ask whether Slurm's commands are installed, and whether this machine belongs to a cluster."""
    absent = [command for command in COMMANDS if shutil.which(command) is None]
    if absent:
        raise Finding("missing", f"{', '.join(absent)} not on the PATH; only `distlfm submit` needs Slurm")
    versions = {command: _version(command) for command in COMMANDS}
    if all(versions.values()):
        return f"{versions['sinfo']}, configured"
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as configuration:
        configuration.write(EMPTY_CLUSTER)
        configuration.flush()
        versions = {command: _version(command, configuration.name) for command in COMMANDS}
    failed = [command for command, version in versions.items() if not version]
    if failed:
        raise Finding("broken", f"{', '.join(failed)} -V fails")
    return f"{versions['sinfo']} installed; no cluster is configured on this machine"


def _version(command: str, configuration: str | None = None) -> str:
    """What the command says of its version, empty if it fails."""
    environment = dict(os.environ) if configuration is None else {**os.environ, "SLURM_CONF": configuration}
    finished = run_within([command, "-V"], VERSION_SECONDS, environment)
    return finished.stdout.strip() if finished.returncode == 0 else ""


NUM_SHARDS, SHARD_VALUES, CHUNKS_A_SHARD = 8, 2**20, 4
MEGABYTE = 1e6


def check_zarr() -> str:
    """Ask how fast a sharded Zarr array goes to a directory."""
    import numpy as np

    zarr = load("zarr")
    values = np.random.default_rng(0).standard_normal((NUM_SHARDS, SHARD_VALUES), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=requested_directory()) as scratch:
        array = zarr.create_array(
            store=Path(scratch) / "probe.zarr",
            shape=values.shape,
            dtype=values.dtype,
            chunks=(1, SHARD_VALUES // CHUNKS_A_SHARD),
            shards=(1, SHARD_VALUES),
        )
        start = time.perf_counter()
        for shard in range(NUM_SHARDS):
            array[shard] = values[shard]
        seconds = time.perf_counter() - start
        expect(np.array_equal(array[:], values), "what was read differs from what was written")
    return f"zarr {zarr.__version__}, {values.nbytes / MEGABYTE / seconds:.0f} MB/s written in shards"


FILE_BYTES = 2**16
SECONDS = 0.5


@dataclass(frozen=True)
class Race:
    """How many replacements, and how many reads in between; `torn` reads saw no file, or a part of one."""

    num_replacements: int
    num_reads: int
    num_torn: int


def check_rename() -> str:
    """Ask whether a rename over a file of a directory happens at once, for whoever reads that file meanwhile."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=requested_directory()) as scratch:
        race = race_replacements(Path(scratch), os.replace)
    if race.num_torn:
        raise Finding("broken", f"{race.num_torn} of {race.num_reads} reads saw a missing or partial file")
    return f"{race.num_replacements} renames under {race.num_reads} reads, none torn"


def race_replacements(directory: Path, replace: Callable[[Path, Path], object], seconds: float = SECONDS) -> Race:
    """Replace a file of `directory` again and again with `replace(new, old)`, while a thread reads it whole."""
    target, incoming = directory / "published", directory / "incoming"
    target.write_bytes(bytes(FILE_BYTES))
    done = threading.Event()
    reads: list[bool] = []

    def read_all_along() -> None:
        while not done.is_set():
            reads.append(_is_whole(target))

    reader = threading.Thread(target=read_all_along)
    reader.start()
    num_replacements = 0
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            num_replacements += 1
            incoming.write_bytes(bytes([num_replacements % 256]) * FILE_BYTES)
            replace(incoming, target)
    finally:
        done.set()
        reader.join()
    return Race(num_replacements, len(reads), reads.count(False))


def _is_whole(path: Path) -> bool:
    """Whether the file is there and is one of the versions written: its full length, one byte repeated."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return len(content) == FILE_BYTES and content.count(content[:1]) == FILE_BYTES


MINIMUM_FREE_BYTES = 2**30
GIGABYTE = 1e9


def check_disk() -> str:
    """Ask whether there is room in a directory."""
    return free_space(requested_directory())


def free_space(directory: Path, minimum: int = MINIMUM_FREE_BYTES) -> str:
    """How much is free where `directory` lies; broken below `minimum` bytes."""
    free = shutil.disk_usage(directory).free
    words = f"{free / GIGABYTE:.1f} GB free in {directory}"
    if free < minimum:
        raise Finding("broken", words, f"du -xh {shlex.quote(str(directory))} | sort -h | tail")
    return words


ANSWER_SECONDS = 5.0


def check_ports() -> str:
    """Ask whether a program here can listen on a free port of the loopback interface, and be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ANSWER_SECONDS)
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"?")
                expect(accepted.recv(1) == b"?", "a byte sent over loopback did not arrive")
    return f"listened on 127.0.0.1:{port} and was reached"


MINIMUM_OPEN_FILES = 1024


def check_open_files() -> str:
    """Ask whether a process may open as many files as Ray and a store with many shards need."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MINIMUM_OPEN_FILES:
        raise Finding("broken", f"only {soft} open files per process; {MINIMUM_OPEN_FILES} are needed")
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} open files per process"
