"""The memory of the process that drives a fleet on Ray: it does not grow with the number of instances."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fleet_actors import GENES
from benchmarks.fleet_days import OF_A_STORE
from benchmarks.goals import at_most
from distlfm.verbs.generate import generate

SHORT = [
    "inference.optimiser.rounds=0",
    "inference.optimiser.iterations=2",
    "inference.posterior.draws=2",
    "inference.posterior.stages=[2]",
    "inference.grid_points=5",
]
"""As little fitting as possible: what is measured is the driver."""

MEASURED = """
import sys
from pathlib import Path
from distlfm.cli import main
code = main(sys.argv[1:])
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print("peak", int(status["VmHWM"].split()[0]) / 1024, code, flush=True)
"""
"""The kernel's other figure, ru_maxrss, would begin at the size of the process that started it."""


def run(quick: bool = False) -> dict[str, Any]:
    few, many = (50, 200) if quick else (500, 5000)
    with tempfile.TemporaryDirectory() as folder:
        peaks = {count: peak(Path(folder), count) for count in (few, many)}
    return {
        "figures": {
            f"driver's peak, MB more for {many} instances than for {few}": at_most(peaks[many] - peaks[few], 50.0)
        },
        "driver's peak, MB": {str(count): found for count, found in peaks.items()},
    }


def peak(folder: Path, count: int) -> float:
    """Peak memory in MB of the process that drives a fit of so many instances on Ray."""
    data = folder / f"driver{count}.zarr"
    few = ["num_outputs=2", "points=6", f"instances={count}"]
    generate(GENES[0], [*few, f"run.dir={data}"])
    arguments = ["-q", "fit", GENES[1], "--data", str(data), "--out", str(folder / f"driver{count}")]
    more = ["--executor", "ray", *OF_A_STORE, *SHORT, "run.batch=50"]
    command = [sys.executable, "-c", MEASURED, *arguments, *more]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said[-1] in ("0", "1"), said
    return float(said[said.index("peak") + 1])
