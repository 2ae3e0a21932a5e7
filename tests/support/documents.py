"""The blocks of code in the documents: which there are, and how one is run in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
DOCUMENTS = sorted(
    [
        *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
        *(path for folder in ("docs", "docker", "slurm") for path in (PROJECT / folder).rglob("*.md")),
    ]
)
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


def copied(folder: Path) -> Path:
    """The files that are tracked, as a new user has them after cloning; the environment is this one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("needs a git checkout, to know which files are tracked")
    for name in filter(None, listed.stdout.split("\0")):
        if os.path.lexists(PROJECT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name, follow_symlinks=False)
    return folder


def run_block(block: Block, cwd: Path) -> subprocess.CompletedProcess[str]:
    bash = ["bash", "-euo", "pipefail", "-c", block.text]
    command = bash if block.language == "bash" else [sys.executable, "-c", block.text]
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)


def runs(document: Path) -> bool:
    """Whether a document has a block that is run."""
    return any(is_run(block) for block in blocks(document) if block.language in ("bash", "python"))


def named(document: Path) -> str:
    return str(document.relative_to(PROJECT))


def check_blocks(document: Path, folder: Path) -> None:
    """Run a document's commands and programs in order, in a copy of the project in `folder`."""
    place = copied(folder)
    for block in blocks(document):
        if block.language in ("bash", "python") and is_run(block):
            done = run_block(block, place)
            where = f"{document.name}, line {block.line}"
            assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr, where


GUIDES = [one for one in DOCUMENTS if runs(one) and one.parent != PROJECT]
"""Documents below the project's top that have a block to run; two files of tests share them, and workers the files."""
