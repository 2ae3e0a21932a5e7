"""Is a weak form affine in the state, the force and its coefficients? If so its operators can be assembled once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distlfm.equations import Equation

# Largest relative difference from A[""] + Σ θ_k A[k] that counts as rounding.
AFFINE_TOLERANCE = 1e-10


def nonlinear_in(form: Any, y: Any, f: Any) -> str:
    """A sentence that says in what the form is not affine, or nothing if it is so in state and force together."""
    from dolfin import derivative
    from ufl.algorithms import expand_derivatives

    by_state = expand_derivatives(derivative(form, y)).coefficients()
    by_force = expand_derivatives(derivative(form, f)).coefficients()
    if y in by_state:
        return "The form is not linear in the state y."
    if f in by_force:
        return "The form is not linear in the force f."
    if f in by_state or y in by_force:
        return "The form multiplies the state y by the force f."
    return ""


def nonlinear_in_coefficients(equation: Equation, dims: int, degree: int, values: Mapping[str, float]) -> str:
    """A sentence if the form, affine in y and f, is not affine in its coefficients.

    Found on a mesh of a few cells, for it does not depend on the mesh: at zero, at each unit vector, and at two random
    values that must then be combinations of those.
    """
    import dolfin

    mesh = (dolfin.UnitIntervalMesh, dolfin.UnitSquareMesh, dolfin.UnitCubeMesh)[dims - 1](
        dolfin.MPI.comm_self, *([2] * dims)
    )
    space = dolfin.FunctionSpace(mesh, "P", degree)
    y, f, v = dolfin.Function(space), dolfin.Function(space), dolfin.TestFunction(space)
    constants = {name: dolfin.Constant(0.0) for name in values}
    form = equation.form(y, v, f, constants)
    trial = dolfin.TrialFunction(space)
    parts = [dolfin.derivative(form, y, trial), dolfin.derivative(form, f, trial), form]

    def at(point: Any) -> Any:
        for constant, value in zip(constants.values(), point, strict=True):
            constant.assign(float(value))
        assembled = [dolfin.assemble(part) for part in parts]
        return [part.array().ravel() for part in assembled[:2]] + [assembled[2].get_local()]

    unit = np.eye(len(values))
    zero = at(np.zeros(len(values)))
    slopes = [[moved - still for moved, still in zip(at(row), zero, strict=True)] for row in unit]
    generator = np.random.default_rng(0)
    for _ in range(2):
        point = generator.uniform(0.5, 1.5, len(values))
        for i, real in enumerate(at(point)):
            combined = zero[i] + sum(weight * slope[i] for weight, slope in zip(point, slopes, strict=True))
            # Not `>`: values that are not a number, from a division by a coefficient of zero, are not affine either.
            if not np.abs(real - combined).max(initial=0.0) <= AFFINE_TOLERANCE * np.abs(real).max(initial=0.0):
                return "The form is not affine in its coefficients."
    return ""
