"""Values that a config says are known: a number for all elements of a parameter, or one for each by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator


def _numbers(given: Any) -> Any:
    """Refuse what is no number before a union of types would tell of each of its members."""
    for label, value in given.items() if isinstance(given, Mapping) else [("", given)]:
        if not _is_number(value):
            what = f"{value!r} is no number" if given is value else f"{label} is {value!r}, which is no number"
            raise ValueError(
                f"{what}. Give a number for all elements, such as 1.0, or one for each by name: {{NAME: 1.0}}"
            )
    return given


def _is_number(value: Any) -> bool:
    """Also as text: YAML reads 1e-3 so."""
    if isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


Known = Annotated[Mapping[str, float] | float, BeforeValidator(_numbers)]
