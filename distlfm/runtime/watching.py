"""Watching a search from outside: whoever waits for a fit hears of each step, and no number depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[], None]
"""Is called after each step of a search; it should be quick."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let `watcher` hear of the steps that searches take in this thread meanwhile."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def stepped() -> None:
    """A search has taken a step."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher()
