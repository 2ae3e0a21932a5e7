"""Hosts: lists of them as Slurm writes them, addresses and ports of this one as other nodes need them, and its job."""

from __future__ import annotations

import fcntl
import itertools
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

from distlfm.errors import UsageError, WorkError


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
    """Of `08-10,12` the four numbers, with their leading zeros."""
    found: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"The list of hosts {names!r} has a range {part!r}.", "Write ranges as [1-4] or [01,03].")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return found


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


def free_port(first: int) -> int:
    """The first port from `first` on at which nobody listens."""
    for port in range(first, first + TRIES):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("", port))
                return port
    raise WorkError(f"All ports from {first} to {first + TRIES - 1} are taken.", "End what is left of other jobs.")
