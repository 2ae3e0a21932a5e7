"""Which examples teach, which choose between epochs, and which calibrate: by a hash of their names, never by chance."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distlfm.lfo.settings import SplitConfig

Index = NDArray[np.intp]
"""Numbers of examples, [n]."""


@dataclass(frozen=True)
class Split:
    """Numbers of the examples of each part; no id is in two of them."""

    train: Index
    validation: Index
    calibration: Index


def split(ids: Sequence[str], config: SplitConfig) -> Split:
    """Sort instances by a hash of their id, or of their group's, whatever store and row they are in."""
    share = np.array([_share(_group(name, config.group), config.seed) for name in ids])
    validation = share < config.validation
    calibration = ~validation & (share < config.validation + config.calibration)
    return Split(*(np.flatnonzero(part) for part in (~validation & ~calibration, validation, calibration)))


def _group(name: str, separator: str | None) -> str:
    """What an instance shares with those that must be on its side."""
    if separator is None:
        series, _, number = name.rpartition("/")
        return series if series and number.isdecimal() else name
    return name.split(separator)[0] if separator else name


def _share(name: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
