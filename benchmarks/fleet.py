"""Fleets on Ray, part by part (half an hour): actors, the driver's memory, drawing instances, 2,000 days of glucose."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from benchmarks.generate import one_core, rates
from benchmarks.goals import at_least

PARTS = ("fleet_actors", "fleet_driver", "fleet_days")


def run(quick: bool = False) -> dict[str, Any]:
    """Each part is a benchmark of its own."""
    with one_core():
        drawn = rates("transcription", 512 if quick else 4096)["written, a second"]
    figures: dict[str, Any] = {"transcription instances generated a second": at_least(drawn, 500.0)}
    told: dict[str, Any] = {}
    for name in PARTS:
        found = importlib.import_module(f"benchmarks.{name}").run(quick=quick)
        print(json.dumps({name: found}), file=sys.stderr, flush=True)
        figures |= found.pop("figures")
        told |= found
    return {"figures": figures, **told}
