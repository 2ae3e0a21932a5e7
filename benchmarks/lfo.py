"""The Latent Force Operator: all its figures, part by part (an hour on two cores)."""

from __future__ import annotations

import importlib
import json
import time
from typing import Any

from benchmarks.lfo_shared import RUNS, say

PARTS = ("lfo_transcription", "lfo_novelty", "lfo_fields", "lfo_glucose", "lfo_fitted", "lfo_speed")


def run(quick: bool = False) -> dict[str, Any]:
    """Each part is a benchmark of its own; its JSON is in runs/benchmarks/lfo once it is done."""
    figures: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for name in PARTS:
        say(f"{name} begins")
        begun = time.perf_counter()
        found = importlib.import_module(f"benchmarks.{name}").run(quick=quick)
        found["seconds"] = time.perf_counter() - begun
        RUNS.mkdir(parents=True, exist_ok=True)
        (RUNS / f"{name}{'-quick' if quick else ''}.json").write_text(json.dumps(found, indent=2))
        for figure, told in found["figures"].items():
            say(f"{name}: {figure}: {told['value']:.5g} ({told['goal']}){'' if told['ok'] else ', missed'}")
        figures |= found.pop("figures")
        parts[name] = found
    return {"figures": figures, **parts}
