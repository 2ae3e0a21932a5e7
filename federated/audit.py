"""A log in which every line holds the hash of the line before: who asked what, and what left.

Whoever changes, removes or adds a line in the middle breaks the chain. A cut at the end shows only against a head that
was noted elsewhere, so the head is worth printing now and then. Facts are sizes, names and digests, never values.

`RefusalLog` writes what was refused: all of it is counted, but it is written sparingly, so that nobody can fill the
disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distlfm.errors import UsageError
from distlfm.federated.setup.homes import locked
from distlfm.store.files import append_whole, storing, unreadable

START = "0" * 64
LOG = "the audit log"
PIECE = 65536
"""Bytes that are read at once when a log is looked through from its end."""
Fact = str | int | float | bool | None | Sequence[str]


class AuditLog:
    """Lines are appended one after the other, by as many processes as there are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, run: str, **facts: Fact) -> str:
        """One more line; it is on the disk when this returns. Gives the new head."""
        with locked(self.path, LOG) as file, storing(LOG, self.path.parent):
            number, head = _tail(file)
            line: dict[str, Any] = {
                "number": number,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "run": run,
                "event": event,
                **({"facts": facts} if facts else {}),
                "before": head,
            }
            line["hash"] = _hash(line)
            append_whole(file, json.dumps(line, sort_keys=True).encode() + b"\n")
            return str(line["hash"])


def _tail(file: int) -> tuple[int, str]:
    """Number and hash for the next line to go on from. A line that a crash cut short is ended, and stays as a flaw."""
    size, reach = os.fstat(file).st_size, 4096
    if size and os.pread(file, 1, size - 1) != b"\n":
        append_whole(file, b"\n")
    while True:
        start = max(0, size - reach)
        lines = os.pread(file, reach, start).split(b"\n")
        for line in reversed(lines[1:] if start else lines):
            entry = _parsed(line)
            if entry is not None:
                return int(entry["number"]) + 1, str(entry["hash"])
        if not start:
            return 0, START
        reach *= 4


def head_of(path: Path) -> tuple[int, str]:
    """Number and hash of the newest line; raises UsageError for a log without one."""
    with locked(path, LOG) as file:
        number, head = _tail(file)
    if not number:
        raise UsageError(f"The audit log {path} is empty.", "Bring back the log of today.")
    return number - 1, head


def holds(path: Path, number: int, head: str) -> bool:
    """Whether a log has the line of this number and hash. Its chain is not followed."""
    wanted = head.encode()
    try:
        with path.open("rb") as file:
            found = [_parsed(line) for line in file if wanted in line]
    except FileNotFoundError:
        return False
    return any(one is not None and (one["number"], one["hash"]) == (number, head) for one in found)


def last_entry(path: Path, event: str) -> dict[str, Any] | None:
    """The newest line of a kind, looked for from the end; None if there is none. Its chain is not followed."""
    try:
        with path.open("rb") as file:
            end, rest = file.seek(0, os.SEEK_END), b""
            while end:
                start = max(0, end - PIECE)
                file.seek(start)
                first, *lines = (file.read(end - start) + rest).split(b"\n")
                for line in reversed(lines if start else [first, *lines]):
                    entry = _parsed(line) if event.encode() in line else None
                    if entry is not None and entry["event"] == event:
                        return entry
                end, rest = start, first
    except FileNotFoundError:
        return None
    return None


@dataclass(frozen=True)
class AuditReport:
    """entries: all lines that could be read. head: hash of the last one. flaws: sentences, none if the chain holds."""

    entries: list[dict[str, Any]]
    head: str
    flaws: list[str]


def verify(path: Path, head: str | None = None) -> AuditReport:
    """Read a log and follow its chain; with `head`, a hash noted earlier, also see whether that line is still there."""
    try:
        lines = path.read_bytes().split(b"\n")
    except PermissionError as error:
        raise unreadable(path, error) from None
    except OSError as error:
        raise UsageError(f"Cannot read the audit log {path}: {error.strerror}.", "Give the path of one.") from None
    entries: list[dict[str, Any]] = []
    flaws: list[str] = []
    before = START
    for row, line in enumerate(lines, start=1):
        if not line:
            continue
        entry = _parsed(line)
        if entry is None:
            flaws.append(f"Line {row} is not an entry.")
            continue
        if entry["hash"] != _hash({key: value for key, value in entry.items() if key != "hash"}):
            flaws.append(f"Line {row} was changed.")
        elif entry["before"] != before or entry["number"] != len(entries):
            flaws.append(f"Line {row} does not follow the one before: lines are missing, added or in another order.")
        before = str(entry["hash"])
        entries.append(entry)
    if head is not None and head not in {entry["hash"] for entry in entries}:
        flaws.append("The line with the given hash is no longer there: the log was cut or written anew.")
    return AuditReport(entries, before, flaws)


def entries_of(report: AuditReport, run: str) -> list[dict[str, Any]]:
    """What a log says about one run."""
    return [entry for entry in report.entries if entry["run"] == run]


def _parsed(line: bytes) -> dict[str, Any] | None:
    wanted = {"number": int, "time": str, "run": str, "event": str, "before": str, "hash": str}
    with suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and all(isinstance(entry.get(key), kind) for key, kind in wanted.items()):
            return entry
    return None


def _hash(line: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()


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
