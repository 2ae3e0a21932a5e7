"""Distributed operators as sums of a few matrices.

M, A(θ) and B(θ) are often made of the same matrices: decay and force of a reaction–diffusion equation are multiples of
the mass matrix. Each different matrix is kept once, and an operator is a set of weights of them. A step then multiplies
once with each of them, forward and backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.solvers.fem.operators import PetscOperators
from distlfm.solvers.fem.spec import FloatArray, IntArray

SAME = 1e-12
"""Two matrices whose products with probes differ by less, relatively, are multiples of each other."""


@dataclass(frozen=True)
class Bases:
    """matrices: the different ones, as petsc4py matrices; transposed: likewise, the same object where symmetric.

    mass: weights [b] of the mass matrix; stiffness, load: [k + 1, b], the first row for the part that no coefficient
    multiplies; source: [k + 1, J_r]. owned: [J_r] canonical numbers of this rank's nodes; fixed: [F_r] local numbers of
    those with a Dirichlet condition; fixed_values: [F_r].
    """

    names: tuple[str, ...]
    matrices: tuple[Any, ...]
    transposed: tuple[Any, ...]
    mass: FloatArray
    stiffness: FloatArray
    load: FloatArray
    source: FloatArray
    owned: IntArray
    fixed: IntArray
    fixed_values: FloatArray

    @property
    def comm(self) -> Any:
        return self.matrices[0].comm.tompi4py()

    @property
    def num_local(self) -> int:
        return len(self.owned)

    @property
    def symmetric(self) -> bool:
        return all(one is other for one, other in zip(self.matrices, self.transposed, strict=True))


def reduce_operators(operators: PetscOperators, names: tuple[str, ...]) -> Bases:
    """Keep each different matrix once. Collective."""
    kept: list[Any] = []
    probes = _probes(operators.mass)

    def weights(matrix: Any) -> dict[int, float]:
        for i, base in enumerate(kept):
            ratio = _ratio(matrix, base, probes)
            if ratio is not None:
                return {i: ratio}
        kept.append(matrix)
        return {len(kept) - 1: 1.0}

    mass = weights(operators.mass)
    parts: dict[str, list[dict[int, float]]] = {}
    for group, matrices in (("stiffness", operators.stiffness), ("load", operators.load)):
        parts[group] = [weights(matrices[name]) if name in matrices else {} for name in ("", *names)]
    source = np.zeros((len(names) + 1, len(operators.owned)))
    for k, name in enumerate(("", *names)):
        if name in operators.source:
            source[k] = operators.source[name].getArray()
    transposed = tuple(base if _symmetric(base, probes) else base.copy().transpose() for base in kept)
    return Bases(
        names=names,
        matrices=tuple(kept),
        transposed=transposed,
        mass=_dense([mass], len(kept))[0],
        stiffness=_dense(parts["stiffness"], len(kept)),
        load=_dense(parts["load"], len(kept)),
        source=source,
        owned=operators.owned,
        fixed=operators.fixed,
        fixed_values=operators.fixed_values,
    )


def at_coefficients(parts: FloatArray, theta: Mapping[str, float], names: tuple[str, ...]) -> FloatArray:
    """parts[0] + Σ θ_k parts[k]."""
    total: FloatArray = np.array([1.0, *(theta[name] for name in names)]) @ parts
    return total


def _dense(rows: list[dict[int, float]], count: int) -> FloatArray:
    table = np.zeros((len(rows), count))
    for i, row in enumerate(rows):
        for j, value in row.items():
            table[i, j] = value
    return table


def _probes(matrix: Any) -> tuple[Any, Any]:
    """Two vectors without structure, seeded by rank: any would do."""
    vectors = matrix.createVecRight(), matrix.createVecRight()
    random = np.random.default_rng(7 + matrix.comm.rank)
    for vector in vectors:
        vector.setArray(random.normal(size=vector.getLocalSize()))
    return vectors


def _ratio(matrix: Any, base: Any, probes: tuple[Any, Any]) -> float | None:
    """r with matrix = r · base, or None."""
    ratios = []
    for probe in probes:
        image, reference = matrix * probe, base * probe
        ratio = float(image.dot(reference) / reference.dot(reference))
        size = image.norm()
        image.axpy(-ratio, reference)
        if image.norm() > SAME * size:
            return None
        ratios.append(ratio)
    if abs(ratios[0] - ratios[1]) > SAME * abs(ratios[0]):
        return None
    whole = round(ratios[0])
    return float(whole) if abs(ratios[0] - whole) < SAME else ratios[0]


def _symmetric(matrix: Any, probes: tuple[Any, Any]) -> bool:
    one, other = probes
    image, back = matrix * one, matrix * other
    scale = image.norm() * other.norm()
    return bool(abs(image.dot(other) - back.dot(one)) <= SAME * scale)
