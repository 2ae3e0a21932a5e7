"""A field on a mesh, ready to be solved: nodes, an engine, and the operator that looks at the field anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from distlfm.solvers.fem.spec import Csr, FloatArray, IntArray
from distlfm.solvers.field.engine import Engine


class Discretised(ABC):
    """nodes: [J, d]; cells: [C, d + 1]; affine: whether the equation is linear in state and force."""

    nodes: FloatArray
    cells: IntArray
    engine: Engine
    affine: bool
    reason: str

    @abstractmethod
    def weights(self, places: FloatArray) -> Csr:
        """The operator [O, J] that takes nodal values to places [O, d]."""

    def observe(self, places: FloatArray) -> Tensor:
        """`weights` as a tensor: sparse where the mesh is not small."""
        found = self.weights(places)
        rows = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
        index = torch.from_numpy(np.stack([rows, found.indices]))
        tensor = torch.sparse_coo_tensor(index, torch.from_numpy(found.data), found.shape, check_invariants=True)
        return tensor.coalesce()
