"""Operators and sparse matrices as named arrays, for the wire. No torch, no dolfin here: both ends use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distlfm.solvers.fem.spec import Csr, Operators

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
