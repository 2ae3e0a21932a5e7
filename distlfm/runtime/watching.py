"""Watching a fit from outside: whoever waits for it hears how far it is, and no number depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Where a fit is: at step `done` of at most `of`, 0 where none are counted. within: the stages around this one."""

    stage: str
    done: int = 0
    of: int = 0
    within: tuple[Step, ...] = ()

    def __str__(self) -> str:
        own = f"{self.stage} {self.done}/{self.of}" if self.of else self.stage
        return ", ".join([*map(str, self.within), own])


Watcher = Callable[[Step], None]
"""Is called at each step of a fit; it should be quick."""

_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
_within: ContextVar[tuple[Step, ...]] = ContextVar("within", default=())


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let `watcher`, too, hear of the steps that fits take in this thread meanwhile."""
    before = _watchers.set((*_watchers.get(), watcher))
    try:
        yield
    finally:
        _watchers.reset(before)


@contextmanager
def during(stage: str, done: int = 0, of: int = 0) -> Iterator[None]:
    """What is reported inside is part of this stage, or of its step number `done`; one step of one is left out."""
    around = _within.get()
    before = _within.set(around if of == 1 else (*around, Step(stage, done, of)))
    try:
        yield
    finally:
        _within.reset(before)


def stepped(stage: str, done: int = 0, of: int = 0) -> None:
    """A stage has begun, or is at this step."""
    watchers = _watchers.get()
    if watchers:
        step = Step(stage, done, of, _within.get())
        for watcher in watchers:
            watcher(step)
