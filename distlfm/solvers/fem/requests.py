"""What a helper group is asked, what its ranks answer, and which requests a group started anew must hear again."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlfm.solvers.fem.wire import Array

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Request:
    """arrays: the same for all ranks, or those of each."""

    verb: str
    header: Mapping[str, Any]
    arrays: Arrays | Sequence[Arrays]


@dataclass(frozen=True)
class Reply:
    """What one rank answered."""

    rank: int
    header: Mapping[str, Any]
    arrays: Arrays


class Remembered:
    """Requests in the order in which they were made. `forget` does not wait: it is safe in destructors too."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._forgotten: collections.deque[str] = collections.deque()

    def add(self, request: Request) -> None:
        self._requests = [*self, request]

    def forget(self, key: str) -> None:
        """Leave out those whose header has this `key`."""
        self._forgotten.append(key)

    def __iter__(self) -> Iterator[Request]:
        while self._forgotten:
            key = self._forgotten.popleft()
            self._requests = [one for one in self._requests if one.header.get("key") != key]
        return iter(self._requests)
