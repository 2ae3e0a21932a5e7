"""The words of the documents are true: their commands and programs are run, in order, in a copy of the project.

What cannot be run here is in `NOT_RUN`, each with the check that takes its place. A block is run whole or not at all.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import click
import pytest
import typer.main
import yaml

from distlfm.cli.app import app
from distlfm.config import build
from distlfm.runs.settings import FitConfig

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
DOCUMENTS = sorted(
    [
        *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
        *(path for folder in ("docs", "docker", "slurm") for path in (PROJECT / folder).rglob("*.md")),
    ]
)
SHOWN_ONLY = {"yaml", "text"}
TIME_LIMIT = 200


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, and the line of the document where it begins."""

    language: str
    text: str
    line: int

    @property
    def commands(self) -> list[str]:
        """Lines of a shell block that do something."""
        return [line for line in self.text.splitlines() if line.strip() and not line.startswith("#")]


def blocks(document: Path) -> Iterator[Block]:
    lines = document.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            yield Block(lines[start][3:].strip(), "\n".join(lines[start + 1 : number]) + "\n", start + 2)
            start = None
    assert start is None, f"{document}: the block of line {start} does not end"


def of_all_documents(*languages: str) -> list[tuple[Path, Block]]:
    return [(path, block) for path in DOCUMENTS for block in blocks(path) if block.language in languages]


# ---- what takes the place of a run -----------------------------------------------------------------------------------


def makes_a_target(match: re.Match[str]) -> None:
    done = subprocess.run(["make", "--dry-run", match["target"]], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    targets = (PROJECT / "Makefile").read_text()
    assert re.search(rf"^{match['target']}:.*## \S", targets, re.MULTILINE), "`make help` leaves it out"


def installs_the_locked_torch(match: re.Match[str]) -> None:
    assert f"torch=={match['version']}" in (PROJECT / "constraints.txt").read_text().splitlines()


def installs_an_extra(match: re.Match[str]) -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert match["extra"] is None or match["extra"] in extras
    system = [word for word in (match["system"] or "").split() if word not in ("apt-get", "install", "&&")]
    script = (PROJECT / "launch" / "bootstrap.sh").read_text()
    assert [package for package in system if package not in script] == []


def uses_the_environment_of_the_set_up(match: re.Match[str]) -> None:
    assert match["folder"] in (PROJECT / "launch" / "bootstrap.sh").read_text()


NOT_RUN: dict[str, Callable[[re.Match[str]], None]] = {
    # The suite itself, what needs root or a network, and what other tests run.
    r"make (?P<target>demo|docs|test|test-release|lint|lock|setup)": makes_a_target,
    r"\. (?P<folder>\.venv)/bin/activate": uses_the_environment_of_the_set_up,
    r"pip install torch==(?P<version>[0-9.]+)": installs_the_locked_torch,
    r"(?P<system>apt-get install .* && )?"
    r'pip install -c constraints\.txt ("\.\[(?P<extra>\w+)\]"|\.)': installs_an_extra,
}


def replacement(command: str) -> tuple[Callable[[re.Match[str]], None], re.Match[str]] | None:
    for pattern, check in NOT_RUN.items():
        if match := re.fullmatch(pattern, command):
            return check, match
    return None


def is_run(block: Block) -> bool:
    return block.language == "python" or not all(replacement(command) for command in block.commands)


# ---- running ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that are tracked, as a new user has them after cloning; the environment is this one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("needs a git checkout, to know which files are tracked")
    for name in filter(None, listed.stdout.split("\0")):
        if os.path.lexists(PROJECT / name):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, tmp_path / name, follow_symlinks=False)
    return tmp_path


def run_block(block: Block, cwd: Path) -> subprocess.CompletedProcess[str]:
    bash = ["bash", "-euo", "pipefail", "-c", block.text]
    command = bash if block.language == "bash" else [sys.executable, "-c", block.text]
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [
        path
        for path in DOCUMENTS
        if any(is_run(block) for block in blocks(path) if block.language in ("bash", "python"))
    ],
    ids=lambda path: str(path.relative_to(PROJECT)),
)
def test_commands_and_programs_of_a_document_work_in_order(document: Path, copy: Path) -> None:
    for block in blocks(document):
        if block.language in ("bash", "python") and is_run(block):
            done = run_block(block, copy)
            place = f"{document.name}, line {block.line}"
            assert done.returncode == 0, f"{place}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr, place


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_links_and_named_files_exist(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#]+)\)", text)
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    folders = "|".join(path.name for path in PROJECT.iterdir() if path.is_dir() and not path.name.startswith("."))
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    missing += [name for name in named if not name.startswith(("runs/", "build/")) and not (PROJECT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_verbs_and_targets_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"`distlfm\s+([a-z]\w*)", text)) - verbs == set()
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) - targets == set()


def test_readme_gives_the_two_commands_first() -> None:
    first = next(block for block in blocks(PROJECT / "README.md") if block.language == "bash")
    assert first.commands == ["make demo", "make test"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
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
