"""What a door refuses, in the audit log: all of it counted, but written sparingly, so that nobody can fill the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from distlfm.federated.audit import AuditLog

MOST_A_MINUTE = 60
LONGEST = 100
"""Characters of a path that are kept."""


class RefusalLog:
    """Writes refusals into a log, at most `MOST_A_MINUTE`; the next line says how many were left out."""

    def __init__(self, audit: AuditLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit, self._clock = audit, clock
        self._lock = threading.Lock()
        self._minute, self._written, self._left_out = -1, 0, 0

    def __call__(self, what: str, why: str) -> None:
        """One more refusal."""
        with self._lock:
            minute = int(self._clock() // 60)
            if minute != self._minute:
                self._minute, self._written = minute, 0
            if self._written >= MOST_A_MINUTE:
                self._left_out += 1
                return
            self._written += 1
            more, self._left_out = self._left_out, 0
        facts = {"what": what[:LONGEST], "why": why} | ({"left_out_before": str(more)} if more else {})
        self._audit.append("refused", "", **facts)
