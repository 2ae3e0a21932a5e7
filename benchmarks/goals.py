"""A measured figure beside its goal."""

from __future__ import annotations

from typing import Any


def at_least(value: float, goal: float) -> dict[str, Any]:
    return {"value": value, "goal": f">= {goal:g}", "ok": bool(value >= goal)}


def at_most(value: float, goal: float) -> dict[str, Any]:
    return {"value": value, "goal": f"<= {goal:g}", "ok": bool(value <= goal)}


def between(value: float, low: float, high: float) -> dict[str, Any]:
    return {"value": value, "goal": f"{low:g} to {high:g}", "ok": bool(low <= value <= high)}
