"""The threat model names a test for each attack, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.importing import ROOT

NAMED = re.compile(r"`([\w/.]+\.py)::(test_\w+)`")


def table(text: str, heading: str) -> list[list[str]]:
    """The rows below a heading, cell by cell, without the head."""
    lines = text.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def names_in(path: Path) -> set[str]:
    """The names of the tests in a file."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_attack_has_an_adversary_an_answer_and_tests_that_exist() -> None:
    text = (ROOT / "docs" / "threat_model.md").read_text(encoding="utf-8")
    who = {row[0] for row in table(text, "Who")}
    attacks = table(text, "What, and how it is held off")
    assert len(attacks) >= 30
    assert who <= {row[0] for row in attacks}, "an adversary without an attack"
    for adversary, wants, _, answer, tests in attacks:
        assert adversary in who or adversary.startswith("whoever"), adversary
        assert wants
        assert answer
        named = NAMED.findall(tests)
        assert named, f"no test is named for: {wants}"
        for file, name in named:
            path = ROOT / file if "/" in file else ROOT / "tests" / "federated" / file
            assert name in names_in(path), f"{file} has no {name}"
