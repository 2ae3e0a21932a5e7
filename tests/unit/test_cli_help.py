"""Every argument and option of every verb is explained where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
import typer.main

from distlfm.cli.app import app


def verbs(command: click.Command, name: str = "distlfm") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for part, below in command.commands.items():
            yield from verbs(below, f"{name} {part}")
    else:
        yield name, command


VERBS = dict(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_every_argument_and_option(verb: str) -> None:
    command = VERBS[verb]
    context = click.Context(command, info_name=verb)
    silent = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and not record[1].replace(r"\[required]", "").strip():
            silent.append(parameter.name)
    assert silent == []
