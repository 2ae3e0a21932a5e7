"""The user's equation: its class imported by reference, and its weak form built and checked."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from distlfm.config import nearest
from distlfm.equations import Equation
from distlfm.errors import DistlfmError, UsageError
from distlfm.runtime.import_file import import_file
from distlfm.solvers.fem.spec import EquationRef


def load_equation(ref: EquationRef) -> Equation:
    """An instance of the class; whatever the user's own code raises becomes a sentence that names it."""
    try:
        module = sys.modules.get(ref.module) or _import(ref.module, ref.file)
        found = getattr(module, ref.name, None)
        if found is None:
            known = [name for name, value in vars(module).items() if _is_equation(value) and value is not Equation]
            raise UsageError(f"{ref.module} has no class {ref.name}.", nearest(ref.name, known))
        if not _is_equation(found):
            raise UsageError(f"{ref.name} of {ref.module} is not an Equation.", "Derive it from distlfm's Equation.")
        equation: Equation = found()
        return equation
    except DistlfmError:
        raise
    except Exception as error:
        place = f"{ref.module!r}" if ref.file is None else f"{ref.module!r} ({ref.file})"
        raise UsageError(
            f"The plugin {place} cannot be used: {type(error).__name__}: {error}.", "Mend it, and run again."
        ) from error


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

    called = type(equation).__name__
    try:
        form = equation.form(y, v, f, NamedCoefficients(p))
    except DistlfmError:
        raise
    except Exception as error:
        raise UsageError(
            f"The form of {called} cannot be built: {type(error).__name__}: {error}.", "Mend its method `form`."
        ) from error
    if not isinstance(form, ufl.Form):
        raise UsageError(
            f"The form of {called} is not a UFL form but {type(form).__name__}.",
            "Integrate over the domain: return (…) * v * dx.",
        )
    if form.empty():
        raise UsageError(f"The form of {called} is empty.", "It must use y, v and f.")
    if v not in form.arguments():
        raise UsageError(
            f"The form of {called} does not use the test function v.", "Multiply each term by v or grad(v)."
        )
    try:
        check_form_arity(remove_complex_nodes(expand_derivatives(form)), form.arguments())
    except (ArityMismatch, NotImplementedError):  # the latter comes from UFL's own wording of the former
        raise UsageError(
            f"The form of {called} is not linear in the test function v.", "Each term has v or grad(v) exactly once."
        ) from None
    used = form.coefficients()
    if f not in used:
        raise UsageError(f"The form of {called} does not use the force f.", "Without it there is nothing to infer.")
    if y not in used:
        raise UsageError(f"The form of {called} does not use the state y.", "Add the term that y is in.")
    unused = [name for name, constant in p.items() if constant not in used]
    if unused:
        raise UsageError(
            f"The form of {called} does not use its coefficient{'s' if len(unused) > 1 else ''} "
            f"{', '.join(repr(name) for name in unused)}.",
            "Use it in the form, or remove it from `coefficients`.",
        )
    return form
