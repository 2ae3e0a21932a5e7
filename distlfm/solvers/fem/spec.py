"""What the fitting process asks a helper group for, and what it gets: arrays. No torch, no dolfin: both ends use it.

Operators and sparse matrices travel as named arrays. The assembled equation is split into nodes that move and nodes
that a Dirichlet condition holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec

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


Arrays = dict[str, Any]
CSR_FIELDS = ("data", "indices", "indptr")
# Names of arrays are `group/coefficient/field`; the part that no coefficient multiplies has the empty name.
BY_COEFFICIENT = ("stiffness", "load")


def pack_csr(name: str, matrix: Csr) -> Arrays:
    """A sparse matrix as `name/data`, `name/indices`, `name/indptr` and `name/shape`."""
    packed = {f"{name}/{part}": getattr(matrix, part) for part in CSR_FIELDS}
    return {**packed, f"{name}/shape": np.array(matrix.shape, dtype=np.int64)}


def unpack_csr(name: str, arrays: Mapping[str, Any]) -> Csr:
    rows, columns = (int(size) for size in arrays[f"{name}/shape"])
    data, indices, indptr = (arrays[f"{name}/{part}"] for part in CSR_FIELDS)
    return Csr(data, indices, indptr, (rows, columns))


def pack_operators(operators: Operators) -> Arrays:
    """All of the operators as one mapping of named arrays."""
    packed: Arrays = {name: getattr(operators, name) for name in ("nodes", "cells", "fixed", "fixed_values")}
    packed |= pack_csr("mass", operators.mass)
    for group in BY_COEFFICIENT:
        for name, matrix in getattr(operators, group).items():
            packed |= pack_csr(f"{group}/{name}", matrix)
    return packed | {f"source/{name}": values for name, values in operators.source.items()}


def unpack_operators(arrays: Mapping[str, Any]) -> Operators:
    """The operators that `pack_operators` packed."""

    def names(group: str, ending: str) -> list[str]:
        start = f"{group}/"
        found = [name for name in arrays if name.startswith(start) and name.endswith(ending)]
        return [name[len(start) : len(name) - len(ending)] for name in found]

    stiffness, load = (
        {name: unpack_csr(f"{group}/{name}", arrays) for name in names(group, "/shape")} for group in BY_COEFFICIENT
    )
    return Operators(
        nodes=arrays["nodes"],
        cells=arrays["cells"],
        mass=unpack_csr("mass", arrays),
        stiffness=stiffness,
        load=load,
        source={name: arrays[f"source/{name}"] for name in names("source", "")},
        fixed=arrays["fixed"],
        fixed_values=arrays["fixed_values"],
    )


def to_scipy(matrix: Csr) -> sp.csr_array:
    return sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)


@dataclass(frozen=True)
class System:
    """Rows of the free nodes: mass [F, F]; stiffness[k] [F, F]; load[k] [F, J]; source[k] [F], held ones included.

    names: the coefficients, in the order of theta; index 0 of each list is the part without one.
    free: [F] and held: [H] numbers of nodes; held_values: [H].
    """

    names: tuple[str, ...]
    num_nodes: int
    free: NDArray[np.int64]
    held: NDArray[np.int64]
    held_values: FloatArray
    mass: sp.csr_array
    stiffness: tuple[sp.csr_array | None, ...]
    load: tuple[sp.csr_array | None, ...]
    source: tuple[FloatArray | None, ...]


def split(operators: Operators, names: tuple[str, ...]) -> System:
    """The free part of `operators` for coefficients in the order `names`."""
    num_nodes = len(operators.nodes)
    free = np.setdiff1d(np.arange(num_nodes), operators.fixed)
    order = np.argsort(operators.fixed)
    held, values = operators.fixed[order], operators.fixed_values[order]
    stiffness: list[sp.csr_array | None] = []
    load: list[sp.csr_array | None] = []
    source: list[FloatArray | None] = []
    for name in ("", *names):
        whole = to_scipy(operators.stiffness[name])[free] if name in operators.stiffness else None
        stiffness.append(None if whole is None else sp.csr_array(whole[:, free]))
        load.append(sp.csr_array(to_scipy(operators.load[name])[free]) if name in operators.load else None)
        given = operators.source[name][free] if name in operators.source else None
        if whole is not None and len(held) and values.any():
            lifted = whole[:, held] @ values
            given = lifted if given is None else given + lifted
        source.append(given)
    mass = sp.csr_array(to_scipy(operators.mass)[free][:, free])
    return System(names, num_nodes, free, held, values, mass, tuple(stiffness), tuple(load), tuple(source))
