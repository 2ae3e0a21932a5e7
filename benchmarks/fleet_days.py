"""2,000 simulated days of glucose fitted on this machine by Ray: how long that takes, from the command to the report.

The days are those that the operator's benchmarks learn from, and the fits stay where those look for them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import Any

from benchmarks.goals import at_most
from benchmarks.lfo_glucose import days
from benchmarks.lfo_shared import FIT, Workshop

OF_A_STORE = ["data.dataset=null", "data.columns=null", "data.stride=1", "data.window=null"]


def run(quick: bool = False) -> dict[str, Any]:
    shop = Workshop(quick)
    data, out = days(shop), shop.fits("days-fitted")
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "distlfm", "-q", "fit", str(FIT), "--data", str(data.path), "--out", str(out)]
    start = time.perf_counter()
    done = subprocess.run([*command, "--executor", "ray", *OF_A_STORE], capture_output=True, text=True, check=False)
    minutes = (time.perf_counter() - start) / 60
    summary = json.loads((out / "summary.json").read_text())
    found = {
        "instances": data.spec.instances,
        "minutes": minutes,
        "failed": len(summary["failures"]),
        "exit code": done.returncode,
        "mean latent Q²": summary["mean"]["latent_q2"],
        "force in 95 %": summary["mean"]["latent_coverage_95"],
    }
    figures = {
        "minutes for the glucose days": at_most(minutes, 60.0),
        "glucose days that failed": at_most(float(found["failed"]), 0.0),
    }
    return {"figures": figures, "glucose": found}
