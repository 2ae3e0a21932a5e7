"""One share of a job's blocks, for those who work beside each other without a driver over them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from distlfm.errors import UsageError


@dataclass(frozen=True)
class Share:
    """Part `part` of `parts`, counted from 1."""

    part: int
    parts: int

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}"

    def blocks(self, num_blocks: int) -> range:
        """Its blocks of so many: every `parts`-th, so that dear and cheap ones are mixed."""
        return range(self.part - 1, num_blocks, self.parts)


def share_of(text: str) -> Share:
    """The share that a text such as `2/16` names."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"{text!r} is no part of the work.", "Give --part I/N with I from 1 to N, such as 2/16.")
    return Share(int(found[1]), int(found[2]))
