"""Solvers of one distributed matrix and many right-hand sides: a factor by MUMPS or PETSc, or Krylov with multigrid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from distlfm.errors import UsageError, WorkError

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
