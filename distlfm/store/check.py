"""What a block is given, checked once before anything is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.runtime.finite import finite
from distlfm.store.layout import STATUSES, STRING, Variable

NEEDED = ("id", "status")


def checked_arrays(
    variables: Mapping[str, Variable], arrays: Mapping[str, NDArray[Any]], where: range
) -> dict[str, NDArray[Any]]:
    """Every array of the block, [b, ...] each, those that are not given filled with nothing."""
    for name in arrays:
        if name not in variables:
            raise UsageError(f"The store has no array {name!r}.", nearest(name, list(variables)))
    for name in NEEDED:
        if name not in arrays:
            raise UsageError(f"The array {name!r} is not given.", "Every block needs it.")
    found = {}
    for name, variable in variables.items():
        wanted = (len(where), *variable.shape[1:])
        values = np.asarray(arrays[name]) if name in arrays else variable.filled(len(where))
        if values.shape != wanted:
            raise UsageError(
                f"{name} has shape {values.shape}, and instances {where.start} to {where.stop - 1} need {wanted}.",
                f"Its dimensions are {', '.join(variable.dims)}.",
            )
        found[name] = values.astype(np.object_ if variable.dtype == STRING else variable.dtype)
    unknown = set(np.unique(found["status"]).tolist()) - set(STATUSES.values())
    if unknown:
        raise UsageError(f"{sorted(unknown)[0]} is no status.", f"Known are: {STATUSES}.")
    return found


def checked_rows(rows: Sequence[Mapping[str, Any]], where: range) -> Sequence[Mapping[str, Any]]:
    if len(rows) != len(where):
        raise UsageError(f"{len(rows)} rows are given for {len(where)} instances.", "Give one row an instance.")
    return rows


def encoded_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """One line of JSON a row; what is not finite becomes null."""
    return "".join(json.dumps(finite(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()
