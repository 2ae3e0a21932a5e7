"""The operators of an affine problem: M ẏ = A(θ) y + B(θ) f + c(θ), one of each for every coefficient.

Dirichlet conditions are not applied to them: the nodes that are fixed come along. Forms are compiled once and assembled
at θ = 0 and at each unit vector, because to compile one for each coefficient would take seconds each.

Distributed operators are sums of a few matrices. M, A(θ) and B(θ) are often made of the same ones: decay and force of a
reaction–diffusion equation are multiples of the mass matrix. Each different matrix is kept once, and an operator is a
set of weights of them. A step then multiplies once with each of them, forward and backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.errors import UsageError
from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.collective import concatenated, on_root_concatenated
from distlfm.solvers.fem.forms.discretise import Discretisation
from distlfm.solvers.fem.spec import Csr, FloatArray, IntArray, Operators

# A difference whose norm is this small beside those of its terms is what rounding left of zero.
NEGLIGIBLE = 1e-14


@dataclass(frozen=True)
class PetscOperators:
    """The operators as petsc4py matrices and vectors, distributed by rows in dolfin's global order.

    mass: Mat; stiffness, load: Mat by coefficient, "" for the part that no coefficient multiplies; source: Vec
    likewise; only what is not zero is there. All matrices have the same pattern unless the form integrates over
    interior facets.
    owned: [J_r], the canonical numbers of this rank's rows. fixed: [F_r], local numbers among them of rows with a
    Dirichlet condition; fixed_values: [F_r]. Neither is applied in the matrices.
    """

    mass: Any
    stiffness: dict[str, Any]
    load: dict[str, Any]
    source: dict[str, Any]
    owned: IntArray
    fixed: IntArray
    fixed_values: FloatArray


def petsc_operators(d: Discretisation) -> PetscOperators:
    """Assemble the operators of an affine problem on the ranks that hold it. Collective."""
    if not d.affine:
        raise UsageError(
            f"{type(d.equation).__name__} has no operators to assemble. {d.reason}", "Solve it by the taped path."
        )
    adjoint = import_adjoint()
    import dolfin

    with adjoint.stop_annotating():
        trial = dolfin.TrialFunction(d.space)
        for function in (d.state, d.force):
            function.vector().zero()
        by_state = dolfin.derivative(d.form, d.state, trial)
        by_force = dolfin.derivative(d.form, d.force, trial)
        return PetscOperators(
            mass=dolfin.as_backend_type(dolfin.assemble(trial * d.test * dolfin.dx)).mat(),
            stiffness={name: part.mat() for name, part in _by_coefficient(d, by_state).items()},
            load={name: part.mat() for name, part in _by_coefficient(d, by_force).items()},
            source={name: part.vec() for name, part in _by_coefficient(d, d.form).items()},
            owned=d.owned,
            fixed=d.fixed,
            fixed_values=d.fixed_values,
        )


def _by_coefficient(d: Discretisation, form: Any) -> dict[str, Any]:
    """Constant part and slopes, where not zero, of the tensor of a form at y = f = 0, affine in the coefficients."""
    import dolfin
    from ufl import replace, zero
    from ufl.algorithms import expand_derivatives

    # What is zero whatever the mesh is seen in the form, and needs no assembly.
    reduced = replace(expand_derivatives(form), {d.state: zero(), d.force: zero()})
    if reduced.empty():
        return {}
    constant_part = replace(reduced, {constant: zero() for constant in d.coefficients.values()})
    names = [name for name, constant in d.coefficients.items() if constant in reduced.coefficients()]
    compiled = dolfin.Form(form)
    is_matrix = compiled.rank() == 2
    parts: dict[str, Any] = {}
    for name in [*([] if constant_part.empty() else [""]), *names]:
        for other, constant in d.coefficients.items():
            constant.assign(float(other == name))
        # To find the pattern of a large matrix takes longer than to fill it.
        like = next(iter(parts.values()), None)
        parts[name] = dolfin.as_backend_type(dolfin.assemble(compiled, tensor=None if like is None else like.copy()))
    norm = "frobenius" if is_matrix else "l2"
    rounding = dict.fromkeys(parts, 0.0)
    for name in names if "" in parts else []:
        rounding[name] = NEGLIGIBLE * (parts[name].norm(norm) + parts[""].norm(norm))
        parts[name].axpy(-1.0, parts[""], *([True] if is_matrix else []))
    # Not beside another coefficient's: those have units of their own.
    return {name: part for name, part in parts.items() if part.norm(norm) > rounding[name]}


def assemble_operators(d: Discretisation) -> Operators:
    """The operators as arrays in canonical order, on every rank. Collective; meant for meshes that fit one process."""
    parts = petsc_operators(d)
    return Operators(
        nodes=d.nodes,
        cells=all_cells(d),
        mass=_csr(d, parts.mass),
        stiffness={name: _csr(d, matrix) for name, matrix in parts.stiffness.items()},
        load={name: _csr(d, matrix) for name, matrix in parts.load.items()},
        source={name: _array(d, vector) for name, vector in parts.source.items()},
        **fixed_nodes(d),
    )


def fixed_nodes(d: Discretisation) -> dict[str, Any]:
    """`fixed` [F]: canonical numbers in rising order, and `fixed_values` [F], on every rank. Collective."""
    fixed = concatenated(d.comm, d.owned[d.fixed])
    order = np.argsort(fixed)
    return {"fixed": fixed[order], "fixed_values": concatenated(d.comm, d.fixed_values)[order]}


def all_cells(d: Discretisation) -> IntArray:
    """[C, d + 1]: the cells of all ranks, in an order that does not depend on the ranks. Collective."""
    return _ordered(concatenated(d.comm, d.own_cells()))


def cells_on_root(d: Discretisation) -> IntArray:
    """`all_cells` on rank 0, none [0, d + 1] elsewhere: large meshes are divided to be nowhere twice. Collective."""
    return _ordered(on_root_concatenated(d.comm, d.own_cells()))


def _ordered(cells: IntArray) -> IntArray:
    cells = np.sort(cells, axis=1)
    ordered: IntArray = cells[np.lexsort(cells.T[::-1])]
    return ordered


def _csr(d: Discretisation, matrix: Any) -> Csr:
    from scipy.sparse import coo_array

    indptr, indices, data = matrix.getValuesCSR()
    first, _ = d.owned_range
    rows = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    values, rows, columns = (concatenated(d.comm, part) for part in (data, rows, indices))
    shape = (d.num_nodes, d.num_nodes)
    found = coo_array((values, (d.canonical[rows], d.canonical[columns])), shape=shape).tocsr()
    found.eliminate_zeros()
    found.sort_indices()
    return Csr(found.data, found.indices.astype(np.int64), found.indptr.astype(np.int64), shape)


def _array(d: Discretisation, vector: Any) -> FloatArray:
    values = np.empty(d.num_nodes)
    values[d.canonical] = concatenated(d.comm, np.array(vector.getArray()))
    return values


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
