"""The user's equation: its class imported by reference, and its weak form built and checked.

If the form is affine in the state, the force and its coefficients, its operators can be assembled once.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import nearest
from distlfm.equations import Equation
from distlfm.equations.base import EquationRef
from distlfm.errors import DistlfmError, UsageError
from distlfm.optional import import_file


@contextlib.contextmanager
def blame(what: str, fix: str) -> Iterator[None]:
    """Turn whatever the user's own code raises in here into a UsageError whose cause begins with `what`."""
    try:
        yield
    except DistlfmError:
        raise
    except Exception as error:
        raise UsageError(f"{what}: {type(error).__name__}: {error}.", fix) from error


def load_equation(ref: EquationRef) -> Equation:
    """An instance of the class."""
    place = f"{ref.module!r}" if ref.file is None else f"{ref.module!r} ({ref.file})"
    with blame(f"The plugin {place} cannot be used", "Mend it, and run again."):
        module = sys.modules.get(ref.module) or _import(ref.module, ref.file)
        found = getattr(module, ref.name, None)
        if found is None:
            known = [name for name, value in vars(module).items() if _is_equation(value) and value is not Equation]
            raise UsageError(f"{ref.module} has no class {ref.name}.", nearest(ref.name, known))
        if not _is_equation(found):
            raise UsageError(f"{ref.name} of {ref.module} is not an Equation.", "Derive it from distlfm's Equation.")
        equation: Equation = found()
        return equation


def _is_equation(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Equation)


def _import(name: str, file: Path | None) -> Any:
    if file is None:
        return importlib.import_module(name)
    if not file.is_file():
        raise UsageError(f"There is no plugin file {file}.", "The helper group must see the same files.")
    return import_file(name, file)


class NamedCoefficients(dict[str, Any]):
    """Coefficients by name; an unknown name is answered by the nearest known."""

    def __missing__(self, name: str) -> Any:
        raise UsageError(f"The form uses the coefficient {name!r}, which it does not name.", nearest(name, list(self)))


def weak_form(equation: Equation, y: Any, v: Any, f: Any, p: dict[str, Any]) -> Any:
    """The equation's UFL form, known to use the state, the test function, the force and every coefficient."""
    import ufl
    from ufl.algorithms import expand_derivatives
    from ufl.algorithms.check_arities import ArityMismatch, check_form_arity
    from ufl.algorithms.remove_complex_nodes import remove_complex_nodes

    called = f"The form of {type(equation).__name__}"
    with blame(f"{called} cannot be built", "Mend its method `form`."):
        form = equation.form(y, v, f, NamedCoefficients(p))
    if not isinstance(form, ufl.Form):
        fix = "Integrate over the domain: return (…) * v * dx."
        raise UsageError(f"{called} is not a UFL form but {type(form).__name__}.", fix)
    if form.empty():
        raise UsageError(f"{called} is empty.", "It must use y, v and f.")
    if v not in form.arguments():
        raise UsageError(f"{called} does not use the test function v.", "Multiply each term by v or grad(v).")
    try:
        check_form_arity(remove_complex_nodes(expand_derivatives(form)), form.arguments())
    except (ArityMismatch, NotImplementedError):  # the latter comes from UFL's own wording of the former
        fix = "Each term has v or grad(v) exactly once."
        raise UsageError(f"{called} is not linear in the test function v.", fix) from None
    used = form.coefficients()
    if f not in used:
        raise UsageError(f"{called} does not use the force f.", "Without it there is nothing to infer.")
    if y not in used:
        raise UsageError(f"{called} does not use the state y.", "Add the term that y is in.")
    unused = [repr(name) for name, constant in p.items() if constant not in used]
    if unused:
        raise UsageError(
            f"{called} does not use its coefficient{'s' if len(unused) > 1 else ''} {', '.join(unused)}.",
            "Use it in the form, or remove it from `coefficients`.",
        )
    return form


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


def nonlinear_in_coefficients(equation: Equation, dims: int, degree: int, names: Sequence[str]) -> str:
    """A sentence if the form, affine in y and f, is not affine in its coefficients.

    Found on a mesh of a few cells, for it does not depend on the mesh: in the form's derivatives, and in its values at
    zero, at each unit vector, and at random points of either sign, which must then be combinations of those.
    """
    import dolfin

    make = (dolfin.UnitIntervalMesh, dolfin.UnitSquareMesh, dolfin.UnitCubeMesh)[dims - 1]
    mesh = make(dolfin.MPI.comm_self, *([2] * dims))
    space = dolfin.FunctionSpace(mesh, "P", degree)
    y, f, v = dolfin.Function(space), dolfin.Function(space), dolfin.TestFunction(space)
    constants = {name: dolfin.Constant(0.0) for name in names}
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

    zero = at(np.zeros(len(names)))
    slopes = [[moved - still for moved, still in zip(at(row), zero, strict=True)] for row in np.eye(len(names))]
    generator = np.random.default_rng(0)
    for scale in PROBED:
        point = scale * generator.uniform(0.5, 1.5, len(names)) * generator.choice([-1.0, 1.0], len(names))
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
