"""The commands that docs/federation.md shows under "Running", with folders of a test's own in place of the guide's."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "federation.md"


def shown() -> list[list[str]]:
    """The words of each command behind `distlfm federated`, in the guide's order."""
    block = GUIDE.read_text(encoding="utf-8").split("## Running", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert all(line[:2] == ["distlfm", "federated"] for line in lines)
    return [line[2:] for line in lines]


def documented(*begin: str, places: Mapping[str, str | Path], has: str = "") -> list[str]:
    """The one command that begins with these words (and has an option), to be run here.

    places: what stands for each of its paths, names and addresses; a command that names another is not one of ours.
    """
    (words,) = [line for line in shown() if tuple(line[: len(begin)]) == begin and has in ("", *line)]
    free = [word for word in words[len(begin) :] if not word.startswith("--")]
    assert set(free) == set(places), f"the guide's command names {free}"
    changed = [*begin, *(str(places.get(word, word)) for word in words[len(begin) :])]
    return [sys.executable, "-m", "distlfm", "federated", *changed]
