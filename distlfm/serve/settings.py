"""The config of `distlfm serve`, and what may be reached from where."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from distlfm.errors import UsageError
from distlfm.mechanisms.build import WithPlugins
from distlfm.runs.settings import DataConfig

PORT = 8765


class ServeConfig(WithPlugins):
    """`distlfm serve`.

    data: what the page lists; its columns hold for files that are dropped on the page too. outputs: names of outputs
    in the data, and what the operator calls them. fit: a config of `distlfm fit` for the comparison; without one, the
    operator's equation with the priors of what it learned from, as far as its checkpoint has them. names: by which,
    besides addresses, a browser may call this machine. max_megabytes: of a dropped file, also once it is unpacked.
    threads: of the tensor operations. plugins: modules to import first, which register the operator's equation.
    """

    verb: Literal["serve"] = "serve"
    checkpoint: Path
    data: DataConfig = DataConfig()
    outputs: Mapping[str, str] = {}
    fit: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=PORT, ge=0, le=65535)
    token_file: Path | None = None
    expose_unencrypted: bool = False
    names: tuple[str, ...] = ()
    max_megabytes: float = Field(default=50.0, gt=0)
    threads: int = Field(default=1, ge=1)

    @property
    def address(self) -> str:
        """The host as an address."""
        return {"localhost": "127.0.0.1"}.get(self.host, self.host)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the page."""
        return _address(self.address).is_loopback


def check_exposure(config: ServeConfig) -> None:
    """Refuse a page that others could reach, unless that was asked for in so many words and a token guards it."""
    if config.is_local:
        return
    if not config.expose_unencrypted:
        raise UsageError(
            f"{config.host} can be reached by other machines, and what they send and see is not encrypted.",
            "Stay with 127.0.0.1 and come through `ssh -L`; or accept that with --expose-unencrypted and --token-file.",
        )
    if config.token_file is None:
        raise UsageError(
            f"{config.host} can be reached by other machines, and nothing would keep them out.",
            "Give --token-file FILE; it is made if it is not there.",
        )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"{host!r} is not an address.", "Give one of this machine, such as 127.0.0.1.") from None
