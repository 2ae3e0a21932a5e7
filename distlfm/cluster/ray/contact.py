"""Does a Ray cluster answer at an address, and are its nodes there?

This is a process of its own, because Ray itself asks for minutes, and whoever asks is part of it until it ends. Run as
`python -m distlfm.cluster.ray.contact ADDRESS [NODES SECONDS]`: waits for NODES nodes, and prints one JSON line, with
`nodes`, how many there are, if the cluster let us in.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sys
import time
from typing import Any

from distlfm.cluster.machine import import_environment
from distlfm.errors import UsageError, WorkError
from distlfm.runtime.process import TOO_LONG, run_within, touch

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
LOOK_SECONDS = 0.1
FEW_TRIES = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_USAGE_STATS_ENABLED": "0"}
REFUSED = "InvalidAuthToken"
"""Ray names it in its log only, and raises that it could not connect."""


def contact(address: str, patience: float = ANSWER_SECONDS) -> None:
    """Return if the cluster at `address` (`auto` or `HOST:PORT`) answers this process's token; else say why not."""
    if address != "auto":
        reach(address)
    command = [sys.executable, "-m", "distlfm.cluster.ray.contact", address]
    answer = run_within(command, patience, {**os.environ, **import_environment(), **FEW_TRIES})
    if answer.returncode == TOO_LONG:
        raise WorkError(
            f"What listens at {address} did not answer as a Ray cluster within {patience:.0f} s.",
            "Check the address: it is the one that `ray start --head` printed.",
        )
    try:
        reply = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        reply = {"kind": "", "text": answer.stderr.strip()[-500:] or f"exit code {answer.returncode}"}
    if "nodes" not in reply:
        raise _sentence(address, reply["kind"], reply["text"], refused=REFUSED in answer.stderr + reply["text"])


def reach(address: str) -> None:
    """Is there anything at all? Raises if not."""
    if not re.fullmatch(r"[^/]+:\d+", address):
        raise UsageError(f"{address!r} is not an address of a Ray cluster.", "Give HOST:PORT, or auto.")
    try:
        touch(address, CONNECT_SECONDS)
    except (OSError, OverflowError) as error:
        raise WorkError(
            f"There is no Ray cluster at {address}: {error}.",
            "Start one there with `ray start --head`, or leave the address out to use this machine alone.",
        ) from None


def _sentence(address: str, kind: str, text: str, refused: bool) -> WorkError:
    if refused:
        return WorkError(
            f"The Ray cluster at {address} refused this process's token.",
            "Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token that it was started with.",
        )
    if address == "auto" and kind == "ConnectionError":
        return WorkError(
            "No Ray cluster runs on this machine.",
            "Start one with `ray start --head`, give its HOST:PORT, or leave the address out.",
        )
    return WorkError(f"Cannot join the Ray cluster at {address}: {kind}: {' '.join(text.split())[:500]}.")


def main(address: str, wanted: int = 0, patience: float = 0.0) -> None:
    """Join, wait for `wanted` nodes for at most `patience` seconds, leave, and print how it went."""
    reply: dict[str, Any] = {}
    try:
        ray: Any = importlib.import_module("ray")
        until = time.monotonic() + patience
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        while (alive := sum(bool(node["Alive"]) for node in ray.nodes())) < wanted and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        ray.shutdown()
        reply["nodes"] = alive
    except BaseException as error:
        reply |= {"kind": type(error).__name__, "text": str(error)}
    sys.stdout.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
