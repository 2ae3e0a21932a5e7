"""The operators of an affine problem: M ẏ = A(θ) y + B(θ) f + c(θ), one of each for every coefficient.

Dirichlet conditions are not applied to them: the nodes that are fixed come along. Forms are compiled once and assembled
at θ = 0 and at each unit vector, because to compile one for each coefficient would take seconds each.

Distributed operators are sums of a few matrices. M, A(θ) and B(θ) are often made of the same ones: decay and force of a
reaction–diffusion equation are multiples of the mass matrix. Each different matrix is kept once, and an operator is a
set of weights of them. A step then multiplies once with each of them, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.errors import UsageError
from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.collective import concatenated
from distlfm.solvers.fem.forms.discretise import Discretisation
from distlfm.solvers.fem.spec import Csr, FloatArray, IntArray, Operators

# A difference whose norm is this small beside those of its terms is what rounding left of zero.
NEGLIGIBLE = 1e-14


def petsc_operators(d: Discretisation) -> tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Assemble mass, stiffness, load and source of an affine problem on the ranks that hold it. Collective.

    Mass is a petsc4py matrix, stiffness and load are such by coefficient, "" for the part that no coefficient
    multiplies, and source are dolfin's vectors likewise; only what is not zero is there. All are distributed by rows in
    dolfin's global order. All matrices have the same pattern unless the form integrates over interior facets. Dirichlet
    conditions are not applied in the matrices.
    """
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
        mass = dolfin.as_backend_type(dolfin.assemble(trial * d.test * dolfin.dx)).mat()
        stiffness = {name: part.mat() for name, part in _by_coefficient(d, by_state).items()}
        load = {name: part.mat() for name, part in _by_coefficient(d, by_force).items()}
        return mass, stiffness, load, _by_coefficient(d, d.form)


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
    mass, stiffness, load, source = petsc_operators(d)
    return Operators(
        nodes=d.nodes,
        cells=joined_cells(d, concatenated),
        mass=_csr(d, mass),
        stiffness={name: _csr(d, matrix) for name, matrix in stiffness.items()},
        load={name: _csr(d, matrix) for name, matrix in load.items()},
        source={name: d.gather(vector) for name, vector in source.items()},
        **fixed_nodes(d),
    )


def fixed_nodes(d: Discretisation) -> dict[str, Any]:
    """`fixed` [F]: canonical numbers in rising order, and `fixed_values` [F], on every rank. Collective."""
    fixed = concatenated(d.comm, d.owned[d.fixed])
    order = np.argsort(fixed)
    return {"fixed": fixed[order], "fixed_values": concatenated(d.comm, d.fixed_values)[order]}


def joined_cells(d: Discretisation, join: Callable[[Any, IntArray], IntArray]) -> IntArray:
    """[C, d + 1]: the cells of all ranks, in an order that does not depend on the ranks. Collective.

    join: `concatenated`, or `on_root_concatenated`, as large meshes are divided to be nowhere twice.
    """
    cells = np.sort(join(d.comm, d.own_cells()), axis=1)
    ordered: IntArray = cells[np.lexsort(cells.T[::-1])]
    return ordered


def _csr(d: Discretisation, matrix: Any) -> Csr:
    from scipy.sparse import coo_array

    values, rows, columns = d.entries(matrix)
    found: Csr = coo_array((values, (rows, columns)), shape=(d.num_nodes, d.num_nodes)).tocsr()
    found.eliminate_zeros()
    found.sort_indices()
    return found


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


def reduce_operators(d: Discretisation) -> Bases:
    """Keep each different matrix of an affine problem once. Collective."""
    names = tuple(d.coefficients)
    kept: list[Any] = []
    mass, stiffness, load, source = petsc_operators(d)
    probes = _probes(mass)

    def weights(matrix: Any) -> dict[int, float]:
        if matrix is None:
            return {}
        for i, base in enumerate(kept):
            ratio = _ratio(matrix, base, probes)
            if ratio is not None:
                return {i: ratio}
        kept.append(matrix)
        return {len(kept) - 1: 1.0}

    parts = (group.get(name) for group in (stiffness, load) for name in ("", *names))
    rows = [weights(part) for part in (mass, *parts)]
    table = np.array([[row.get(j, 0.0) for j in range(len(kept))] for row in rows])
    none = np.zeros(len(d.owned))
    transposed = tuple(base if _symmetric(base, probes) else base.copy().transpose() for base in kept)
    return Bases(
        names=names,
        matrices=tuple(kept),
        transposed=transposed,
        mass=table[0],
        stiffness=table[1 : 2 + len(names)],
        load=table[2 + len(names) :],
        source=np.stack([source[name].get_local() if name in source else none for name in ("", *names)]),
        owned=d.owned,
        fixed=d.fixed,
        fixed_values=d.fixed_values,
    )


def at_coefficients(parts: FloatArray, theta: Mapping[str, float], names: tuple[str, ...]) -> FloatArray:
    """parts[0] + Σ θ_k parts[k]."""
    total: FloatArray = np.array([1.0, *(theta[name] for name in names)]) @ parts
    return total


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
