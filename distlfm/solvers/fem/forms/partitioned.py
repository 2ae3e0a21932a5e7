"""Trajectories on a mesh that is spread over ranks, and their discrete adjoint. Runs in helper groups.

Steps are those of a scheme (`solvers/field/scheme.py`), with y held at its value on Dirichlet nodes. Those rows of the
left-hand matrix are rows of the identity, and the columns are lifted to the right, so that a symmetric matrix stays
one. The matrix is factored once for a value of coefficients and step, by MUMPS or PETSc, or solved by Krylov with
multigrid; all right-hand sides are solved at once.

Arrays hold the rank's own nodes, `J_r` of them. `S` right-hand sides, `K` leading times with a force, `O_r`
observations that see these nodes, `N` steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distlfm.errors import UsageError, WorkError
from distlfm.solvers.fem.forms.operators import Bases, at_coefficients
from distlfm.solvers.fem.spec import FloatArray
from distlfm.solvers.field.scheme import Scheme, Step, sweep, sweep_back

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
            _by_columns(self._factor.solveTranspose, right, solution, "w")


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

        def solve(given: Any, found: Any) -> None:
            ksp.solve(given, found)
            if ksp.getConvergedReason() <= 0:
                raise WorkError(
                    f"The iterative solver stopped at a residual of {ksp.getResidualNorm():.2g} after "
                    f"{ksp.getIterationNumber()} iterations.",
                    "Raise mechanism.linear_tolerance, lower mechanism.step, or set mechanism.linear_solver=mumps.",
                )

        _by_columns(solve, right, solution, "rw")


def _by_columns(solve: Callable[[Any, Any], None], right: Any, solution: Any, mode: str) -> None:
    """Solve for one column after the other; mode: how those of the solution are used."""
    for column in range(right.getSize()[1]):
        given, found = right.getDenseColumnVec(column, "r"), solution.getDenseColumnVec(column, mode)
        try:
            solve(given, found)
        finally:
            solution.restoreDenseColumnVec(column, mode)
            right.restoreDenseColumnVec(column, "r")


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


class PartitionedStepper:
    """One step of the scheme at given coefficients, forward and backward."""

    def __init__(
        self, bases: Bases, theta: Mapping[str, float], dt: float, kind: str, tolerance: float, scheme: Scheme
    ) -> None:
        self.bases, self.dt, self.scheme = bases, dt, scheme
        stiffness = at_coefficients(bases.stiffness, theta, bases.names)
        self.right = scheme.right(bases.mass, stiffness, dt)
        self.load = dt * at_coefficients(bases.load, theta, bases.names)
        self.source = dt * at_coefficients(bases.source, theta, bases.names)
        left = scheme.left(bases.mass, stiffness, dt)
        matrix = _combined(bases.matrices, left)
        held = matrix.createVecRight()
        values = held.getArray()
        values[bases.fixed] = bases.fixed_values
        held.setArray(values)
        self.lift = (matrix * held).getArray().copy()
        first, _ = matrix.getOwnershipRange()
        matrix.zeroRowsColumns((first + bases.fixed).astype(np.int32), diag=1.0)
        symmetric = all(
            one is other or weight == 0
            for one, other, weight in zip(bases.matrices, bases.transposed, left, strict=True)
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
class ForwardRun:
    """A forward solve that waits for its adjoint. states: [N + 1, S, J_r], None if no gradient by theta is wanted.

    mixed: [S, P, J_r], the force that each of the leading steps takes; num_forced: K, the times that it is given at.
    """

    stepper: PartitionedStepper
    mixed: FloatArray
    num_forced: int
    states: FloatArray | None
    observe: csr_array[Any]
    driven: bool
    num_steps: int

    def __post_init__(self) -> None:
        self.seen = np.unique(self.observe.indices)
        """Local numbers of the nodes that some observation sees."""
        self.observe_seen = csr_array(self.observe[:, self.seen])


class DistributedColumns:
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


def run_forward(run: ForwardRun, initial: FloatArray | None) -> FloatArray:
    """What is observed, [S, N + 1, O_r], from initial [S, J_r]; keeps the states in the run if it has room for them."""
    stepper, bases = run.stepper, run.stepper.bases
    count = len(run.mixed)
    state, right, operand = (DistributedColumns(bases, count) for _ in range(3))
    images = [DistributedColumns(bases, count) for _ in bases.matrices]
    held = bases.fixed_values if run.driven else np.zeros(len(bases.fixed))
    if initial is not None:
        state.values[:] = initial
    state.values[:, bases.fixed] = held
    observed = np.empty((count, run.num_steps + 1, run.observe.shape[0]))
    scratch = np.empty((count, bases.num_local))
    constant = stepper.source - stepper.lift if run.driven else np.zeros(bases.num_local)

    def advance(state: DistributedColumns, push: FloatArray | None) -> DistributedColumns:
        """Overwrite the state, from which an iterative solver begins; one product takes state and force together."""
        total = right.values
        total[:] = constant
        for matrix, image, of_state, of_force in zip(bases.matrices, images, stepper.right, stepper.load, strict=True):
            given = np.multiply(state.values, of_state, out=operand.values)
            if push is not None and of_force:
                given += np.multiply(push, of_force, out=scratch)
            matrix.matMult(operand.matrix, image.matrix)
            total += image.values
        total[:, bases.fixed] = held
        stepper.solver.solve(right.matrix, state.matrix, transposed=False)
        return state

    pushes = [*run.mixed.swapaxes(0, 1), *[None] * (run.num_steps - run.mixed.shape[1])]
    for n, now in enumerate(sweep([advance] * run.num_steps, state, pushes)):
        if run.states is not None:
            run.states[n] = now.values
        observed[:, n] = (run.observe_seen @ now.values[:, run.seen].T).T
    _check_finite(bases, state.values)
    return observed


def run_adjoint(run: ForwardRun, weights: FloatArray) -> dict[str, FloatArray]:
    """Gradients of Σ weights · observed, weights [S, N + 1, O_r].

    initial: [S, J_r]; force: [S, K, J_r]; theta: [k], this rank's part of the sum.
    """
    stepper, bases, scheme = run.stepper, run.stepper.bases, run.stepper.scheme
    side, dual, *images = (DistributedColumns(bases, len(run.mixed)) for _ in range(2 + len(bases.matrices)))
    pushed = np.zeros_like(run.mixed)
    # Σ_n ⟨Cᵀλ, y⟩ and ⟨Cᵀλ, f⟩ for each matrix C, with what each step takes for y and f, and Σ_n λ for the source.
    with_states, with_forces = np.zeros(len(bases.matrices)), np.zeros(len(bases.matrices))
    multipliers = np.zeros(bases.num_local)

    def solve(right: FloatArray) -> FloatArray:
        """Leaves in the images what the transposed matrices make of the multiplier."""
        side.values[:] = right
        stepper.solver.solve(side.matrix, dual.matrix, transposed=True)
        dual.values[:, bases.fixed] = 0.0
        for transposed, image in zip(bases.transposed, images, strict=True):
            transposed.matMult(dual.matrix, image.matrix)
        return dual.values

    def combined(weights: FloatArray) -> FloatArray:
        return np.asarray(sum(weight * image.values for weight, image in zip(weights, images, strict=True)))

    def visit(n: int, multiplier: FloatArray) -> None:
        multipliers[:] += multiplier.sum(axis=0)
        if run.states is not None:
            state = scheme.between(run.states[n], run.states[n + 1])
            with_states[:] += [np.vdot(image.values, state) for image in images]
        if n < run.mixed.shape[1]:
            with_forces[:] += [np.vdot(image.values, run.mixed[:, n]) for image in images]
            pushed[:, n] = combined(stepper.load)

    def pull(n: int) -> FloatArray:
        """The weights of one time, carried back to the nodes [S, J_r]."""
        observed_gradient = np.zeros((len(weights), bases.num_local))
        observed_gradient[:, run.seen] = (run.observe_seen.T @ weights[:, n].T).T
        return observed_gradient

    back = Step(solve, lambda _: combined(stepper.right))
    gradient = sweep_back([back] * run.num_steps, map(pull, range(run.num_steps, -1, -1)), visit)
    gradient[:, bases.fixed] = 0.0
    _check_finite(bases, gradient)
    theta = stepper.dt * (bases.stiffness[1:] @ with_states + bases.load[1:] @ with_forces)
    if run.states is None:
        theta[:] = np.nan
    if run.driven:
        theta += stepper.dt * (bases.source[1:] @ multipliers)
    force = np.zeros((len(pushed), run.num_forced, bases.num_local))
    return {"theta": theta, "initial": gradient, "force": scheme.mix_transposed(pushed, force)}


def _check_finite(bases: Bases, values: FloatArray) -> None:
    """Collective, so that all ranks fail or none."""
    if not all(bases.comm.allgather(bool(np.isfinite(values).all()))):
        raise WorkError(
            "The partitioned solver found values that are not finite.",
            "Check the coefficients and forces, or take a smaller time step.",
        )
