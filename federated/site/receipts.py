"""What a site's audit log says of its ledger: every charge, so that ε can be computed again, and how long it was.

A ledger that was removed or brought back from an old copy would let the site spend its budget twice. The audit log
knows better, so a ledger that is not at least what the log says is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from distlfm.errors import WorkError
from distlfm.federated.audit import AuditLog
from distlfm.federated.site.accounting import Cost, epsilon
from distlfm.federated.site.ledger import Ledger

EVENT = "privacy"


def write_receipt(ledger: Ledger, audit: AuditLog, run: str) -> None:
    """Log what all answers so far have cost: ε, and the charges that it follows from."""
    charges = ledger.charges
    steps: Counter[tuple[str, float, float]] = Counter()
    for one in charges:
        steps[one.what, one.noise, one.rate] += one.steps
    lines = [json.dumps([what, noise, rate, count]) for (what, noise, rate), count in sorted(steps.items())]
    spent = {"epsilon": ledger.spent, "delta": ledger.delta}
    audit.append(EVENT, run, charges=lines, lines=len(charges), ledger=ledger.head, **spent)


def epsilon_of(facts: Mapping[str, Any]) -> float:
    """Return the ε of a line of an audit log, computed anew from its charges."""
    charges: Sequence[list[Any]] = [json.loads(one) for one in facts["charges"]]
    return epsilon([Cost(float(noise), float(rate), int(steps)) for _, noise, rate, steps in charges], facts["delta"])


def check_ledger(ledger: Ledger, audit: Path) -> None:
    """Refuse a ledger that lacks what the site's audit log says was in it."""
    facts = _last(audit)
    if facts is None or "lines" not in facts:
        return
    if ledger.head_after(int(facts["lines"])) != facts["ledger"]:
        raise WorkError(
            f"{ledger.path} lacks charges that {audit} knows of: it was removed, or is an old copy.",
            "Bring back the newest one. If it is lost, count the budget as spent: nobody knows what is left of it.",
        )


def _last(audit: Path) -> dict[str, Any] | None:
    """The facts of the log's last line about privacy."""
    with suppress(FileNotFoundError):
        for line in reversed(audit.read_bytes().splitlines()):
            if b'"privacy"' in line:
                with suppress(ValueError):
                    entry = json.loads(line)
                    if entry.get("event") == EVENT:
                        found: dict[str, Any] = entry["facts"]
                        return found
    return None
