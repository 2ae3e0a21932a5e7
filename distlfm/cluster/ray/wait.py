"""Waits until a Ray cluster has its nodes: `python -m distlfm.cluster.ray.wait ADDRESS NODES SECONDS` prints how many.

In a process of its own, because whoever asks Ray is part of it until it ends.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from distlfm.optional import require

LOOK_SECONDS = 0.1


def main(address: str, wanted: int, patience: float) -> None:
    """Look until `wanted` nodes are there, or for `patience` seconds."""
    ray: Any = require("ray", extra="ray")
    until = time.monotonic() + patience
    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    while True:
        alive = sum(bool(node["Alive"]) for node in ray.nodes())
        if alive >= wanted or time.monotonic() > until:
            break
        time.sleep(LOOK_SECONDS)
    ray.shutdown()
    sys.stdout.write(f"{alive}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
