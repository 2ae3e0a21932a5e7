"""What docs/troubleshooting.md quotes is what distlfm says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
VARIES = "…"


def quoted() -> list[str]:
    text = (PROJECT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"“([^”]+)”", text)) - {"quotes"})


def sentences(tree: ast.AST) -> Iterator[str]:
    """Every text of a program, with VARIES for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VARIES for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def said() -> list[str]:
    files = sorted({path.resolve() for path in (PROJECT / "distlfm").rglob("*.py")})
    files += sorted({path.resolve() for name in ("federated", "launch") for path in (PROJECT / name).rglob("*.py")})
    found = [text for file in files for text in sentences(ast.parse(file.read_text(encoding="utf-8")))]
    return [*found, *(PROJECT / "launch" / "bootstrap.sh").read_text(encoding="utf-8").splitlines()]


def is_said(sentence: str, texts: list[str]) -> bool:
    """Whether one text has all parts of the sentence, in their order."""
    pattern = ".*".join(re.escape(part.strip()) for part in sentence.split(VARIES))
    return any(re.search(pattern, text, re.DOTALL) for text in texts)


@pytest.mark.parametrize("sentence", quoted())
def test_a_sentence_that_is_quoted_is_one_that_the_program_says(sentence: str) -> None:
    assert is_said(sentence, said())


@pytest.mark.parametrize(
    ("symptom", "line"),
    {
        "missing file": "“There is no such file or folder.”",
        "missing config": "“There is no config file …”",
        "missing checkpoint": "“There is no checkpoint …”",
        "missing store": "“There is no store …”",
        "empty folder": "“The folder has no file that can be read …”",
        "wrong column": "“There is no column …”",
        "wrong unit, one of many": "“Values of … are … than the other instances'.”",
        "wrong unit, all": "“… fits describe their data worse than a constant does …”",
        "wrong unit, asked of an operator": "“… is unlike the data that the operator was trained on …”",
        "no right to read": "“Give yourself the right to read it.”",
        "no right to write": "“Give yourself the right to write there, …”",
        "full disk": "no space left on device",
        "read-only disk": "read-only file system",
        "file for a folder": "“A file has the name that a folder should have: …”",
        "folder for a file": "“A folder has the name that a file should have: …”",
        "name too long": "file name too long",
        "no temporary files": "“There is no place for temporary files.”",
        "old checkpoint": "“… has version … of the checkpoint's form, and this distlfm reads …”",
        "old store": "“… has the schema …, and this version of distlfm reads …”",
        "missing extra": "“… is not installed.”",
        "no FEniCS": "“The helper group of … ranks did not start: …”",
        "no Slurm": "“There is no Slurm here: sbatch is not on the PATH.”",
        "port in use": "“Port … of … is taken.”, “Port … of … is in use.”",
    }.items(),
)
def test_every_first_error_has_its_line(symptom: str, line: str) -> None:
    del symptom
    text = (PROJECT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert [row for row in text.splitlines() if row.startswith("|") and line in row]


def test_a_sentence_that_nobody_says_is_noticed() -> None:
    assert not is_said("The … is tired of …", said())
    assert is_said("Port … of … is taken.", ["Port … of … is taken."])
    assert len(quoted()) > 40
