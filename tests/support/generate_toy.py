"""Small configs of generated instances, and blocks of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distlfm.config import build, load
from distlfm.runs.settings import GenerateConfig
from distlfm.simulation.block import Arrays, generate_block, open_draws, store_spec

CONFIGS = Path(__file__).parents[2] / "configs" / "generate"


def shipped(name: str, **more: Any) -> GenerateConfig:
    return load(GenerateConfig, CONFIGS / f"{name}.yaml").model_copy(update=more)


def made(config: GenerateConfig, indices: Sequence[int]) -> Arrays:
    draws = open_draws(config)
    return generate_block(config, draws, store_spec(config, draws), indices)[0]


def genes(**more: Any) -> GenerateConfig:
    return build(GenerateConfig, {"mechanism": {"kind": "transcription"}, "num_outputs": 2, "points": 51, **more})
