"""What a rank of a helper group holds between requests: problems, of two kinds, by their keys."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from distlfm.errors import UsageError

Session = dict[str, Any]
"""Lasts as long as the rank."""
Header = Mapping[str, Any]
Arrays = Mapping[str, Any]
Answer = tuple[Header, Arrays]
Verb = Callable[[Session, Header, Arrays], Answer]
Problem = TypeVar("Problem")

WHOLE, PARTITIONED = "fem", "petsc"
"""Problems that every rank knows all of, and those of which each has its part."""


def held(session: Session, kind: str, header: Header, of: type[Problem]) -> Problem:
    """The problem of the header's key."""
    problems = session.get(kind, {})
    if header["key"] not in problems:
        raise UsageError(f"The helper group holds no problem {header['key']!r}.", "Open it first.")
    found = problems[header["key"]]
    assert isinstance(found, of)
    return found


def forget(session: Session, kind: str, header: Header) -> Answer:
    """Let a problem go with all that belongs to it."""
    session.get(kind, {}).pop(header["key"], None)
    gc.collect()  # now, on all ranks alike
    return {}, {}
