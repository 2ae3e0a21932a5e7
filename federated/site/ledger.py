"""What a site has spent of its patients' privacy, on its own disk. What is not written here first is not done.

A line is on the disk before the work that it pays for begins, so that a crash can only have paid too much.

Privacy is counted as Rényi differential privacy of the sampled Gaussian mechanism. Each record is in a step with
probability `rate`, independently; the sum has noise of `noise` times a record's largest contribution. Steps add up in
each order (Mironov 2017; Mironov, Talwar and Zhang 2019), and the best order is turned into (ε, δ) as in Canonne,
Kamath and Steinke (2020).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, ValidationError
from scipy.special import gammaln, logsumexp

from distlfm.config import Config
from distlfm.errors import UsageError, WorkError
from distlfm.federated.setup.homes import locked
from distlfm.store.files import append_whole, flush, storing

ORDERS = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512)
"""Whole numbers: the closed form of the sum below is exact for them."""


@lru_cache(maxsize=1024)
def _rdp(noise: float, rate: float) -> NDArray[np.float64]:
    """Rényi divergence [orders] of one step."""
    if not 0 < rate <= 1 or not noise > 0:
        raise UsageError(
            f"Noise {noise:g} with sampling rate {rate:g} is not a mechanism.", "Noise is above 0, rates are in (0, 1]."
        )
    if rate == 1:
        return np.array([order / (2 * noise**2) for order in ORDERS])
    found = []
    for order in ORDERS:
        k = np.arange(order + 1)
        choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms = choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * noise**2)
        found.append(float(logsumexp(terms)) / (order - 1))
    return np.array(found)


def rdp(noise: float, rate: float, steps: int) -> NDArray[np.float64]:
    """Rényi divergence [orders] of `steps` steps."""
    return _rdp(noise, rate) * steps


def epsilon(divergence: NDArray[np.float64], delta: float) -> float:
    """The ε that goes with δ; the best over the orders."""
    if not divergence.any():
        return 0.0
    order = np.array(ORDERS, float)
    found = divergence + np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (order - 1)
    return float(max(0.0, found.min()))


def noise_for(target: float, delta: float, rate: float, steps: int) -> float:
    """The least noise with which `steps` steps spend at most `target`."""
    low, high = 0.05, 0.1
    while epsilon(rdp(high, rate, steps), delta) > target:
        low, high = high, 2 * high
        if high > 1e6:
            raise UsageError(f"No noise keeps ε below {target:g}.", "Ask for a larger ε, or for fewer steps.")
    for _ in range(30):
        middle = (low + high) / 2
        if epsilon(rdp(middle, rate, steps), delta) > target:
            low = middle
        else:
            high = middle
    return high


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

    def _total(self, charges: list[Charge]) -> float:
        divergence = np.zeros(len(ORDERS))
        for one in charges:
            divergence = divergence + rdp(one.noise, one.rate, one.steps)
        return epsilon(divergence, self.delta)

    def _lines(self) -> list[str]:
        """Whole lines. One without an end was being written when the site died, so its work had not begun."""
        if not self.path.exists():
            return []
        return self.path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
