"""Is there room in a directory?"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from distlfm.pipeline.probes.answer import Finding, reply
from distlfm.pipeline.probes.directory import asked_directory

MINIMUM_FREE_BYTES = 2**30
GIGABYTE = 1e9


def check() -> str:
    return free_space(asked_directory())


def free_space(directory: Path, minimum: int = MINIMUM_FREE_BYTES) -> str:
    """How much is free where `directory` lies; broken below `minimum` bytes."""
    free = shutil.disk_usage(directory).free
    words = f"{free / GIGABYTE:.1f} GB free in {directory}"
    if free < minimum:
        raise Finding("broken", words, f"du -xh {shlex.quote(str(directory))} | sort -h | tail")
    return words


if __name__ == "__main__":
    reply(check)
