"""The files that coordinator and sites hand to each other when a federation is made. None of them is secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from distlfm.config import Config, Model, build
from distlfm.errors import UsageError
from distlfm.store.files import put_all, unreadable

LABEL = "public keys of a site"
"""What a site's proof is a signature of, besides its keys."""


class Kit(Config):
    """What a site gets from the coordinator. Nothing in it is secret."""

    kind: Literal["distlfm-kit"] = "distlfm-kit"
    federation: str
    site: str
    host: str
    port: int = Field(ge=1, le=65535)
    package: str
    ca: str


class PublicKeys(Config):
    """What the coordinator gets from a site. The proof shows that the site holds the signing key."""

    kind: Literal["distlfm-site"] = "distlfm-site"
    federation: str
    site: str
    node: str
    signing: str
    proof: str

    def signed(self) -> bytes:
        return f"{self.federation}\n{self.site}\n{self.node}".encode()


class Peers(Config):
    """What every site gets at last: the signing keys of all."""

    kind: Literal["distlfm-peers"] = "distlfm-peers"
    federation: str
    peers: dict[str, str]


def write_handed(path: Path, content: Config) -> None:
    """As JSON, whole or not at all."""
    put_all({path: (json.dumps(content.model_dump(), indent=2) + "\n").encode()})


def read_handed(model: type[Model], path: Path) -> Model:
    """A file that the other side sent; it is checked like a config."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise UsageError(f"Cannot read {path}: {error}.", "Give the file that the other side sent.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no file of a federation.", "Give the file that the other side sent.")
    return build(model, content, source=str(path))
