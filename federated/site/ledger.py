"""What a site has spent of its patients' privacy, on its own disk. What is not written here first is not done.

A line is on the disk before the work that it pays for begins, so that a crash can only have paid too much.

What it adds up to is `accounting.py`'s.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, PositiveFloat, ValidationError

from distlfm.config import Config
from distlfm.errors import WorkError
from distlfm.federated.setup.homes import locked
from distlfm.federated.site.accounting import Cost, epsilon
from distlfm.store.files import append_whole, flush, storing

START = "0" * 64
FILE = "the privacy ledger"


class BudgetSpent(WorkError):
    """The site's privacy budget does not pay for what is asked."""


class Charge(Config):
    """One line: `steps` steps of noise `noise` with sampling `rate`. before: the digest of the line before."""

    what: str
    run: str
    noise: PositiveFloat
    rate: float = Field(gt=0.0, le=1.0)
    steps: int = Field(ge=1)
    time: str
    before: str


class Ledger:
    """The charges of a site, and its budget (ε, δ), which no message can change."""

    def __init__(self, path: Path, budget: float, delta: float) -> None:
        self.path, self.budget, self.delta = path, budget, delta

    @property
    def charges(self) -> list[Charge]:
        """All lines; a ledger that was changed is refused, as it can no longer say what was spent."""
        found, before = [], START
        for number, line in enumerate(self._lines(), 1):
            try:
                one = Charge.model_validate_json(line)
            except ValidationError:
                one = None
            if one is None or one.before != before:
                raise WorkError(
                    f"The privacy ledger {self.path} was changed or is damaged at line {number}.",
                    "Restore it from a backup: without it nobody knows what was spent, and the site answers nothing.",
                )
            found.append(one)
            before = _digest(line)
        return found

    @property
    def spent(self) -> float:
        """ε of all charges together."""
        return self._total(self.charges)

    def charge(self, what: str, *, noise: float, rate: float, steps: int, run: str = "") -> float:
        """Pay before the work; returns ε so far. Raises BudgetSpent, and writes nothing, if that is too much."""
        # Several processes of a site may be at work: reading and writing belong together.
        with locked(self.path.with_suffix(".lock"), FILE):
            known = self.charges
            now = datetime.now(UTC).isoformat(timespec="seconds")
            before = START if not known else _digest(self._lines()[-1])
            new = Charge(what=what, run=run, noise=noise, rate=rate, steps=steps, time=now, before=before)
            total = self._total([*known, new])
            if total > self.budget:
                raise BudgetSpent(
                    f"The privacy budget of this site does not pay for that: ε would be {total:.3f} of "
                    f"{self.budget:g}.",
                    "Whoever is responsible for the patients' data decides about the budget, in the site's settings.",
                )
            whole = sum(len(line.encode()) + 1 for line in self._lines())
            text = json.dumps(new.model_dump(mode="json"), sort_keys=True) + "\n"
            with locked(self.path, FILE) as descriptor, storing(FILE, self.path.parent):
                os.ftruncate(descriptor, whole)
                append_whole(descriptor, text.encode())
                flush(self.path.parent)
            return total

    @property
    def head(self) -> str:
        """The digest of the last line."""
        return self.head_after(len(self._lines()))

    def head_after(self, count: int) -> str:
        """The digest of the ledger when it had `count` lines; empty if it has fewer."""
        lines = self._lines()
        return "" if count > len(lines) else _digest(lines[count - 1]) if count else START

    def _total(self, charges: list[Charge]) -> float:
        return epsilon((Cost(one.noise, one.rate, one.steps) for one in charges), self.delta)

    def _lines(self) -> list[str]:
        """Whole lines. One without an end was being written when the site died, so its work had not begun."""
        if not self.path.exists():
            return []
        return self.path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
