"""What we change in Flower 1.41, all in one place. Its version is pinned, and a test holds it to these names.

Nothing here is changed in a process that serves anything else: only in those that `superlink`, `supernode` and `tasks`
start.

`QuickGrid` is the ServerApp's way to the sites. Flower looks for replies every three seconds, and fetches them one
after another: a site that dies while it sends its reply would hold up those of all others, which are there already.
Here waits are shorter, and no site waits for another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

from flwr.app.error import Error
from flwr.app.message import Message
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.retry import http_retry
from flwr.supercore.superexec import run_superexec
from flwr.superlink.grid import HttpGrid, http_grid
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.runtime import run_clientapp

from distlfm.federated.refused import Reason
from distlfm.store.files import FULL

LONGEST_RETRY_SECONDS = 3
_FULL = re.compile(rf"<class 'OSError'>:<'\[Errno ({'|'.join(map(str, FULL))})\]")
NO_DATA = "The site could not do this; its own log says why."


def retry_soon() -> None:
    """Come back soon after a restart of the link: Flower waits up to 20 s between two tries."""
    _put(http_retry, "MAX_RETRY_DELAY", LONGEST_RETRY_SECONDS)


def beat_every(seconds: float) -> None:
    """Shorter heartbeats: a lost site is noticed, and a restarted one let in, after twice as long."""
    _put(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", seconds)
    _put(fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL", seconds)


def leave_bundles_to_us() -> None:
    """Flower asks for signatures that only its own hub can make. We compare the files; see `supernode.BundleCheck`,
    without whose mark Flower does not even come to ask this."""
    _put(start_client_internal, "_verify_fab", lambda *_: True)


def run_tasks_with(executor: object) -> None:
    """Our executor instead of one that writes tokens on command lines."""
    _put(run_superexec, "get_executor", lambda *_, **__: executor)


def reach_sites_with(grid: type) -> None:
    """Another way of the ServerApp to the sites."""
    _put(import_module("flwr.superlink.runtime.run_serverapp"), "HttpGrid", grid)  # its package hides the module


def wait_for_parts(seconds: float) -> None:
    """Wait no longer for the rest of a reply that has begun to come: its site may be dead, and Flower waits hours."""
    _put(http_grid, "pull_objects", partial(pull_objects, max_time=seconds))


def install_whole(install: Callable[..., object]) -> None:
    """Another way to unpack a bundle, in which none is left that is there by half."""
    for name in ("flwr.superlink.runtime.run_serverapp", "flwr.supernode.runtime.run_clientapp"):
        _put(import_module(name), "install_from_fab", install)


def send_errors_without_data() -> None:
    """Flower sends the words of an exception to the link, and they may hold a patient's values."""
    _put(run_clientapp, "Error", _without_data)


def _without_data(code: int, reason: str | None = None) -> Error:
    """Say that the disk is full, if it is; none of the other words."""
    return Error(code=code, reason=Reason.DISK.value if _FULL.match(reason or "") else NO_DATA)


def _put(module: Any, name: str, value: object) -> None:
    assert hasattr(module, name), f"{module.__name__} has no {name}: this is not Flower 1.41"
    setattr(module, name, value)


POLL_SECONDS = 0.3


class QuickGrid(HttpGrid):
    """As Flower's, but replies are looked for more often, and each is fetched for itself."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, and give the replies that came until all are there or the time is up."""
        sent = list(self.push_messages(messages))
        if not sent:
            return []
        until = float("inf") if timeout is None else time.monotonic() + timeout
        if timeout is not None:
            wait_for_parts(timeout)
        with ThreadPoolExecutor(len(sent)) as pool:
            return [reply for reply in pool.map(partial(self._reply, until=until), sent) if reply is not None]

    def _reply(self, message: str, until: float) -> Message | None:
        """The reply to one message, or None if it did not come."""
        while time.monotonic() < until:
            for reply in self.pull_messages([message]):
                return reply
            time.sleep(POLL_SECONDS)
        return None
