"""Crank–Nicolson trajectories on a mesh that is spread over ranks, and their discrete adjoint. Runs in helper groups.

`(M − dt/2 A) y_{n+1} = (M + dt/2 A) y_n + dt/2 B (f_n + f_{n+1}) + dt c`, with y held at its value on Dirichlet nodes.
Those rows of the left-hand matrix are rows of the identity, and the columns are lifted to the right, so that a
symmetric matrix stays one. The matrix is factored once for a value of coefficients and step, by MUMPS or PETSc, or
solved by Krylov with multigrid; all right-hand sides are solved at once.

Arrays hold the rank's own nodes, `J_r` of them. `S` right-hand sides, `K` leading times with a force, `O_r`
observations that see these nodes, `N` steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distlfm.errors import UsageError, WorkError
from distlfm.solvers.fem.forms.operators import Bases, at_coefficients
from distlfm.solvers.fem.spec import FloatArray

MAX_ITERATIONS = 500
MUMPS_TRANSPOSE = 9  # ICNTL(9): 1 solves A x = b, anything else Aᵀ x = b


class LinearSolver(ABC):
    """Solves with one matrix. Right-hand sides and solutions are the columns of dense petsc4py matrices [J, S]."""

    @abstractmethod
    def solve(self, right: Any, solution: Any, *, transposed: bool) -> None:
        """Overwrite `solution`, whose columns are the first guess where a guess is of use. Collective."""


class Factored(LinearSolver):
    """LU, or for a symmetric matrix LDLᵀ, by MUMPS; or by PETSc itself, which is faster on one rank."""

    def __init__(self, matrix: Any, kind: str, *, symmetric: bool) -> None:
        from petsc4py import PETSc

        if kind == "petsc_lu" and matrix.comm.size > 1:
            raise UsageError(f"petsc_lu works on one rank, not on {matrix.comm.size}.", "Use mumps or cg_amg.")
        self._symmetric = symmetric
        self._package = "mumps" if kind == "mumps" else "petsc"
        ksp = PETSc.KSP().create(matrix.comm)
        ksp.setType("preonly")
        ksp.setOperators(matrix)
        pc = ksp.getPC()
        pc.setType("cholesky" if symmetric else "lu")
        pc.setFactorSolverType(self._package)
        try:
            ksp.setUp()
        except PETSc.Error as error:
            raise _no_factor(f"PETSc error {error.ierr}") from error
        if ksp.getConvergedReason() < 0:
            raise _no_factor(f"PETSc's reason {int(ksp.getConvergedReason())}")
        self._ksp = ksp
        self._factor = pc.getFactorMatrix()

    def solve(self, right: Any, solution: Any, *, transposed: bool) -> None:
        if not transposed or self._symmetric:
            self._factor.matSolve(right, solution)
        elif self._package == "mumps":
            self._factor.setMumpsIcntl(MUMPS_TRANSPOSE, 0)
            try:
                self._factor.matSolve(right, solution)
            finally:
                self._factor.setMumpsIcntl(MUMPS_TRANSPOSE, 1)
        else:
            for column in range(right.getSize()[1]):
                given, found = right.getDenseColumnVec(column, "r"), solution.getDenseColumnVec(column, "w")
                self._factor.solveTranspose(given, found)
                solution.restoreDenseColumnVec(column, "w")
                right.restoreDenseColumnVec(column, "r")


class Multigrid(LinearSolver):
    """CG, or for a matrix that is not symmetric GMRES, preconditioned by hypre's algebraic multigrid."""

    def __init__(self, matrix: Any, tolerance: float, *, symmetric: bool) -> None:
        self._symmetric, self._tolerance, self._matrix = symmetric, tolerance, matrix
        self._ksp = self._krylov(matrix)
        self._transposed: Any = None

    def _krylov(self, matrix: Any) -> Any:
        from petsc4py import PETSc

        ksp = PETSc.KSP().create(matrix.comm)
        ksp.setType("cg" if self._symmetric else "gmres")
        ksp.setOperators(matrix)
        pc = ksp.getPC()
        pc.setType("hypre")
        pc.setHYPREType("boomeramg")
        if not self._symmetric:
            ksp.setPCSide(PETSc.PC.Side.RIGHT)
        ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
        ksp.setInitialGuessNonzero(True)
        ksp.setTolerances(rtol=self._tolerance, max_it=MAX_ITERATIONS)
        ksp.setUp()
        return ksp

    def solve(self, right: Any, solution: Any, *, transposed: bool) -> None:
        ksp = self._ksp
        if transposed and not self._symmetric:
            if self._transposed is None:
                self._transposed = self._krylov(self._matrix.copy().transpose())
            ksp = self._transposed
        for column in range(right.getSize()[1]):
            given, found = right.getDenseColumnVec(column, "r"), solution.getDenseColumnVec(column, "rw")
            ksp.solve(given, found)
            solution.restoreDenseColumnVec(column, "rw")
            right.restoreDenseColumnVec(column, "r")
            if ksp.getConvergedReason() <= 0:
                raise WorkError(
                    f"The iterative solver stopped at a residual of {ksp.getResidualNorm():.2g} after "
                    f"{ksp.getIterationNumber()} iterations.",
                    "Raise mechanism.linear_tolerance, lower mechanism.step, or set mechanism.linear_solver=mumps.",
                )


