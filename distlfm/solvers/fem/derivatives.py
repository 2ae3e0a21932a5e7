"""A weak form and its first derivatives at given states: what a linearised trajectory, or matched slopes, are made of.

A Crank–Nicolson step of any form has no other derivatives than these: `M (y' − y) / dt = ½ F(y', f') + ½ F(y, f)`. So
they are assembled once at each time, and whoever asked does all sweeps forward and backward by linear algebra.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.solvers.fem.adjoint import import_adjoint
from distlfm.solvers.fem.collective import concatenated
from distlfm.solvers.fem.discretise import Discretisation
from distlfm.solvers.fem.spec import FloatArray, IntArray


@dataclass(frozen=True)
class Derivatives:
    """F(y, f; θ) in canonical order at n states. value: [n, J]; by_theta: [n, k, J].

    mass: [E], by_state, by_force: [n, E], the entries of matrices [J, J] with one pattern: indices [E], indptr [J + 1].
    Dirichlet conditions are not applied.
    """

    value: FloatArray
    by_theta: FloatArray
    mass: FloatArray
    by_state: FloatArray
    by_force: FloatArray
    indices: IntArray
    indptr: IntArray


class FormDerivatives:
    """The derivatives of one problem's form, derived and compiled once. Collective."""

    def __init__(self, d: Discretisation) -> None:
        import dolfin

        self.d = d
        with import_adjoint().stop_annotating():
            trial = dolfin.TrialFunction(d.space)
            self._value = dolfin.Form(d.form)
            self._forms = tuple(dolfin.Form(dolfin.derivative(d.form, of, trial)) for of in (d.state, d.force))
            self._by_theta = [
                dolfin.Form(dolfin.derivative(d.form, constant, dolfin.Constant(1.0)))
                for constant in d.coefficients.values()
            ]
            self._mass = dolfin.as_backend_type(dolfin.assemble(trial * d.test * dolfin.dx)).mat()
            # Forms over interior facets have wider patterns than others: one tensor for each.
            self._tensors = tuple(dolfin.PETScMatrix(d.comm) for _ in range(2))
            self._keys: IntArray | None = None

    def at(self, theta: FloatArray, states: FloatArray, force: FloatArray) -> Derivatives:
        """theta: [k] in the problem's order; states, force: [n, J]."""
        import dolfin

        d = self.d
        with import_adjoint().stop_annotating():
            for constant, value in zip(d.coefficients.values(), theta, strict=True):
                constant.assign(float(value))
            keys = self._keys = self._pattern() if self._keys is None else self._keys
            count, size = len(states), len(keys)
            value, by_theta = np.empty((count, d.num_nodes)), np.empty((count, len(theta), d.num_nodes))
            mass, by_state, by_force = self._on(keys, self._mass), np.empty((count, size)), np.empty((count, size))
            for n in range(count):
                d.scatter(d.state.vector(), states[n])
                d.scatter(d.force.vector(), force[n])
                value[n] = d.gather(dolfin.assemble(self._value))
                for k, form in enumerate(self._by_theta):
                    by_theta[n, k] = d.gather(dolfin.assemble(form))
                for form, tensor, found in zip(self._forms, self._tensors, (by_state, by_force), strict=True):
                    dolfin.assemble(form, tensor=tensor)
                    found[n] = self._on(keys, tensor.mat())
        rows, columns = np.divmod(keys, d.num_nodes)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=d.num_nodes))]).astype(np.int64)
        return Derivatives(value, by_theta, mass, by_state, by_force, columns.astype(np.int64), indptr)

    def _pattern(self) -> IntArray:
        """Canonical places of all entries that mass and derivatives have, in order."""
        import dolfin

        for form, tensor in zip(self._forms, self._tensors, strict=True):
            dolfin.assemble(form, tensor=tensor)
        parts = [self._ordered(matrix)[0] for matrix in (self._mass, *(tensor.mat() for tensor in self._tensors))]
        return np.unique(np.concatenate(parts))

    def _on(self, keys: IntArray, matrix: Any) -> FloatArray:
        """The entries of a matrix at places `keys`, zero where it has none."""
        own, entries = self._ordered(matrix)
        if len(own) == len(keys):
            return entries
        found = np.zeros(len(keys))
        found[np.searchsorted(keys, own)] = entries
        return found

    def _ordered(self, matrix: Any) -> tuple[IntArray, FloatArray]:
        """Canonical places row · J + column of the entries, in order, and the entries, on every rank."""
        d = self.d
        indptr, indices, data = matrix.getValuesCSR()
        first, _ = d.owned_range
        rows = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        values, rows, columns = (concatenated(d.comm, part) for part in (data, rows, indices))
        keys = d.canonical[rows] * d.num_nodes + d.canonical[columns]
        order = np.argsort(keys)
        return keys[order], values[order]
