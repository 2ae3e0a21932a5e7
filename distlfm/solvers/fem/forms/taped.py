"""The general path: trajectories of any weak form, one tape of dolfin-adjoint each.

One tape serves any weights of the observations: the adjoint is seeded at the states themselves, so no functional is
ever assembled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distlfm.errors import WorkError
from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.steppers import Stepper
from distlfm.solvers.fem.spec import Csr, FloatArray


class TapedTrajectory:
    """One recorded trajectory. `forward` records, `adjoint` may then be called any number of times."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
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
        self._controls = stepper.begin(theta, dt)
        scale = max(float(np.abs(start).max()), float(np.abs(force).max(initial=0.0)) * dt, 1e-30)
        forces = self._forces + [none] * (steps + 1 - len(self._forces))
        functions, states = [self._initial], [start]
        try:
            with adjoint.set_working_tape() as tape:
                self._tape = tape
                adjoint.continue_annotation()
                for n in range(steps):
                    size = max(scale, float(np.abs(states[-1]).max()))
                    try:
                        functions.append(stepper.advance(functions[-1], forces[n], forces[n + 1], size))
                    except RuntimeError as error:
                        raise _failed(n, dt, "its equations could not be solved") from error
                    states.append(d.gather(functions[-1].vector()))
                    if not np.isfinite(states[-1]).all():
                        raise _failed(n, dt, "the state is not finite")
        except BaseException:
            self.clear()
            raise
        finally:
            adjoint.pause_annotation()
        self._states = [function.block_variable for function in functions]
        self._observe = observe
        whole = np.stack(states)
        return whole if self._observe is None else np.ascontiguousarray((self._observe @ whole.T).T)

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
        """The derivative by a Constant: a number, or dolfin-adjoint's vector of one degree of freedom."""
        value = variable.adj_value
        return 0.0 if value is None else float(value.sum() if hasattr(value, "sum") else value)


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
