"""Addresses and ports of this machine, as other nodes need them."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from distlfm.errors import UsageError, WorkError

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
