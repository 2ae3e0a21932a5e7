"""The link's list of sites: their public keys, and who was revoked. The coordinator's folder is the authority.

A running link follows the file: an enrolled site is let in, and a revoked one is shut out, within a second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from distlfm.config import Config, build
from distlfm.errors import UsageError
from distlfm.federated.homes import check_name
from distlfm.federated.identity import check_node_public, check_signing_public
from distlfm.store.files import put_all, unreadable

FOLLOW_SECONDS = 1.0


class Entry(Config):
    """A site's public keys."""

    node: str
    signing: str
    status: Literal["active", "revoked"] = "active"

    @field_validator("signing")
    @classmethod
    def _signing(cls, value: str) -> str:
        return check_signing_public(value)

    @field_validator("node")
    @classmethod
    def _node(cls, value: str) -> str:
        check_node_public(value)
        return value.strip()


class Roster(Config):
    """All sites by name."""

    sites: dict[str, Entry] = Field(default_factory=dict)

    @field_validator("sites")
    @classmethod
    def _names(cls, value: dict[str, Entry]) -> dict[str, Entry]:
        for name in value:
            check_name(name)
        return value

    def active(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self.sites.items() if entry.status == "active"}


def read_roster(path: Path) -> Roster:
    """The list in a file; an empty one if there is none yet."""
    if not path.exists():
        return Roster()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise UsageError(f"Cannot read {path}: {error}.", "Put a saved copy of it back.") from None
    return build(Roster, content, source=str(path))


def write_roster(path: Path, roster: Roster) -> None:
    """Replace the list, whole or not at all."""
    put_all({path: (json.dumps(roster.model_dump(), indent=2) + "\n").encode()})


def follow(state: Any, roster: Roster, owner: str) -> list[tuple[str, str]]:
    """Make Flower's list of nodes the same as the roster's active sites.

    state: Flower's LinkState. Gives what was changed: "let in" or "shut out", and the site's name.
    """
    changes: list[tuple[str, str]] = []
    wanted = {check_node_public(entry.node): name for name, entry in roster.active().items()}
    known = {node.public_key: node for node in state.get_node_info(owner_aids=[owner], statuses=_PRESENT)}
    for key, node in known.items():
        if key not in wanted:
            state.delete_node(owner, node.node_id)
            changes.append(("shut out", node.name))
    for key, name in wanted.items():
        if key not in known:
            state.create_node(owner, name, key, 30.0, name=name)
            changes.append(("let in", name))
    return changes


_PRESENT = ["registered", "online", "offline"]
