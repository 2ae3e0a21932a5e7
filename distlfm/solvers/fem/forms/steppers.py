"""One step of any weak form, recorded on a tape of dolfin-adjoint.

`(y_{n+1} − y_n) / dt` is tested against v and set equal to the form at both ends by the weights of the scheme
(`solvers/field/scheme.py`), the state being held at Dirichlet nodes.

dolfin-adjoint's own `solve` derives and looks up the adjoint's forms anew in each step, in Python: a tenth of a second
whatever the mesh. `CachedStepper` derives them once; its steps are blocks on the same tape. It is measured by the
`PlainStepper` of `tests/support/plain_stepper.py`, which leaves all to dolfin-adjoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.discretise import Discretisation
from distlfm.solvers.fem.forms.operators import fixed_nodes
from distlfm.solvers.field.scheme import CRANK_NICOLSON, Scheme

# Newton's method ends at this residual, relative to the first one or to that of a unit change of the state.
NEWTON_RELATIVE, NEWTON_ABSOLUTE = 1e-11, 1e-13
NEWTON_ITERATIONS = 30


class Stepper(ABC):
    """The equation of one time step of a problem, built once; any number of trajectories are recorded with it."""

    def __init__(self, d: Discretisation, scheme: Scheme = CRANK_NICOLSON) -> None:
        adjoint = import_adjoint()
        import dolfin
        from ufl import replace

        self.d = d
        with adjoint.stop_annotating():
            self.before, self.after = adjoint.Function(d.space), adjoint.Function(d.space)
            self.force_before, self.force_after = adjoint.Function(d.space), adjoint.Function(d.space)
            self.rate = adjoint.Constant(1.0)  # 1 / dt
            trial = dolfin.TrialFunction(d.space)
            new = replace(d.form, {d.state: self.after, d.force: self.force_after})
            old = replace(d.form, {d.state: self.before, d.force: self.force_before})
            moved = self.rate * (self.after - self.before) * d.test * dolfin.dx
            # A literal zero would drop the form, and derivatives of nothing cannot be assembled.
            self.residual = moved - scheme.between(old, new, zero=dolfin.Constant(0.0))
            self.jacobian = dolfin.derivative(self.residual, self.after, trial)
            self.left: Any = None
            self.right: Any = None
            if d.linear:
                step = replace(self.residual, {self.after: trial})
                self.left, self.right = dolfin.lhs(step), dolfin.rhs(step)
            fixed = fixed_nodes(d)
            self.fixed, self.fixed_values = fixed["fixed"], fixed["fixed_values"]
            self.solver = "mumps" if d.comm.size > 1 else "default"
            self._unit = float(dolfin.assemble(d.test * dolfin.dx).norm("l2"))

    def begin(self, theta: Mapping[str, float], dt: float) -> dict[str, Any]:
        """Set coefficients and step; the tape's variables of the coefficients. Former tapes keep their own."""
        with import_adjoint().stop_annotating():
            for name, constant in self.d.coefficients.items():
                constant.assign(float(theta[name]))
            self.rate.assign(1.0 / dt)
        for shared in (self.before, self.after, self.force_before, self.force_after, self.rate):
            shared.create_block_variable()
        return {name: constant.create_block_variable() for name, constant in self.d.coefficients.items()}

    @abstractmethod
    def advance(self, before: Any, force_before: Any, force_after: Any, scale: float) -> Any:
        """The state one step after `before`, a Function, recorded. `scale` is the size of states.

        Raises RuntimeError if the step cannot be solved.
        """

    def newton(self, scale: float) -> dict[str, Any]:
        """Settings of Newton's method for states of this size."""
        smallest = NEWTON_ABSOLUTE * self._unit * float(self.rate) * scale
        return {
            "relative_tolerance": NEWTON_RELATIVE,
            "absolute_tolerance": max(smallest, 1e-300),
            "maximum_iterations": NEWTON_ITERATIONS,
            "linear_solver": self.solver,
        }


