"""Small discretised problems written down by hand, without FEniCS."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from distlfm.solvers.fem.spec import Csr, FloatArray, Operators, split
from distlfm.solvers.field.dense import DenseEngine
from distlfm.solvers.field.meshed import Discretised


def csr(matrix: FloatArray) -> Csr:
    """A dense matrix in compressed rows."""
    return sp.csr_array(matrix)


def line(
    nodes: FloatArray,
    *,
    held: tuple[int, ...] = (0, -1),
    value: float = 0.0,
    drift: bool = False,
    slope: bool = False,
) -> Operators:
    """Reaction–diffusion with P1 elements on a line; `drift` adds a velocity, and a constant source of rate `decay`.

    slope: what drives it is the force's (negative) derivative, ∫ f ∂v.
    """
    count = len(nodes)
    mass, grad, carried = (np.zeros((count, count)) for _ in range(3))
    for i, width in enumerate(np.diff(nodes)):
        at = np.ix_((i, i + 1), (i, i + 1))
        mass[at] += width / 6 * np.array([[2.0, 1.0], [1.0, 2.0]])
        grad[at] += 1 / width * np.array([[1.0, -1.0], [-1.0, 1.0]])
        carried[at] += 0.5 * np.array([[-1.0, 1.0], [-1.0, 1.0]])
    stiffness = {"decay": csr(-mass), "diffusion": csr(-grad)}
    source = {}
    if drift:
        stiffness["velocity_0"] = csr(-carried)
        source["decay"] = mass.sum(1)
    fixed = np.array(sorted(i % count for i in held), dtype=np.int64)
    cells = np.stack([np.arange(count - 1), np.arange(1, count)], 1)
    return Operators(
        nodes[:, None],
        cells,
        csr(mass),
        stiffness,
        {"sensitivity": csr(carried.T if slope else mass)},
        source,
        fixed,
        np.full(len(fixed), value),
    )


class Line(Discretised):
    """A line discretised by hand."""

    affine, reason, kind = True, "", "dense"

    def __init__(self, operators: Operators, names: tuple[str, ...]) -> None:
        self.nodes, self.cells = operators.nodes, operators.cells
        self.engine = DenseEngine(split(operators, names))

    def weights(self, places: FloatArray) -> Csr:
        x, at = self.nodes[:, 0], places[:, 0]
        cell = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
        share = (at - x[cell]) / (x[cell + 1] - x[cell])
        matrix = np.zeros((len(at), len(x)))
        matrix[np.arange(len(at)), cell] = 1 - share
        matrix[np.arange(len(at)), cell + 1] += share
        return csr(matrix)
