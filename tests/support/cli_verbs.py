"""Every verb of the command line, those of groups too."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer.main

from distlfm.cli.app import app


def verbs() -> dict[tuple[str, ...], click.Command]:
    """By its words: `("data", "check")`."""
    return dict(_below(typer.main.get_command(app), ()))


def _below(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from _below(inner, (*words, word))
    else:
        yield words, command
