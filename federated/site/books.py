"""The ledger and the audit log of a site say the same, or the site spends nothing.

Each answer that cost privacy leaves a line in the audit log, with how many charges the ledger had by then and the last
of them. A ledger that was removed, cut or brought back from yesterday has fewer, or others.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from distlfm.federated.audit import last_entry
from distlfm.federated.refused import Reason, Refused

EVENT = "privacy"


def charged(ledger: Path) -> dict[str, int | str]:
    """What the audit log notes of a ledger: how many charges it has, and the digest of the last one."""
    lines = _lines(ledger)
    return {"charges": len(lines), "charge": hashlib.sha256(lines[-1]).hexdigest() if lines else ""}


def check_books(audit: Path, ledger: Path) -> None:
    """Refuse to go on with a ledger that lacks what the audit log says was spent.

    A log of version 0.1 tells ε alone; then it is seen whether there is a ledger at all.
    """
    noted = last_entry(audit, EVENT)
    if noted is None:
        return
    facts, lines = noted.get("facts", {}), _lines(ledger)
    count = int(facts.get("charges", 1))
    head = str(facts.get("charge", ""))
    same = len(lines) >= count and (not head or hashlib.sha256(lines[count - 1]).hexdigest() == head)
    if not same:
        raise Refused(
            Reason.BUDGET,
            f"{audit} has noted {count} charges (ε {facts.get('epsilon', 0):.3g}), and {ledger} has {len(lines)} or "
            "others. Bring back the ledger of today. If it is lost, nobody knows what was spent, and the budget counts "
            "as spent: whoever is responsible for the patients' data may decide on a new one, and then moves the audit "
            "log away.",
        )


def _lines(ledger: Path) -> list[bytes]:
    """Whole lines."""
    return ledger.read_bytes().rpartition(b"\n")[0].splitlines() if ledger.exists() else []
