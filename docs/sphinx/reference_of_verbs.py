"""Directives that write the command line's reference from the program itself.

`.. verb:: distlfm fit` tells of one verb, `.. all-verbs::` of every one, a section each.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer.main
from docstrings import escaped
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from distlfm.cli.app import app as command_line

PROGRAM = "distlfm"


def verbs(command: click.Command, name: str = PROGRAM) -> Iterator[tuple[str, click.Command]]:
    """Every verb with its whole name; groups are gone into, and are none themselves."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for part, below in command.commands.items():
        yield from verbs(below, f"{name} {part}")


def described(name: str, command: click.Command) -> list[str]:
    """reStructuredText of a verb: how it is called, what it does, its arguments and its options."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines = [f".. program:: {name}", "", f"``{usage}``", ""]
    lines += [escaped(line) for line in (command.help or "").splitlines()] + [""]
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        called, words = record
        words = escaped(words.replace("\\[", "["))
        if isinstance(parameter, click.Argument):
            lines += [f"{escaped(called)}", f"   {words}", ""]
        else:
            lines += [f".. option:: {called.replace(' / ', ', ')}", "", f"   {words}", ""]
    return lines


class Verb(SphinxDirective):
    """One verb, or the options of the program itself."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        program = typer.main.get_command(command_line)
        known = {PROGRAM: program, **dict(verbs(program))}
        if name not in known:
            raise self.error(f"There is no verb {name!r}.")
        return self.parse_text_to_nodes("\n".join(described(name, known[name])))


class AllVerbs(SphinxDirective):
    """Every verb in a section of its own, under which links find it: `distlfm fit` is `distlfm-fit`."""

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for name, command in verbs(typer.main.get_command(command_line)):
            label = name.replace(" ", "-")
            lines += [f".. _{label}:", "", name, "-" * len(name), "", *described(name, command)]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("verb", Verb)
    app.add_directive("all-verbs", AllVerbs)
    return {"parallel_read_safe": True}
