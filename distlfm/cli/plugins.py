"""The option `--plugin`, of every verb that may need an equation of the user's own."""

from __future__ import annotations

import json
from typing import Annotated

import typer

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="A module with an equation of your own, or its file; may be given again.",
    ),
]


def plugins_override(names: list[str] | None, key: str = "plugins") -> list[str]:
    """The option as an override of the config."""
    return [f"{key}={json.dumps(names)}"] if names else []
