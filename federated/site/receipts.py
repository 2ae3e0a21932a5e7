"""What a site's audit log says of its ledger: every charge, so that ε can be computed again, and how long it was.

A ledger that was removed or brought back from an old copy would let the site spend its budget twice. The audit log
knows better, so a ledger that is not at least what the log says is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distlfm.federated.audit import AuditLog, last_entry
from distlfm.federated.refused import Reason, Refused
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
    """Refuse to go on with a ledger that lacks what the site's audit log says was in it.

    A log of version 0.1 tells ε alone; then it is seen whether there is a ledger at all.
    """
    noted = last_entry(audit, EVENT)
    if noted is None:
        return
    facts = noted.get("facts", {})
    count = int(facts.get("lines", 1))
    head = ledger.head_after(count)
    if head != facts.get("ledger", head) or not head:
        raise Refused(
            Reason.BUDGET,
            f"{audit} has noted {count} charges (ε {facts.get('epsilon', 0):.3g}), and {ledger.path} lacks them, or "
            "has others. Bring back the ledger of today. If it is lost, nobody knows what was spent, and the budget "
            "counts as spent: whoever is responsible for the patients' data may decide on a new one, and the site "
            "joins anew with new keys and a new log.",
        )
