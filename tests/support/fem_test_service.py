"""Verbs that only tests ask a helper group for, beside its own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from distlfm.errors import UsageError
from distlfm.solvers.fem.group.service import VERBS as OWN

Answer = tuple[Mapping[str, Any], Mapping[str, Any]]


def where(session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Answer:
    """Rank and size as MPI has them, and how often this was asked."""
    from mpi4py import MPI

    session["asked"] = session.get("asked", 0) + 1
    return {"rank": MPI.COMM_WORLD.rank, "size": MPI.COMM_WORLD.size, "asked": session["asked"]}, {}


def keep(session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Answer:
    session.setdefault("kept", []).append(header["what"])
    return {}, {}


def kept(session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Answer:
    return {"kept": session.get("kept", [])}, {}


def fail_on(session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Answer:
    """Fail on the ranks `who`, after which the others go on, or wait for all inside PETSc."""
    from mpi4py import MPI
    from petsc4py import PETSc

    MPI.COMM_WORLD.barrier()
    if MPI.COMM_WORLD.rank in header["who"]:
        raise UsageError("The answer is wrong.", "Give another.")
    if header.get("wait"):
        PETSc.Vec().createMPI(8, comm=MPI.COMM_WORLD).norm()
    return {}, {}


def wait_for_others(session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Answer:
    """Rank 0 sleeps; the others wait for it inside PETSc, where no Python runs."""
    from mpi4py import MPI
    from petsc4py import PETSc

    if MPI.COMM_WORLD.rank == 0:
        time.sleep(header["seconds"])
    PETSc.Vec().createMPI(8, comm=MPI.COMM_WORLD).norm()
    return {}, {}


def end(session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Answer:
    """The rank `who` says something and ends."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == header["who"]:
        os.write(2, b"out of ideas\n")
        os._exit(7)
    MPI.COMM_WORLD.barrier()
    return {}, {}


def operators(session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Answer:
    """The whole problem's operators as arrays, and the weights of some points."""
    from mpi4py import MPI

    from distlfm.equations.base import ProblemSpec
    from distlfm.solvers.fem.forms.discretise import discretise
    from distlfm.solvers.fem.forms.evaluate import interpolation
    from distlfm.solvers.fem.forms.operators import assemble_operators
    from distlfm.solvers.fem.spec import pack_csr, pack_operators

    problem = discretise(ProblemSpec.model_validate(header["spec"]), MPI.COMM_WORLD)
    observe = pack_csr("observe", interpolation(problem, arrays["points"]))
    return {}, pack_operators(assemble_operators(problem)) | observe


VERBS = {
    **OWN,
    "where": where,
    "keep": keep,
    "kept": kept,
    "fail_on": fail_on,
    "wait_for_others": wait_for_others,
    "end": end,
    "operators": operators,
}
