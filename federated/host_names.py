"""Which names hosts may have: they stand in certificates, and in the addresses that sites call."""

from __future__ import annotations

import ipaddress
import re

from distlfm.errors import UsageError

LONGEST = 253
LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
NAME = re.compile(rf"{LABEL}(\.{LABEL})*")
"""By the book the underscore is no letter of such names; in those of containers it is."""


def check_host(host: str) -> str:
    """The name or address itself, or a refusal."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if len(host) > LONGEST or not NAME.fullmatch(host):
            raise UsageError(
                f"{host!r} is no name or address of a host.",
                "Give one such as link.example.org or 10.0.0.3, without a port: letters, digits and hyphens, up to 63 "
                f"between dots and {LONGEST} in all; other letters in their xn-- form.",
            ) from None
    return host
