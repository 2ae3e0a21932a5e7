"""The assembled equation split into nodes that move and nodes that a Dirichlet condition holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from distlfm.solvers.fem.spec import Csr, FloatArray, Operators


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
