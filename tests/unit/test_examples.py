"""Examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "distlfm"
SHOWN = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_there_are_examples() -> None:
    assert {"distlfm", "distlfm.instance", "distlfm.data.frames"} <= set(map(name_of, SHOWN))


@pytest.mark.parametrize("path", SHOWN, ids=name_of)
def test_an_example_gives_what_it_shows(path: Path) -> None:
    done = doctest.testmod(importlib.import_module(name_of(path)), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted
    assert not done.failed
