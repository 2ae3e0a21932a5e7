"""Does a private, local Ray start, answer and end?"""

from __future__ import annotations

import os
import secrets
import tempfile

from distlfm.pipeline.probes.answer import expect, load, reply

OBJECT_STORE_BYTES = 80 * 2**20  # the smallest Ray takes is 75 MiB
ANSWER_SECONDS = 40.0


def check() -> str:
    os.environ.pop("RAY_ADDRESS", None)
    # Ray listens on all interfaces, and an open Ray runs anybody's code.
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    ray = load("ray")
    # Its sockets lie below this directory, and a socket's path holds some hundred characters.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as directory:
        ray.init(
            address="local",
            num_cpus=1,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=directory,
            _node_ip_address="127.0.0.1",
        )
        try:
            answer = ray.get(ray.remote(lambda number: 2 * number).remote(21), timeout=ANSWER_SECONDS)
        finally:
            ray.shutdown()
    expect(answer == 42, f"a remote call gave {answer} for 42")
    return f"ray {ray.__version__}: started, answered, ended"


if __name__ == "__main__":
    reply(check)
