"""The general path: Crank–Nicolson recorded by dolfin-adjoint, one tape a trajectory, for any weak form.

`(y_{n+1} − y_n) / dt` is tested against v and set equal to `½ form(y_{n+1}, f_{n+1}) + ½ form(y_n, f_n)`, the state
being held at Dirichlet nodes. One tape serves any weights of the observations: the adjoint is seeded at the states
themselves, so no functional is ever assembled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.errors import WorkError
from distlfm.solvers.fem.adjoint import import_adjoint
from distlfm.solvers.fem.discretise import Discretisation
from distlfm.solvers.fem.operators import fixed_nodes
from distlfm.solvers.fem.spec import Csr, FloatArray

# Newton's method ends at this residual, relative to the first one or to that of a unit change of the state.
NEWTON_RELATIVE, NEWTON_ABSOLUTE = 1e-11, 1e-13
NEWTON_ITERATIONS = 30


class Stepper:
    """The equation of one time step of a problem, built once; trajectories are recorded with it."""

    def __init__(self, d: Discretisation) -> None:
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
            self.residual = moved - 0.5 * new - 0.5 * old
            fixed = fixed_nodes(d)
            self.fixed, self.fixed_values = fixed["fixed"], fixed["fixed_values"]
            self._solver = "mumps" if d.comm.size > 1 else "default"
            if d.linear:
                step = replace(self.residual, {self.after: trial})
                self._left, self._right = dolfin.lhs(step), dolfin.rhs(step)
            else:
                self._jacobian = dolfin.derivative(self.residual, self.after, trial)
                ones = dolfin.assemble(d.test * dolfin.dx)
                self._unit = float(ones.norm("l2"))

    def solve(self, scale: float) -> None:
        """Find `after` from `before`; recorded if a tape is being written. `scale` is the size of the state."""
        adjoint = import_adjoint()
        if self.d.linear:
            settings: dict[str, Any] = {"linear_solver": self._solver}
            adjoint.solve(self._left == self._right, self.after, self.d.conditions, solver_parameters=settings)
            return
        smallest = NEWTON_ABSOLUTE * self._unit * float(self.rate) * scale
        newton = {
            "relative_tolerance": NEWTON_RELATIVE,
            "absolute_tolerance": max(smallest, 1e-300),
            "maximum_iterations": NEWTON_ITERATIONS,
            "linear_solver": self._solver,
        }
        adjoint.solve(
            self.residual == 0,
            self.after,
            self.d.conditions,
            J=self._jacobian,
            solver_parameters={"nonlinear_solver": "newton", "newton_solver": newton},
        )


@dataclass
class TapedTrajectory:
    """One recorded trajectory. `forward` records, `adjoint` may then be called any number of times."""

    stepper: Stepper

    def __post_init__(self) -> None:
        self._tape: Any = None
        self._states: list[Any] = []
        self._controls: dict[str, Any] = {}
        self._forces: list[Any] = []
        self._initial: Any = None
        self._observe: Any = None

    def forward(
        self,
        theta: Mapping[str, float],
        initial: FloatArray,
        force: FloatArray,
        dt: float,
        steps: int,
        observe: Csr | None = None,
    ) -> FloatArray:
        """Solve and record; the observed states [N + 1, O], or all nodes [N + 1, J] without `observe`. Collective.

        initial: [J]; at Dirichlet nodes their values are taken instead. force: [K, J] at the first K ≤ N + 1 times,
        zero after. observe: [O, J]. All in canonical order, the same on every rank.
        Raises WorkError if a step cannot be solved; nothing is recorded then.
        """
        adjoint = import_adjoint()
        d, stepper = self.stepper.d, self.stepper
        self.clear()
        assert set(theta) == set(d.coefficients)
        assert len(force) <= steps + 1
        with adjoint.stop_annotating():
            start = np.array(initial, dtype=np.float64)
            start[stepper.fixed] = stepper.fixed_values
            self._initial = self._function(start)
            self._forces = [self._function(values) for values in force]
            none = adjoint.Function(d.space)
            for name, constant in d.coefficients.items():
                constant.assign(float(theta[name]))
            stepper.rate.assign(1.0 / dt)
        # What a former tape knows of these objects must stay with it.
        for shared in (stepper.before, stepper.after, stepper.force_before, stepper.force_after, stepper.rate):
            shared.create_block_variable()
        self._controls = {name: constant.create_block_variable() for name, constant in d.coefficients.items()}
        scale = max(float(np.abs(start).max()), float(np.abs(force).max(initial=0.0)) * dt, 1e-30)
        forces = self._forces + [none] * (steps + 1 - len(self._forces))
        states = [start]
        try:
            with adjoint.set_working_tape() as tape:
                adjoint.continue_annotation()
                self._tape = tape
                stepper.before.assign(self._initial)
                stepper.after.assign(self._initial)
                self._states = [stepper.before.block_variable]
                stepper.force_after.assign(forces[0])
                for n in range(steps):
                    stepper.force_before.assign(stepper.force_after)
                    stepper.force_after.assign(forces[n + 1])
                    states.append(self._step(n, dt, max(scale, float(np.abs(states[-1]).max()))))
                    self._states.append(stepper.after.block_variable)
                    stepper.before.assign(stepper.after)
        except BaseException:
            self.clear()
            raise
        finally:
            adjoint.pause_annotation()
        self._observe = None if observe is None else _scipy(observe)
        whole = np.stack(states)
        return whole if self._observe is None else np.ascontiguousarray((self._observe @ whole.T).T)

    def _step(self, n: int, dt: float, scale: float) -> FloatArray:
        d, stepper = self.stepper.d, self.stepper
        try:
            stepper.solve(scale)
        except RuntimeError as error:
            raise _failed(n, dt, "its equations could not be solved") from error
        values = d.gather(stepper.after.vector())
        if not np.isfinite(values).all():
            raise _failed(n, dt, "the state is not finite")
        return values

    def adjoint(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The gradients of Σ weights · observed by coefficients [k], initial state [J] and force [K, J]. Collective.

        weights: [N + 1, O], or [N + 1, J] if all nodes were observed. Coefficients are in the problem's order. The
        gradients are plain derivatives by the nodes' values; those by the initial state at Dirichlet nodes are zero.
        """
        adjoint = import_adjoint()
        assert self._tape is not None, "forward comes first"
        d, tape = self.stepper.d, self._tape
        weights = np.asarray(weights, dtype=np.float64)
        by_node = weights if self._observe is None else np.ascontiguousarray((self._observe.T @ weights.T).T)
        tape.reset_variables()
        marked = _marked(tape, [*self._controls.values(), self._initial.block_variable, *self._force_variables()])
        with adjoint.stop_annotating():
            for variable, values in zip(self._states, by_node, strict=True):
                if values.any():
                    variable.adj_value = self._function(values).vector()
            try:
                tape.evaluate_adj(markings=True)
            finally:
                for variable in marked:
                    variable.is_control_dependent = False
        by_theta = np.array([self._total(variable) for variable in self._controls.values()])
        by_initial = self._gathered(self._initial.block_variable)
        by_initial[self.stepper.fixed] = 0.0
        by_force = [self._gathered(variable) for variable in self._force_variables()]
        tape.reset_variables()
        return by_theta, by_initial, np.array(by_force).reshape(len(by_force), d.num_nodes)

    def clear(self) -> None:
        """Forget what was recorded."""
        if self._tape is not None:
            self._tape.clear_tape()
        self._tape, self._initial, self._observe = None, None, None
        self._states, self._forces, self._controls = [], [], {}

    def _force_variables(self) -> list[Any]:
        return [force.block_variable for force in self._forces]

    def _function(self, values: FloatArray) -> Any:
        function = import_adjoint().Function(self.stepper.d.space)
        self.stepper.d.scatter(function.vector(), values)
        return function

    def _gathered(self, variable: Any) -> FloatArray:
        d = self.stepper.d
        return np.zeros(d.num_nodes) if variable.adj_value is None else d.gather(variable.adj_value)

    def _total(self, variable: Any) -> float:
        """The derivative by a Constant: a vector of one degree of freedom, which one rank has."""
        return 0.0 if variable.adj_value is None else float(variable.adj_value.sum())


def _marked(tape: Any, controls: list[Any]) -> set[Any]:
    """Mark all that depends on the controls, so that nothing else (the mesh!) is differentiated."""
    reached = set(controls)
    for block in tape.get_blocks():
        if any(variable in reached for variable in block.get_dependencies()):
            reached.update(block.get_outputs())
    for variable in reached:
        variable.is_control_dependent = True
    return reached


def _failed(n: int, dt: float, what: str) -> WorkError:
    return WorkError(
        f"The trajectory failed in step {n + 1}, {(n + 1) * dt:.4g} after its start: {what}.",
        "Take smaller time steps, or narrower priors of the coefficients and the force.",
    )


def _scipy(matrix: Csr) -> Any:
    from scipy.sparse import csr_array

    return csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
