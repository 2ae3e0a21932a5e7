"""Does mpirun start two ranks that talk to each other?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from distlfm.pipeline.probes.answer import Finding, load, reply

RANK_PROGRAM = "distlfm.pipeline.probes.mpi_rank"


def check() -> str:
    launcher = shutil.which("mpirun")
    if launcher is None:
        raise Finding("missing", "mpirun is not on the PATH")
    load("mpi4py")
    command = [launcher, "-n", "2", sys.executable, "-P", "-m", RANK_PROGRAM]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise Finding("broken", f"mpirun: {_complaint(finished.stderr)}")
    reports = [line.split(";") for line in finished.stdout.splitlines() if line.count(";") == 2]
    if [report[:2] for report in reports] != [["2", "3"]]:
        seen = ", ".join(report[0] for report in reports)
        raise Finding("broken", f"2 ranks saw worlds of size {seen}: mpirun and mpi4py belong to different MPIs")
    return f"2 ranks under {reports[0][2]}"


def _complaint(stderr: str) -> str:
    """The last line of what a rank said, before mpirun's own boxes; else the first line in a box."""
    said, *boxes = re.split(r"-{20,}", stderr)
    lines = said.strip().splitlines()[-1:] or [line for box in boxes for line in box.strip().splitlines()]
    return lines[0] if lines else "ended without a word"


if __name__ == "__main__":
    reply(check)
