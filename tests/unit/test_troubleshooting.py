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


def test_a_sentence_that_nobody_says_is_noticed() -> None:
    assert not is_said("The … is tired of …", said())
    assert is_said("Port … of … is taken.", ["Port … of … is taken."])
    assert len(quoted()) > 40
