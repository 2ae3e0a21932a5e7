"""What a field's answer may depend on besides the data: steps, inducing points and mesh, and how they are refined."""

from __future__ import annotations

from dataclasses import replace
from enum import IntFlag

from distlfm.inference.field_settle import FieldSettings
from distlfm.inference.result import FitResult

LOST = 0.05
"""Variance that the inducing points may leave open at a point, in units of the noise variance."""

MOVED = 0.25
"""How far halving steps or cells may move an output, in units of the noise's deviation."""


class Needs(IntFlag):
    """What an instance's answer still depends on."""

    STEPS = 1
    POINTS = 2
    MESH = 4


_ADVICE = {
    Needs.STEPS: "shorter time steps (mechanism.step)",
    Needs.POINTS: "more inducing points (inference.field)",
    Needs.MESH: "a finer mesh (mechanism.mesh.size)",
}


def refined(settings: FieldSettings, need: int) -> FieldSettings:
    """Settings with what is needed made finer."""
    if need & Needs.STEPS:
        settings = settings.finer_steps()
    if need & Needs.POINTS:
        settings = settings.more_points()
    return (settings.finer_mesh() or settings) if need & Needs.MESH else settings


def warned(result: FitResult, need: int) -> FitResult:
    """The result, with a word on what would still change it."""
    if not need:
        return result
    finer = [text for flag, text in _ADVICE.items() if need & flag]
    advice = f"Discretisation is not below the noise: {', '.join(finer)} would move an output noticeably."
    return replace(result, advice=" ".join(filter(None, (result.advice, advice))))
