"""Every argument and option of every verb is explained where it is asked for."""

from __future__ import annotations

import click
import pytest

from tests.support.cli_verbs import verbs

VERBS = verbs()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_explains_every_argument_and_option(verb: tuple[str, ...]) -> None:
    command = VERBS[verb]
    context = click.Context(command, info_name=" ".join(verb))
    silent = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and not record[1].replace(r"\[required]", "").strip():
            silent.append(parameter.name)
    assert silent == []
