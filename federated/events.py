"""Who asked the link for what, in its audit log: runs that were started and stopped, with their holder's name."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from flwr.common.event_log_plugin import EventLogWriterPlugin
from flwr.proto.control_pb2 import StartRunRequest, StartRunResponse, StopRunRequest
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.event_log.typing import Actor, Event, LogEntry

from distlfm.federated.audit import AuditLog


class ControlEvents(EventLogWriterPlugin):
    """Flower calls this around each request of an admin. What only looks (lists, logs) is not written down."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def compose_log_before_event(
        self, request: Any, context: Any, account_info: AccountInfo | None, method_name: str
    ) -> LogEntry:
        """Nothing has happened yet."""
        del request, context
        return _entry(account_info, method_name, "asked")

    def compose_log_after_event(
        self, request: Any, context: Any, account_info: AccountInfo | None, method_name: str, response: Any
    ) -> LogEntry:
        """Write down what happened."""
        del context
        holder = account_info.account_name if account_info is not None else "?"
        if isinstance(request, StartRunRequest) and isinstance(response, StartRunResponse):
            settings = request.override_config
            programme = settings["programme"].string if "programme" in settings else ""
            self._audit.append(
                "run started",
                str(response.run_id),
                by=holder,
                name=settings["run-name"].string if "run-name" in settings else "",
                programme=programme,
                sha256=hashlib.sha256(programme.encode()).hexdigest(),
            )
        elif isinstance(request, StopRunRequest) and not isinstance(response, BaseException):
            self._audit.append("run stopped", str(request.run_id), by=holder)
        return _entry(account_info, method_name, "done")

    def write_log(self, log_entry: LogEntry) -> None:
        """It is written already."""
        del log_entry


def _entry(account: AccountInfo | None, method: str, status: str) -> LogEntry:
    name = account.account_name if account is not None else None
    actor = Actor(actor_id=name, description=None, ip_address="")
    return LogEntry(datetime.now(UTC).isoformat(), actor, Event(action=method, run_id=None, fab_hash=None), status)
