"""Does a Ray cluster answer at an address? Asked in a process of its own, because Ray itself asks for minutes.

Run as `python -m distlfm.cluster.ray.knock ADDRESS`: prints one JSON line, `{}` if the cluster let us in.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys

from distlfm.cluster.machine import import_environment
from distlfm.errors import UsageError, WorkError

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
FEW_TRIES = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_USAGE_STATS_ENABLED": "0"}
REFUSED = "InvalidAuthToken"
"""Ray names it in its log only, and raises that it could not connect."""


def knock(address: str, patience: float = ANSWER_SECONDS) -> None:
    """Return if the cluster at `address` (`auto` or `HOST:PORT`) answers this process's token; else say why not."""
    if address != "auto":
        reach(address)
    command = [sys.executable, "-m", "distlfm.cluster.ray.knock", address]
    environment = {**os.environ, **import_environment(), **FEW_TRIES}
    try:
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        raise WorkError(
            f"What listens at {address} did not answer as a Ray cluster within {patience:.0f} s.",
            "Check the address: it is the one that `ray start --head` printed.",
        ) from None
    try:
        refusal = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        refusal = {"kind": "", "text": answer.stderr.strip()[-500:] or f"exit code {answer.returncode}"}
    if refusal and REFUSED in answer.stderr:
        refusal["text"] += REFUSED
    if refusal:
        raise _sentence(address, refusal["kind"], refusal["text"])


def reach(address: str) -> None:
    """Is there anything at all? Raises if not."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UsageError(f"{address!r} is not an address of a Ray cluster.", "Give HOST:PORT, or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise WorkError(
            f"There is no Ray cluster at {address}: {error}.",
            "Start one there with `ray start --head`, or leave the address out to use this machine alone.",
        ) from None


def _sentence(address: str, kind: str, text: str) -> WorkError:
    if REFUSED in text:
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


def main(address: str) -> None:
    """Join, leave, and print how it went."""
    refusal = {}
    try:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        ray.shutdown()
    except BaseException as error:
        refusal = {"kind": type(error).__name__, "text": str(error)}
    sys.stdout.write(json.dumps(refusal) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
