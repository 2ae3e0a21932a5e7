"""Which PETSc is it, and which factorisations and preconditioners does it bring?"""

from __future__ import annotations

from types import ModuleType

from distlfm.pipeline.probes.answer import Finding, expect, load, reply

PARALLEL_FACTORISATIONS = ("mumps", "superlu_dist")
OTHER_PACKAGES = ("hypre", "ptscotch", "suitesparse")


def check() -> str:
    petsc = load("petsc4py.PETSc")
    version = ".".join(str(part) for part in petsc.Sys.getVersion())
    present = [name for name in PARALLEL_FACTORISATIONS + OTHER_PACKAGES if petsc.Sys.hasExternalPackage(name)]
    if not set(present) & set(PARALLEL_FACTORISATIONS):
        wanted = " or ".join(PARALLEL_FACTORISATIONS)
        raise Finding("broken", f"PETSc {version} lacks {wanted}: partitioned meshes cannot be solved")
    for name in set(present) & set(PARALLEL_FACTORISATIONS):
        _factorise(petsc, name)
    return f"PETSc {version} with {', '.join(present)}"


def _factorise(petsc: ModuleType, package: str) -> None:
    """Solve 2 x = 4 with it: a library that is listed may still not load."""
    matrix = petsc.Mat().createAIJ([1, 1])
    matrix.setUp()
    matrix.setValue(0, 0, 2.0)
    matrix.assemble()
    solver = petsc.KSP().create()
    solver.setOperators(matrix)
    solver.setType("preonly")
    solver.getPC().setType("lu")
    solver.getPC().setFactorSolverType(package)
    solution, right = matrix.createVecs()
    right.set(4.0)
    solver.solve(right, solution)
    expect(abs(solution.getValue(0) - 2) < 1e-12, f"{package} solves 2 x = 4 wrongly")


if __name__ == "__main__":
    reply(check)
