"""What a link or a site says, as lines of JSON on standard output or in the system's log, for whoever collects logs.

A line is one of the role's own sentences, or one of its audit log, with that line's number and hash: whoever keeps the
lines elsewhere notices a log that was cut. Sentences about single patients' work (`detail`) stay in the audit log.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import SysLogHandler
from pathlib import Path
from typing import Any

from distlfm.errors import UsageError
from distlfm.federated.setup.homes import Logs
from distlfm.runtime.reporting import Reporter, Silent

SYSLOG = Path("/dev/log")
PIECE = 1_000_000
"""Bytes of the audit log that are read at once."""
HIDDEN = frozenset({"detail", "programme"})
"""Facts that stay in the audit log: sentences that may say something of patients, and whole programmes."""

Write = Callable[[str], None]


class JsonLines(Silent):
    """A reporter whose sentences are JSON, and that passes on what is new in the role's audit log.

    role, name: link or site, and whose. write: takes a line.
    """

    def __init__(self, role: str, name: str, audit: Path, write: Write) -> None:
        self._who, self._audit, self._write = {"role": role, "name": name}, audit, write
        self._at, self._rest = (audit.stat().st_size if audit.exists() else 0), b""

    def say(self, text: str) -> None:
        """A sentence of the role."""
        self._put(_now(), "info", message=text)

    def warn(self, text: str) -> None:
        """A sentence that whoever watches should not miss."""
        self._put(_now(), "warning", message=text)

    def look(self) -> None:
        """Pass on the lines that were added to the audit log since the last look."""
        with suppress(OSError):  # it is said elsewhere that the log cannot be read
            if self._audit.stat().st_size < self._at:  # another one
                self._at, self._rest = 0, b""
            with self._audit.open("rb") as file:
                file.seek(self._at)
                content = file.read(PIECE)
            self._at += len(content)
            *whole, self._rest = (self._rest + content).split(b"\n")
            for line in whole:
                self._pass_on(line)

    def _pass_on(self, line: bytes) -> None:
        entry = None
        with suppress(ValueError):
            entry = json.loads(line)
        if not isinstance(entry, dict):
            self.warn("a line of the audit log cannot be read")
            return
        facts = {key: value for key, value in entry.get("facts", {}).items() if key not in HIDDEN}
        known = {key: entry.get(key, "") for key in ("event", "run", "number", "hash")}
        level = "warning" if known["event"] == "refused" else "info"
        self._put(str(entry.get("time", _now())), level, **known, **({"facts": facts} if facts else {}))

    def _put(self, time: str, level: str, **content: Any) -> None:
        self._write(json.dumps({"time": time, "level": level, **self._who, **content}))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def to_stdout(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def to_syslog(place: Path = SYSLOG) -> Write:
    """Return what writes into the system's log, which may be started anew meanwhile."""
    if not place.exists():
        raise UsageError(f"There is no system log: {place} is missing.", "Start it, or take --logs json.")
    handler = SysLogHandler(str(place), SysLogHandler.LOG_DAEMON)
    handler.ident = "distlfm: "

    def write(line: str) -> None:
        level = logging.WARNING if json.loads(line)["level"] == "warning" else logging.INFO
        handler.emit(logging.LogRecord("distlfm", level, "", 0, "%s", (line,), None))

    return write


def reporter_of(logs: Logs, role: str, name: str, audit: Path, plain: Reporter) -> tuple[Reporter, Callable[[], None]]:
    """Return the role's reporter, and what looks for new lines of its audit log.

    logs: `plain` keeps the reporter that there is, `json` and `syslog` take its place.
    """
    if logs == "plain":
        return plain, lambda: None
    lines = JsonLines(role, name, audit, to_stdout if logs == "json" else to_syslog())
    return lines, lines.look
