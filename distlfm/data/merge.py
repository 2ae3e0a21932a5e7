"""Gathering rows into cells: which points there are, and which cells were given more than once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distlfm.instance import BoolArray, FloatArray

IntArray = NDArray[np.int64]


def distinct_points(coordinates: FloatArray) -> tuple[FloatArray, IntArray]:
    """The distinct columns of `coordinates` [d, n], sorted by the first row, then the second, and so on.

    Returns the points [d, N], and for each of the n columns the index of its point.
    """
    coordinates = coordinates + 0.0  # turns -0.0 into 0.0, which is the same place
    order = np.lexsort(coordinates[::-1])
    ordered = coordinates[:, order]
    fresh = np.ones(ordered.shape[1], dtype=np.bool_)
    fresh[1:] = (np.diff(ordered, axis=1) != 0).any(axis=0)
    at = np.empty(len(order), dtype=np.int64)
    at[order] = np.cumsum(fresh) - 1
    return ordered[:, fresh], at


@dataclass(frozen=True)
class Merged:
    """Entries gathered into cells.

    values: [size], the mean of a cell's entries, zero where there are none. present: [size], True where there are.
    averaged: [size], how many entries were averaged; 1 where all entries of a cell agree.
    repeated: indices of entries beyond the first of their cell. conflict: the first two entries that differ.
    """

    values: FloatArray
    present: BoolArray
    averaged: IntArray
    repeated: IntArray
    conflict: tuple[int, int] | None


def merge(cells: IntArray, entries: FloatArray, size: int) -> Merged:
    """Gather `entries` [n] into `size` cells, entry i into cell `cells[i]`."""
    counts = np.bincount(cells, minlength=size).astype(np.int64)
    first = np.zeros(size, dtype=np.int64)
    first[cells[::-1]] = np.arange(len(cells))[::-1]
    values = np.zeros(size)
    values[cells] = entries[first[cells]]
    averaged = np.ones(size, dtype=np.int64)
    repeated = np.flatnonzero(first[cells] != np.arange(len(cells)))
    differing = repeated[entries[repeated] != values[cells[repeated]]]
    conflict = None
    if len(differing):
        conflict = (int(first[cells[differing[0]]]), int(differing[0]))
        # Only cells in conflict take the mean: the others keep the number they were given, bit for bit.
        mixed = np.unique(cells[differing])
        values[mixed] = np.bincount(cells, weights=entries, minlength=size)[mixed] / counts[mixed]
        averaged[mixed] = counts[mixed]
    return Merged(values, counts > 0, averaged, repeated, conflict)
