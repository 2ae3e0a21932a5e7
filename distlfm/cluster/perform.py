"""Do one action with a worker; what it raises, and what it reports, comes back as plain data."""

from __future__ import annotations

import json
from typing import Any

from distlfm.cluster.failure import Failure, failure_of
from distlfm.cluster.job import Worker
from distlfm.cluster.rescue import Action, Attempt


def perform(worker: Worker, action: Action) -> tuple[dict[str, Any], Failure | None]:
    """The worker's report and None, or nothing and its failure."""
    try:
        if isinstance(action, Attempt):
            worker.attempt(action.block, action.rows)
            return {}, None
        report = worker.run(action.block, action.left_out)
        plain: dict[str, Any] = json.loads(json.dumps(dict(report), default=_plain))
        return plain, None
    except (Exception, SystemExit) as error:  # a library that calls exit() ends no one but its row
        return {}, failure_of(error)


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python's; of anything else its text."""
    return value.item() if hasattr(value, "item") else str(value)
