"""What the fitting process asks a helper group for, and what it gets: arrays. No torch, no dolfin here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distlfm.equations.problem import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec

__all__ = [
    "BoundaryConfig",
    "Csr",
    "EquationRef",
    "FloatArray",
    "IntArray",
    "MeshConfig",
    "Operators",
    "ProblemSpec",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Csr:
    """A sparse matrix in compressed rows."""

    data: FloatArray
    indices: IntArray
    indptr: IntArray
    shape: tuple[int, int]


@dataclass(frozen=True)
class Operators:
    """M ẏ = A(θ) y + B(θ) f + c(θ) on the nodes of a mesh, with A = A[""] + Σ θ_k A[k], and so for B and c.

    Nodes are in lexicographic order of their coordinates, whatever the mesh's own order or partition.
    nodes: [J, d]; cells: [C, d + 1] of node numbers (of the vertices, for plots); mass: [J, J];
    stiffness, load: [J, J] by coefficient; source: [J] by coefficient; only what is not zero is there.
    fixed: [F] numbers of the nodes with a Dirichlet condition; fixed_values: [F].
    """

    nodes: FloatArray
    cells: IntArray
    mass: Csr
    stiffness: Mapping[str, Csr]
    load: Mapping[str, Csr]
    source: Mapping[str, FloatArray]
    fixed: IntArray
    fixed_values: FloatArray