class CachedStepper(Stepper):
    """Steps whose adjoint forms are derived and compiled once."""

    def __init__(self, d: Discretisation, scheme: Scheme = CRANK_NICOLSON) -> None:
        super().__init__(d, scheme)
        import dolfin

        with import_adjoint().stop_annotating():
            self._forward = self._make_forward()
            self._dual = dolfin.Function(d.space)
            self._transposed = dolfin.Form(dolfin.adjoint(self.jacobian))
            self._matrix = dolfin.PETScMatrix(d.comm)
            self._homogeneous = [dolfin.DirichletBC(condition) for condition in d.conditions]
            for condition in self._homogeneous:
                condition.homogenize()
            # The derivatives of the residual by what a step depends on, each applied to the dual.
            inputs = (self.before, self.force_before, self.force_after)
            self._by_function = [self._applied(function) for function in inputs]
            weighted = dolfin.action(self.residual, self._dual)
            self._by_coefficient = [
                dolfin.Form(-dolfin.derivative(weighted, constant, dolfin.Constant(1.0)))
                for constant in d.coefficients.values()
            ]

    def _make_forward(self) -> Any:
        import dolfin

        if self.d.linear:
            linear = dolfin.LinearVariationalProblem(self.left, self.right, self.after, self.d.conditions)
            solver = dolfin.LinearVariationalSolver(linear)
            solver.parameters["linear_solver"] = self.solver
        else:
            problem = dolfin.NonlinearVariationalProblem(self.residual, self.after, self.d.conditions, J=self.jacobian)
            solver = dolfin.NonlinearVariationalSolver(problem)
        return solver

    def _applied(self, function: Any) -> Any:
        import dolfin

        by_function = dolfin.derivative(self.residual, function, dolfin.TrialFunction(self.d.space))
        return dolfin.Form(-dolfin.action(dolfin.adjoint(by_function), self._dual))

    def advance(self, before: Any, force_before: Any, force_after: Any, scale: float) -> Any:
        adjoint = import_adjoint()
        block = _step_block(self, before, force_before, force_after)
        with adjoint.stop_annotating():
            self._set(before, force_before, force_after, before)
            if not self.d.linear:
                self._forward.parameters["newton_solver"].update(self.newton(scale))
            self._forward.solve()
            after = adjoint.Function(self.d.space)
            after.vector()[:] = self.after.vector()
        adjoint.get_working_tape().add_block(block)
        block.add_output(after.create_block_variable())
        return after

    def _set(self, before: Any, force_before: Any, force_after: Any, after: Any) -> None:
        shared = (self.before, self.force_before, self.force_after, self.after)
        for own, given in zip(shared, (before, force_before, force_after, after), strict=True):
            own.vector().zero()
            own.vector().axpy(1.0, given.vector())
            own.vector().apply("insert")

    def pull_back(self, saved: list[Any], after: Any, weight: Any, wanted: list[bool]) -> list[Any]:
        """Products of `weight` with the derivatives of a step by its inputs: three Functions, then the coefficients.

        saved: the inputs' values at the step; after: its result. Those not `wanted` are None.
        """
        import dolfin

        self._set(saved[0], saved[1], saved[2], after)
        for constant, value in zip(self.d.coefficients.values(), saved[3:-1], strict=True):
            dolfin.Constant.assign(constant, float(value))
        dolfin.Constant.assign(self.rate, float(saved[-1]))
        dolfin.assemble(self._transposed, tensor=self._matrix)
        right = weight.copy()
        for condition in self._homogeneous:
            condition.apply(self._matrix, right)
        dolfin.PETScLUSolver(self.d.comm, self._matrix, self.solver).solve(self._dual.vector(), right)
        self._dual.vector().apply("insert")
        forms = [*self._by_function, *self._by_coefficient]
        return [dolfin.assemble(form) if want else None for form, want in zip(forms, wanted, strict=True)]


def _step_block(stepper: CachedStepper, *inputs: Any) -> Any:
    """A block for the tape; the class is made here because its base comes with dolfin-adjoint."""
    from pyadjoint import Block

    class StepBlock(Block):  # type: ignore[misc]
        def evaluate_adj(self, markings: bool = False) -> None:
            (output,) = self.get_outputs()
            if output.adj_value is None:
                return
            dependencies = self.get_dependencies()
            reached = dependencies[:-1]  # the step's length is not a control
            wanted = [not markings or variable.is_control_dependent for variable in reached]
            saved = [variable.saved_output for variable in dependencies]
            products = stepper.pull_back(saved, output.saved_output, output.adj_value, wanted)
            for variable, product in zip(reached, products, strict=True):
                if product is not None:
                    variable.add_adj_output(product)

        def recompute_component(self, inputs: Any, block_variable: Any, idx: int, prepared: Any) -> Any:
            raise NotImplementedError("trajectories are recorded anew, not replayed")

    block = StepBlock()
    for given in (*inputs, *stepper.d.coefficients.values(), stepper.rate):
        block.add_dependency(given)
    return block
