"""Run a program beside this file with the real dolfin, in a process of its own, and read its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from distlfm.runtime.process import scrubbed_mpi_environment


def answer_of(program: str, *arguments: str, ranks: int = 1) -> dict[str, Any]:
    """The JSON that the program prints last; forms are compiled once, into a cache that is kept."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    finished = subprocess.run(
        [*launcher, sys.executable, str(Path(__file__).with_name(program)), *arguments],
        env=scrubbed_mpi_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
    answer: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return answer
