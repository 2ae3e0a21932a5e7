"""How far a training or a sweep is: from small files, like any other status.

What they are called is imported when it is needed: with it comes all that trains.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distlfm.config import read_yaml
from distlfm.pipeline.run_files import CONFIG, OPERATOR, SUMMARY
from distlfm.pipeline.train_log import METRICS, read_metrics


def verb_of(run: Path) -> str | None:
    """The verb of the folder of a run, as its config tells; None if there is no config."""
    path = run / CONFIG
    return str(read_yaml(path).get("verb", "fit")) if path.is_file() else None


def training_figures(run: Path) -> dict[str, Any]:
    """Steps done and to do, from metrics.jsonl."""
    told = read_metrics(run / METRICS)
    return {
        "unit": "steps",
        "total": max((int(line["total"]) for line in told if line["event"] == "start"), default=0),
        "done": max((int(line["step"]) for line in told if "step" in line), default=0),
        "reported": (run / OPERATOR).is_file() and (run / SUMMARY).is_file(),
    }


def sweep_figures(run: Path) -> dict[str, Any]:
    """Trials done and to do, from trials.json."""
    from distlfm.pipeline.tune import BEST, TRIALS
    from distlfm.pipeline.tune_trials import FAILED, RUNNING

    try:
        states = [one["status"] for one in json.loads((run / TRIALS).read_text(encoding="utf-8"))["trials"]]
    except FileNotFoundError:
        states = []
    total = int(read_yaml(run / CONFIG)["search"]["trials"])
    done = sum(state != RUNNING for state in states)
    return {
        "unit": "trials",
        "total": total,
        "done": done,
        "failed": states.count(FAILED),
        "running": states.count(RUNNING),
        "statuses": {state: states.count(state) for state in sorted(set(states) - {RUNNING})},
        "reported": done >= total and (run / BEST).is_file(),
    }