def make_solver(matrix: Any, kind: str, tolerance: float, *, symmetric: bool) -> LinearSolver:
    """Collective."""
    if kind in ("mumps", "petsc_lu"):
        return Factored(matrix, kind, symmetric=symmetric)
    if kind == "cg_amg":
        return Multigrid(matrix, tolerance, symmetric=symmetric)
    raise UsageError(f"There is no linear solver {kind!r}.", "Choose mumps, petsc_lu or cg_amg.")


def _no_factor(reason: str) -> WorkError:
    return WorkError(
        f"The matrix of a time step could not be factored ({reason}).",
        "It is singular, or memory ran out: use more ranks, mechanism.linear_solver=cg_amg, or a smaller step.",
    )


class Stepper:
    """One step of the scheme at given coefficients, forward and backward."""

    def __init__(self, bases: Bases, theta: Mapping[str, float], dt: float, kind: str, tolerance: float) -> None:
        self.bases, self.dt = bases, dt
        stiffness = at_coefficients(bases.stiffness, theta, bases.names)
        self.after = bases.mass + 0.5 * dt * stiffness
        self.load = 0.5 * dt * at_coefficients(bases.load, theta, bases.names)
        self.source = dt * at_coefficients(bases.source, theta, bases.names)
        before = bases.mass - 0.5 * dt * stiffness
        matrix = _combined(bases.matrices, before)
        held = matrix.createVecRight()
        values = held.getArray()
        values[bases.fixed] = bases.fixed_values
        held.setArray(values)
        self.lift = (matrix * held).getArray().copy()
        first, _ = matrix.getOwnershipRange()
        matrix.zeroRowsColumns((first + bases.fixed).astype(np.int32), diag=1.0)
        symmetric = all(
            one is other or weight == 0
            for one, other, weight in zip(bases.matrices, bases.transposed, before, strict=True)
        )
        self.solver: LinearSolver = make_solver(matrix, kind, tolerance, symmetric=symmetric)


def _combined(matrices: tuple[Any, ...], weights: FloatArray) -> Any:
    from petsc4py import PETSc

    total = matrices[0].copy()
    total.scale(weights[0])
    for matrix, weight in zip(matrices[1:], weights[1:], strict=True):
        if weight:
            total.axpy(weight, matrix, PETSc.Mat.Structure.UNKNOWN_NONZERO_PATTERN)
    return total


@dataclass
class Run:
    """A forward solve that waits for its adjoint. states: [N + 1, S, J_r], None if no gradient by theta is wanted."""

    stepper: Stepper
    force: FloatArray
    states: FloatArray | None
    observe: csr_array[Any]
    driven: bool
    num_steps: int

    def __post_init__(self) -> None:
        self.seen = np.unique(self.observe.indices)
        """Local numbers of the nodes that some observation sees."""
        self.observe_seen = csr_array(self.observe[:, self.seen])


class Columns:
    """A dense distributed matrix [J, S], and its rank's own part as an array [S, J_r] on the same memory."""

    def __init__(self, bases: Bases, count: int) -> None:
        from petsc4py import PETSc

        size = ((bases.num_local, PETSc.DETERMINE), (PETSc.DECIDE, count))
        self.matrix = PETSc.Mat().createDense(size, comm=bases.comm)
        self.matrix.setUp()
        self.matrix.zeroEntries()
        self.matrix.assemble()

    @property
    def values(self) -> FloatArray:
        array: FloatArray = self.matrix.getDenseArray().T
        return array


