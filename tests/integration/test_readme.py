"""The words of the documents are true: what they name exists, and what is shown only has verbs and options that do.

What cannot be run here is in `NOT_RUN`, each with the check that takes its place. A block is run whole or not at all.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import click
import pytest
import typer.main
import yaml

from distlfm.cli.app import app
from distlfm.config import build
from distlfm.runs.settings import FitConfig
from tests.support.documents import (
    DOCUMENTS,
    PROJECT,
    Block,
    blocks,
    check_blocks,
    is_run,
    named,
    of_all_documents,
    replacement,
    runs,
)

SHOWN_ONLY = {"yaml", "text"}


@pytest.mark.slow
@pytest.mark.parametrize("document", [one for one in DOCUMENTS if runs(one) and one.parent == PROJECT], ids=named)
def test_commands_and_programs_of_a_document_work_in_order(document: Path, tmp_path: Path) -> None:
    check_blocks(document, tmp_path)


@pytest.mark.parametrize(
    "command",
    sorted({command for _, block in of_all_documents("bash") if not is_run(block) for command in block.commands}),
)
def test_command_that_is_not_run_holds_what_it_promises(command: str) -> None:
    found = replacement(command)
    assert found is not None
    check, match = found
    check(match)


def test_block_with_a_command_that_is_not_listed_is_run() -> None:
    assert not is_run(Block("bash", "make test\n", 1))
    assert is_run(Block("bash", "make test\ndistlfm doctor\n", 1))
    assert is_run(Block("bash", "make test && distlfm doctor\n", 1))


# ---- what is shown only ----------------------------------------------------------------------------------------------


def calls(text: str) -> Iterator[list[str]]:
    """Calls of distlfm in a text: the words behind it. Those with a gap (…, $@) are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|[\s(])distlfm ((?:[a-z]|--?\w).*)", line)
        if found and not re.search(r"…|\$@", line):
            yield shlex.split(found[1].rstrip("; })"), comments=True)


def check_call(words: list[str]) -> None:
    """Raises click's error if a verb or an option does not exist, or an option lacks its value."""
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group):
        while words and words[0].startswith("-"):
            words = words[1:]
        if not words or words == ["X"]:  # a family of verbs is named, or a global option
            return
        assert words[0] in command.commands, words[0]
        command, words = command.commands[words[0]], words[1:]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(args=list(words))


def shown() -> list[tuple[str, str]]:
    """Texts that are not run: blocks, and code within a line."""
    found = [(f"{path.name}:{block.line}", block.text) for path, block in of_all_documents("text")]
    for path in DOCUMENTS:
        prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for code in re.findall(r"`(distlfm [^`]+)`", prose):
            words = code.replace("\n", " ")
            found.append((path.name, f"{words} X" if words.split()[-1].startswith("--") else words))
    return found


def test_calls_that_are_only_shown_have_verbs_and_options_that_exist() -> None:
    checked = 0
    for place, text in shown():
        for words in calls(text):
            try:
                check_call(words)
            except (click.ClickException, AssertionError) as error:
                pytest.fail(f"{place}: distlfm {shlex.join(words)}: {error}")
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("wrong", ["fti x.yaml", "fit x.yaml --nodes 3", "fit x.yaml --out"])
def test_a_call_that_cannot_work_is_noticed(wrong: str) -> None:
    with pytest.raises((click.ClickException, AssertionError)):
        check_call(wrong.split())


@pytest.mark.parametrize(
    ("path", "block"), of_all_documents("yaml"), ids=lambda one: one.name if isinstance(one, Path) else str(one.line)
)
def test_a_piece_of_a_config_is_one_that_a_fit_takes(path: Path, block: Block) -> None:
    piece = yaml.safe_load(block.text)
    mechanism = {"kind": "reaction_diffusion", **piece.pop("mechanism", {})}
    assert build(FitConfig, {"mechanism": mechanism, **piece})


def test_no_document_hides_a_command_in_an_indented_block() -> None:
    hidden = [
        (path.name, line)
        for path in DOCUMENTS
        for line in re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M).splitlines()
        if re.match(r"    (?:\$ )?(?:distlfm|sbatch|make|python|pip|docker|apptainer)\b", line)
    ]
    assert hidden == []


# ---- what is not in blocks -------------------------------------------------------------------------------------------


def test_every_block_says_its_language() -> None:
    known = {"bash", "python", *SHOWN_ONLY}
    assert [(path.name, b.line) for path in DOCUMENTS for b in blocks(path) if b.language not in known] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_and_named_files_exist(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#]+)\)", text)
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    folders = "|".join(path.name for path in PROJECT.iterdir() if path.is_dir() and not path.name.startswith("."))
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    missing += [name for name in named if not name.startswith(("runs/", "build/")) and not (PROJECT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_verbs_and_targets_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"`distlfm\s+([a-z]\w*)", text)) - verbs == set()
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) - targets == set()


def test_readme_gives_the_two_commands_first() -> None:
    first = next(block for block in blocks(PROJECT / "README.md") if block.language == "bash")
    assert first.commands == ["make demo", "make test"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_benchmarks_that_are_named_exist(document: Path) -> None:
    named = set(re.findall(r"`python -m benchmarks (\w+)", document.read_text(encoding="utf-8"))) - {"NAME"}
    files = {name: PROJECT / "benchmarks" / f"{name}.py" for name in named}
    assert [name for name, file in files.items() if not file.exists() or "\ndef run(" not in file.read_text()] == []


@pytest.mark.parametrize("program", ["docs/make_road.py", "docs/make_pictures.py"])
def test_pictures_are_the_ones_their_program_draws(program: str) -> None:
    done = subprocess.run([sys.executable, program, "--check"], cwd=PROJECT, timeout=60)
    assert done.returncode == 0, f"run: python {program}"


def test_every_picture_is_shown_by_a_document() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    pictures = [path.name for path in (PROJECT / "docs" / "images").iterdir()]
    assert [name for name in pictures if not any(f"images/{name})" in text for text in texts)] == []
    assert "](docs/images/road.svg)" in (PROJECT / "README.md").read_text(encoding="utf-8")


def test_the_caution_of_every_page_is_told_in_the_words_of_the_pages() -> None:
    from distlfm.report.words import CAUTION, WHY_DOUBT

    text = " ".join((PROJECT / "docs" / "serve.md").read_text(encoding="utf-8").split())
    assert f"**{CAUTION}** {WHY_DOUBT}" in text


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    from distlfm.version import __version__

    headings = re.findall(r"^## (\S+) \((.+)\)$", (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    version, day = headings[0]
    assert version == __version__
    assert date.fromisoformat(day)
