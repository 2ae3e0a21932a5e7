"""Observations of which nobody knows the force: examples without labels, on the operator's grid.

Shapes: `N` instances, `P` outputs, `L` forces, `K` learned parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distlfm.lfo.schema import OperatorSchema

BLOCK = 64
"""Instances that are read as one shard."""


@dataclass(frozen=True)
class Observed:
    """values, mask: [N, P, *grid], as `Operator.arrays` makes them; ids: a name each. source: a hash of the data."""

    ids: Sequence[str]
    values: NDArray[np.float32]
    mask: NDArray[np.float32]
    source: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that tells whether two are the same observations."""
        told = hashlib.sha256("\n".join(self.ids).encode())
        for array in (self.values, self.mask):
            told.update(np.ascontiguousarray(array).tobytes())
        return told.hexdigest()[:16]

    def block(self, block: int, schema: OperatorSchema) -> dict[str, NDArray[np.float32]]:
        """The arrays of a `Batch` for the instances of a block; all that would be a label is NaN."""
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        values, mask = self.values[rows], self.mask[rows]
        force = np.full((len(values), len(schema.forces), *schema.shape), np.nan, np.float32)
        params = np.full((len(values), len(schema.parameters)), np.nan, np.float32)
        return {
            "values": values,
            "mask": mask,
            "force": force,
            "force_var": force,
            "params": params,
            "params_var": params,
            "clean": np.full(values.shape, np.nan, np.float32),
            "noise": np.full(values.shape[:2], np.nan, np.float32),
        }
