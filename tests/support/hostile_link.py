"""`hostile_link.py FOLDER`: our link's server without its gate, as a coordinator might run it who means harm."""

from __future__ import annotations

import sys
from typing import Any

from distlfm.federated.link import superlink


class Open:
    """Lets everything in."""

    def __init__(self, inner: Any, *_: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._inner(scope, receive, send)


if __name__ == "__main__":
    superlink.Gate = Open  # type: ignore[assignment,misc]
    superlink.main(sys.argv[1])
