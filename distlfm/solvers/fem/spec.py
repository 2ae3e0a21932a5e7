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

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


Csr = sp.csr_array


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
# Names of arrays are `group/coefficient/field`; the part that no coefficient multiplies has the empty name.
PLAIN, BY_COEFFICIENT = ("nodes", "cells", "fixed", "fixed_values"), ("stiffness", "load")


def pack_csr(name: str, matrix: Csr) -> Arrays:
    """A sparse matrix as `name/data`, `name/indices`, `name/indptr` and `name/shape`."""
    packed = {f"{name}/{part}": getattr(matrix, part).astype(np.int64) for part in ("indices", "indptr")}
    return {f"{name}/data": matrix.data, **packed, f"{name}/shape": np.array(matrix.shape, dtype=np.int64)}


def unpack_csr(name: str, arrays: Mapping[str, Any]) -> Csr:
    parts = tuple(arrays[f"{name}/{part}"] for part in ("data", "indices", "indptr"))
    return Csr(parts, shape=tuple(arrays[f"{name}/shape"]))


def pack_operators(operators: Operators) -> Arrays:
    """All of the operators as one mapping of named arrays."""
    packed: Arrays = {name: getattr(operators, name) for name in PLAIN}
    packed |= pack_csr("mass", operators.mass)
    for group in BY_COEFFICIENT:
        for name, matrix in getattr(operators, group).items():
            packed |= pack_csr(f"{group}/{name}", matrix)
    return packed | {f"source/{name}": values for name, values in operators.source.items()}


def unpack_operators(arrays: Mapping[str, Any]) -> Operators:
    """The operators that `pack_operators` packed."""

    def names(group: str, ending: str) -> list[str]:
        start = f"{group}/"
        matching = [name for name in arrays if name.startswith(start) and name.endswith(ending)]
        return [name[len(start) : len(name) - len(ending)] for name in matching]

    stiffness, load = (
        {name: unpack_csr(f"{group}/{name}", arrays) for name in names(group, "/shape")} for group in BY_COEFFICIENT
    )
    source = {name: arrays[f"source/{name}"] for name in names("source", "")}
    plain = {name: arrays[name] for name in PLAIN}
    return Operators(mass=unpack_csr("mass", arrays), stiffness=stiffness, load=load, source=source, **plain)


@dataclass(frozen=True)
class AssembledSystem:
    """Rows of the free nodes: mass [F, F]; stiffness[k] [F, F]; load[k] [F, J]; source[k] [F], held ones included.

    names: the coefficients, in the order of theta; index 0 of each list is the part without one.
    free: [F] and held: [H] numbers of nodes; held_values: [H].
    """

    names: tuple[str, ...]
    num_nodes: int
    free: IntArray
    held: IntArray
    held_values: FloatArray
    mass: Csr
    stiffness: tuple[Csr, ...]
    load: tuple[Csr, ...]
    source: tuple[FloatArray, ...]

    @property
    def silent(self) -> bool:
        """Whether a field that starts at zero stays there without a force."""
        return not any(part.any() for part in (*self.source, self.held_values))


def split(operators: Operators, names: tuple[str, ...]) -> AssembledSystem:
    """The free part of `operators` for coefficients in the order `names`."""
    num_nodes = len(operators.nodes)
    free = np.setdiff1d(np.arange(num_nodes), operators.fixed)
    order = np.argsort(operators.fixed)
    held, values = operators.fixed[order], operators.fixed_values[order]
    none, nothing = Csr((num_nodes, num_nodes)), np.zeros(num_nodes)
    whole = [Csr(operators.stiffness.get(name, none)[free]) for name in ("", *names)]
    load = tuple(Csr(operators.load.get(name, none)[free]) for name in ("", *names))
    given = [operators.source.get(name, nothing)[free] for name in ("", *names)]
    source = tuple(part + rows[:, held] @ values for part, rows in zip(given, whole, strict=True))
    stiffness = tuple(Csr(rows[:, free]) for rows in whole)
    mass = Csr(operators.mass[free][:, free])
    return AssembledSystem(names, num_nodes, free, held, values, mass, stiffness, load, source)
