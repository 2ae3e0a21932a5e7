"""Probes of what starts MPI: dolfin, dolfin-adjoint, PETSc and mpirun. They import it in their own processes alone."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from types import ModuleType

from distlfm.doctor.probe import RANK, Finding, expect, load


def check_fenics() -> str:
    """Ask whether dolfin compiles and assembles a form."""
    dolfin = load("dolfin")
    dolfin.set_log_level(dolfin.LogLevel.ERROR)
    area = dolfin.assemble(dolfin.Constant(1.0) * dolfin.dx(dolfin.UnitSquareMesh(4, 4)))
    expect(abs(area - 1) < 1e-12, f"the unit square has area {area}")
    return f"dolfin {dolfin.__version__}"


def check_adjoint() -> str:
    """Ask whether dolfin-adjoint differentiates a form of the installed dolfin."""
    from distlfm.solvers.fem.forms.adjoint import import_adjoint

    adjoint = import_adjoint()
    dolfin = load("dolfin")
    dolfin.set_log_level(dolfin.LogLevel.ERROR)
    space = dolfin.FunctionSpace(adjoint.UnitIntervalMesh(2), "P", 1)
    force = adjoint.interpolate(adjoint.Constant(3.0), space)
    squared = adjoint.assemble(force * force * dolfin.dx)
    gradient = adjoint.compute_gradient(squared, adjoint.Control(force))
    # The derivative of ∫f² in the direction 1 is ∫2f.
    expect(abs(gradient.vector().sum() - 6) < 1e-12, "the gradient of a square is wrong")
    return f"dolfin-adjoint {importlib.metadata.version('dolfin-adjoint')}"


PARALLEL_FACTORISATIONS = ("mumps", "superlu_dist")
OTHER_PACKAGES = ("hypre", "ptscotch", "suitesparse")


def check_petsc() -> str:
    """Ask which PETSc it is, and which factorisations and preconditioners it brings."""
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


def check_mpi() -> str:
    """Ask whether mpirun starts two ranks that talk to each other."""
    launcher = shutil.which("mpirun")
    if launcher is None:
        raise Finding("missing", "mpirun is not on the PATH")
    load("mpi4py")
    command = [launcher, "-n", "2", sys.executable, "-P", "-m", "distlfm.doctor.probe", RANK]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise Finding("broken", f"mpirun: {_complaint(finished.stderr)}")
    reports = [line.split(";") for line in finished.stdout.splitlines() if line.count(";") == 2]
    if [report[:2] for report in reports] != [["2", "3"]]:
        seen = ", ".join(report[0] for report in reports)
        raise Finding("broken", f"2 ranks saw worlds of size {seen}: mpirun and mpi4py belong to different MPIs")
    return f"2 ranks under {reports[0][2]}"


def _complaint(stderr: str) -> str:
    """The last line of what a rank said, before mpirun's own boxes; else the first line in a box."""
    words, *boxes = re.split(r"-{20,}", stderr)
    lines = words.strip().splitlines()[-1:] or [line for box in boxes for line in box.strip().splitlines()]
    return lines[0] if lines else "ended without a word"


def run_mpi_rank() -> None:
    """Be one of the two ranks that `check_mpi` starts: sum the ranks, and let the first say what it saw."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    total = world.allreduce(world.Get_rank() + 1)
    if world.Get_rank() == 0:
        library = MPI.Get_library_version().partition(",")[0].strip()
        sys.stdout.write(f"{world.Get_size()};{total};{library}\n")
