"""The Latent Force Operator: all its figures (half an hour and more)."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import lfo_fields, lfo_novelty, lfo_speed, lfo_transcription


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        begun = time.perf_counter()
        operator = lfo_transcription.trained(root, quick=quick)
        seconds = time.perf_counter() - begun
        parts = {
            "transcription": lfo_transcription.figures(operator, root, quick),
            "novelty": lfo_novelty.figures(operator, root, quick),
        }
    parts["transcription"]["seconds to generate and train"] = seconds
    parts["fields"] = lfo_fields.run(quick)
    parts["speed"] = lfo_speed.run(quick)
    figures = {name: figure for part in parts.values() for name, figure in part.pop("figures").items()}
    return {"figures": figures, **parts}
