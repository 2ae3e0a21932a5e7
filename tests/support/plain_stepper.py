"""The stepper that leaves all to dolfin-adjoint: what the cached one is measured by, in tests and benchmarks."""

from __future__ import annotations

from typing import Any

from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.steppers import Stepper


class PlainStepper(Stepper):
    """Steps recorded by dolfin-adjoint's `solve`."""

    def advance(self, before: Any, force_before: Any, force_after: Any, scale: float) -> Any:
        adjoint = import_adjoint()
        self.before.assign(before)
        self.force_before.assign(force_before)
        self.force_after.assign(force_after)
        if self.d.linear:
            settings: dict[str, Any] = {"linear_solver": self.solver}
            adjoint.solve(self.left == self.right, self.after, self.d.conditions, solver_parameters=settings)
        else:
            self.after.assign(before)  # where Newton's method begins
            settings = {"nonlinear_solver": "newton", "newton_solver": self.newton(scale)}
            adjoint.solve(
                self.residual == 0, self.after, self.d.conditions, J=self.jacobian, solver_parameters=settings
            )
        found = adjoint.Function(self.d.space)
        found.assign(self.after)
        return found
