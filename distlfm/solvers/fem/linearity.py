"""Is a weak form affine in the state, the force and its coefficients? If so its operators can be assembled once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distlfm.equations import Equation

# Largest relative difference from A[""] + Σ θ_k A[k] that counts as rounding.
AFFINE_TOLERANCE = 1e-10
# Sizes of the coefficients at which that is looked at.
PROBED = (1.0, 1.0, 1e3, 1e-3)
NOT_AFFINE = "The form is not affine in its coefficients."


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

    Found on a mesh of a few cells, for it does not depend on the mesh: in the form's derivatives, and in its values at
    zero, at each unit vector, and at random points of either sign, which must then be combinations of those.
    """
    import dolfin

    mesh = (dolfin.UnitIntervalMesh, dolfin.UnitSquareMesh, dolfin.UnitCubeMesh)[dims - 1](
        dolfin.MPI.comm_self, *([2] * dims)
    )
    space = dolfin.FunctionSpace(mesh, "P", degree)
    y, f, v = dolfin.Function(space), dolfin.Function(space), dolfin.TestFunction(space)
    constants = {name: dolfin.Constant(0.0) for name in values}
    form = equation.form(y, v, f, constants)
    if _bends(form, set(constants.values())):
        return NOT_AFFINE
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
    for scale in PROBED:
        point = scale * generator.uniform(0.5, 1.5, len(values)) * generator.choice([-1.0, 1.0], len(values))
        for i, real in enumerate(at(point)):
            combined = zero[i] + sum(weight * slope[i] for weight, slope in zip(point, slopes, strict=True))
            # Not `>`: values that are not a number, from a division by a coefficient of zero, are not affine either.
            if not np.abs(real - combined).max(initial=0.0) <= AFFINE_TOLERANCE * np.abs(real).max(initial=0.0):
                return NOT_AFFINE
    return ""


def _bends(form: Any, constants: set[Any]) -> bool:
    """Whether a derivative by a constant depends on one, or a constant decides a case.

    UFL takes the derivative of a case to be that of its branch, so that of a step is zero: values at a few points
    would see it only if they lay on both sides.
    """
    from dolfin import Constant, derivative
    from ufl.algorithms import expand_derivatives
    from ufl.classes import Abs, Condition, MaxValue, MinValue
    from ufl.corealg.traversal import unique_pre_traversal

    cases = (Abs, Condition, MaxValue, MinValue)
    for integral in expand_derivatives(form).integrals():
        for part in unique_pre_traversal(integral.integrand()):
            if isinstance(part, cases) and not constants.isdisjoint(unique_pre_traversal(part)):
                return True
    slopes = (expand_derivatives(derivative(form, constant, Constant(1.0))) for constant in constants)
    return any(not constants.isdisjoint(slope.coefficients()) for slope in slopes)
