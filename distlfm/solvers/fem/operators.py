"""The operators of an affine problem: M ẏ = A(θ) y + B(θ) f + c(θ), one of each for every coefficient.

Dirichlet conditions are not applied to them: the nodes that are fixed come along. Forms are compiled once and assembled
at θ = 0 and at each unit vector, because to compile one for each coefficient would take seconds each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.errors import UsageError
from distlfm.solvers.fem.adjoint import import_adjoint
from distlfm.solvers.fem.collective import concatenated, on_root_concatenated
from distlfm.solvers.fem.discretise import Discretisation
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
