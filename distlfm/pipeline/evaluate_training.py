"""The page of a training run: how it learned, and how it does on the instances it was not trained on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from distlfm.config import read_yaml
from distlfm.errors import UsageError
from distlfm.lfo import Operator
from distlfm.pipeline.evaluate import find_or_none, scored
from distlfm.pipeline.query_ask import mark, origin
from distlfm.pipeline.query_settings import EvaluateConfig
from distlfm.pipeline.run_files import CONFIG, OPERATOR, REPORT
from distlfm.pipeline.train_log import METRICS, read_metrics
from distlfm.report.lfo_page import training_page
from distlfm.runtime.reporting import Reporter, Silent

MOST = 1000
"""Instances of the validation split that the page looks at."""


def report_training(run: Path | str, reporter: Reporter | None = None) -> Path:
    """Write report.html of a finished training run. Scores need the first of its stores; without it there are none."""
    folder = Path(run)
    if not (folder / OPERATOR).is_file():
        raise UsageError(f"{folder} is no finished training run: it has no {OPERATOR}.", "Finish it first.")
    operator = Operator.load(folder / OPERATOR)
    content = read_yaml(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    stores = [Path(path) for path in content.get("data", {}).get("stores", [])]
    found = None
    if stores and find_or_none(stores[0]) is not None:
        config = EvaluateConfig(checkpoint=folder, store=stores[0], limit=MOST)
        try:
            found = scored(config, reporter or Silent())
        except UsageError:  # no validation split
            found = None
    work = json.dumps(operator.training.get("settings"), sort_keys=True)
    told = origin(operator, mark(folder / OPERATOR), hashlib.sha256(work.encode()).hexdigest()[:16])
    told |= _told(operator.training)
    text = (folder / CONFIG).read_text(encoding="utf-8") if (folder / CONFIG).is_file() else ""
    return training_page(
        folder / REPORT,
        read_metrics(folder / METRICS),
        None if found is None else found.scores,
        [] if found is None else found.examples,
        [] if found is None else found.fine,
        operator.schema,
        text,
        told,
        operator.notices,
    )


def _told(training: Any) -> dict[str, Any]:
    """What the checkpoint tells of its training, in a few numbers."""
    found = {"steps": training.get("step"), "seconds": training.get("seconds")}
    found |= {f"instances: {part}": count for part, count in training.get("instances", {}).items()}
    coverage = training.get("coverage") or {}
    found |= {f"coverage of {name.replace('_', ', ')} %": value for name, value in coverage.items()}
    return {name: value for name, value in found.items() if value is not None}