def run_forward(run: Run, initial: FloatArray | None) -> FloatArray:
    """What is observed, [S, N + 1, O_r], from initial [S, J_r]; keeps the states in the run if it has room for them."""
    stepper, bases = run.stepper, run.stepper.bases
    count = len(run.force)
    state, right, operand = (Columns(bases, count) for _ in range(3))
    images = [Columns(bases, count) for _ in bases.matrices]
    held = bases.fixed_values if run.driven else np.zeros(len(bases.fixed))
    if initial is not None:
        state.values[:] = initial
    state.values[:, bases.fixed] = held
    observed = np.empty((count, run.num_steps + 1, run.observe.shape[0]))
    push, scratch = (np.empty((count, bases.num_local)) for _ in range(2))
    constant = stepper.source - stepper.lift if run.driven else np.zeros(bases.num_local)
    for step in range(run.num_steps + 1):
        if step:
            forced = _force_sum(run.force, step - 1, push)
            total = right.values
            total[:] = constant
            for matrix, image, of_state, of_force in zip(
                bases.matrices, images, stepper.after, stepper.load, strict=True
            ):
                given = np.multiply(state.values, of_state, out=operand.values)
                if forced and of_force:
                    given += np.multiply(push, of_force, out=scratch)
                matrix.matMult(operand.matrix, image.matrix)
                total += image.values
            total[:, bases.fixed] = held
            stepper.solver.solve(right.matrix, state.matrix, transposed=False)
        if run.states is not None:
            run.states[step] = state.values
        observed[:, step] = (run.observe_seen @ state.values[:, run.seen].T).T
    _check_finite(bases, state.values)
    return observed


def run_adjoint(run: Run, weights: FloatArray) -> dict[str, FloatArray]:
    """Gradients of Σ weights · observed, weights [S, N + 1, O_r].

    initial: [S, J_r]; force: [S, K, J_r]; theta: [k], this rank's part of the sum.
    """
    stepper, bases = run.stepper, run.stepper.bases
    count, num_forced = run.force.shape[:2]
    right, multiplier = Columns(bases, count), Columns(bases, count)
    images = [Columns(bases, count) for _ in bases.matrices]
    by_force = np.zeros_like(run.force)
    # Σ_n ⟨Cᵀλ, y_n + y_{n+1}⟩ and ⟨Cᵀλ, f_n + f_{n+1}⟩ for each matrix C, and Σ_n λ for the source.
    with_states, with_forces = np.zeros(len(bases.matrices)), np.zeros(len(bases.matrices))
    multipliers = np.zeros(bases.num_local)
    push, pair, scratch = (np.empty((count, bases.num_local)) for _ in range(3))
    sensitivity = right.values
    _add_seen(run, weights, run.num_steps, sensitivity)
    for step in reversed(range(run.num_steps)):
        stepper.solver.solve(right.matrix, multiplier.matrix, transposed=True)
        multiplier.values[:, bases.fixed] = 0.0
        multipliers += multiplier.values.sum(axis=0)
        sensitivity = right.values
        sensitivity[:] = 0.0
        _add_seen(run, weights, step, sensitivity)
        forced = _force_sum(run.force, step, push)
        if run.states is not None:
            np.add(run.states[step], run.states[step + 1], out=pair)
        for i, (transposed, image) in enumerate(zip(bases.transposed, images, strict=True)):
            transposed.matMult(multiplier.matrix, image.matrix)
            values = image.values
            sensitivity += np.multiply(values, stepper.after[i], out=scratch)
            if run.states is not None:
                with_states[i] += np.vdot(values, pair)
            if forced:
                with_forces[i] += np.vdot(values, push)
                np.multiply(values, stepper.load[i], out=scratch)
                for time in range(step, min(step + 2, num_forced)):
                    by_force[:, time] += scratch
    sensitivity[:, bases.fixed] = 0.0
    _check_finite(bases, sensitivity)
    theta = 0.5 * stepper.dt * (bases.stiffness[1:] @ with_states + bases.load[1:] @ with_forces)
    if run.states is None:
        theta[:] = np.nan
    if run.driven:
        theta += stepper.dt * (bases.source[1:] @ multipliers)
    return {"theta": theta, "initial": sensitivity.copy(), "force": by_force}


def _force_sum(force: FloatArray, step: int, out: FloatArray) -> bool:
    """Put f_n + f_{n+1}, [S, J_r], into `out`; False if both are zero."""
    num_forced = force.shape[1]
    if step + 1 < num_forced:
        np.add(force[:, step], force[:, step + 1], out=out)
    elif step < num_forced:
        out[:] = force[:, step]
    return step < num_forced


def _add_seen(run: Run, weights: FloatArray, step: int, sensitivity: FloatArray) -> None:
    """Carry the weights of a time back to the nodes, [S, J_r]."""
    sensitivity[:, run.seen] += (run.observe_seen.T @ weights[:, step].T).T


def _check_finite(bases: Bases, values: FloatArray) -> None:
    """Collective, so that all ranks fail or none."""
    if not all(bases.comm.allgather(bool(np.isfinite(values).all()))):
        raise WorkError(
            "The partitioned solver found values that are not finite.",
            "Check the coefficients and forces, or take a smaller time step.",
        )
