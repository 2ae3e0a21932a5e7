"""The page of a sweep that has ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from distlfm.config import dump
from distlfm.pipeline.run_files import REPORT
from distlfm.pipeline.tune_settings import TuneConfig
from distlfm.pipeline.versions import versions
from distlfm.report.page import Provenance
from distlfm.report.tune_page import Tried, tune_page


def report_sweep(directory: Path, config: TuneConfig, tried: Sequence[Tried]) -> Path:
    """Write report.html. tried: in the order in which the trials began."""
    search, work = config.search, json.dumps(config.work(), sort_keys=True)
    provenance = Provenance(
        config=dump(config),
        versions=versions(),
        seed=search.seed,
        hash=hashlib.sha256(work.encode()).hexdigest()[:16],
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        more={"sampler": search.sampler, "stopped early by": "asynchronous successive halving"},
    )
    return tune_page(directory / REPORT, search.metric, search.mode, tried, provenance)
