"""Large meshes: a solve and its gradient against dolfin-adjoint's own, and the memory of a rank when there are two.

The module is also the service of the helper group that times dolfin-adjoint: nothing but that group imports dolfin.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.goals import at_least, at_most
from distlfm.equations.base import EquationRef, MeshConfig, ProblemSpec
from distlfm.solvers.fem.group.client import LinearSolverConfig, PartitionedSolver
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.field.engine import TimeGrid, solve
from distlfm.solvers.field.meshed import Meshed, close_helper_groups

THETA = {"sensitivity": 1.0, "decay": 0.3, "diffusion": 0.03}
DT = 0.02
NUM_OBSERVED = 100
TAPED_STEPS = 4


def run(quick: bool = False) -> dict[str, Any]:
    speed_cells, memory_cells = (64, 256) if quick else (256, 1024)
    taped = taped_seconds(speed_cells)
    ours = {kind: partitioned_seconds(speed_cells, kind) for kind in ("petsc_lu", "mumps")}
    peaks = {ranks: peak_bytes(memory_cells, ranks) for ranks in (1, 2)}
    best = min(ours, key=lambda kind: sum(ours[kind].values()))
    ratio = sum(taped.values()) / sum(ours[best].values())
    figures = {
        f"{speed_cells}×{speed_cells} P1, forward and adjoint of a right-hand side and step, {best} against "
        "dolfin-adjoint": at_least(ratio, 60),
        f"{memory_cells}×{memory_cells} P1, cg_amg, peak memory a rank, two ranks over one": at_most(
            max(peaks[2]) / max(peaks[1]), 0.70
        ),
    }
    return {
        "figures": figures,
        "processor seconds a right-hand side and step, transport and factor included": {
            "dolfin-adjoint": taped,
            **ours,
        },
        "peak memory of each rank, MB": {ranks: [peak / 2**20 for peak in found] for ranks, found in peaks.items()},
    }


def reaction_diffusion(cells: int) -> ProblemSpec:
    return ProblemSpec(
        equation=EquationRef(module="distlfm.equations.reaction_diffusion", name="ReactionDiffusion"),
        mesh=MeshConfig(kind="rectangle", lower=(0, 0), upper=(1, 1), size=1 / cells),
    )


def partitioned_seconds(
    cells: int, kind: Any, *, ranks: int = 1, num_right: int = 16, num_steps: int = 20
) -> dict[str, float]:
    """Processor seconds a step and right-hand side, forward (with the factor, made once a trajectory) and adjoint.

    Those of the ranks and of this process, which sends and receives all forces.
    """
    with Group.start(ranks) as group:
        solver = PartitionedSolver(group, reaction_diffusion(cells), LinearSolverConfig(kind=kind))
        random = np.random.default_rng(0)
        force = random.normal(size=(num_right, num_steps + 1, solver.num_nodes))
        weights = random.normal(size=(num_right, num_steps + 1, NUM_OBSERVED))
        observe = some_nodes(solver.num_nodes)
        found: list[dict[str, float]] = []
        # A fit does hundreds of these: the first, which also pays for fresh memory, is not counted.
        for decay in (0.5, 0.4, 0.3):
            start = used(group)
            _, run_id = solver.forward({**THETA, "decay": decay}, None, force, DT, num_steps, observe)
            middle = used(group)
            solver.adjoint(run_id, weights)
            found.append({"forward": middle - start, "adjoint": used(group) - middle})
            solver.drop(run_id)
    best = min(found[1:], key=lambda one: sum(one.values()))
    return {name: seconds / (num_steps * num_right) for name, seconds in best.items()}


def peak_bytes(cells: int, ranks: int, kind: Any = "cg_amg", num_steps: int = 2) -> list[int]:
    """The most memory that each rank held while it opened the field as a fit does, solved it and solved back."""
    close_helper_groups()
    field = Meshed(reaction_diffusion(cells), "petsc", ranks, LinearSolverConfig(kind=kind, tolerance=1e-8))
    shape = (1, 1, num_steps + 1, len(field.nodes))
    forces = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    theta = torch.tensor([[THETA[name] for name in field.names]], dtype=torch.float64)
    start = torch.zeros(1, 1, len(field.nodes), dtype=torch.float64)
    places = np.random.default_rng(0).uniform(size=(NUM_OBSERVED, 2))
    seen = field.observe(places)
    solve(field.engine, theta, start, forces, TimeGrid(0.0, DT, num_steps), seen).sum().backward()
    peaks = [int(reply.header["peak_bytes"]) for reply in field.group.call("usage")]
    del field
    close_helper_groups()
    return peaks


def used(group: Group) -> float:
    """Processor seconds so far: elapsed time would count what else the machine does."""
    return time.process_time() + sum(float(reply.header["processor_seconds"]) for reply in group.call("usage"))


def some_nodes(num_nodes: int) -> csr_array[Any]:
    columns = np.linspace(0, num_nodes - 1, NUM_OBSERVED).astype(np.int64)
    return csr_array((np.ones(NUM_OBSERVED), (np.arange(NUM_OBSERVED), columns)), shape=(NUM_OBSERVED, num_nodes))


def taped_seconds(cells: int) -> dict[str, float]:
    """Processor seconds a step of dolfin-adjoint's `solve`, which assembles and factors each time, and back."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with Group.start(1, service="benchmarks.pde_mesh", environment=environment) as group:
        group.call("taped", {"cells": 8, "num_steps": 3})  # forms are compiled before time is taken
        found = [group.call("taped", {"cells": cells, "num_steps": TAPED_STEPS})[0].header for _ in range(2)]
    best = min(found, key=lambda one: float(one["forward"] + one["adjoint"]))
    return {name: best[name] / TAPED_STEPS for name in ("forward", "adjoint")}


def _taped(
    session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Crank–Nicolson with a force a time, the integral of the last state squared, and its gradient by all forces."""
    del session, arrays
    from distlfm.solvers.fem.forms.adjoint import import_adjoint

    adjoint = import_adjoint()
    import dolfin
    import pyadjoint

    dolfin.set_log_level(dolfin.LogLevel.ERROR)
    pyadjoint.get_working_tape().clear_tape()
    mesh = adjoint.UnitSquareMesh(header["cells"], header["cells"])
    space = dolfin.FunctionSpace(mesh, "P", 1)
    trial, test = dolfin.TrialFunction(space), dolfin.TestFunction(space)
    sensitivity, decay, diffusion = (adjoint.Constant(value) for value in THETA.values())
    before, after = adjoint.Function(space), adjoint.Function(space)
    forces = [adjoint.Function(space) for _ in range(header["num_steps"] + 1)]
    for force in forces:
        force.vector()[:] = 1.0

    def rate(y: Any) -> Any:
        return (-decay * y * test - diffusion * dolfin.inner(dolfin.grad(y), dolfin.grad(test))) * dolfin.dx

    start = time.process_time()
    for one, other in itertools.pairwise(forces):
        left = trial * test * dolfin.dx - DT / 2 * rate(trial)
        right = before * test * dolfin.dx + DT / 2 * rate(before)
        right += DT / 2 * sensitivity * (one + other) * test * dolfin.dx
        adjoint.solve(left == right, after)
        before.assign(after)
    functional = adjoint.assemble(after * after * dolfin.dx)
    middle = time.process_time()
    adjoint.compute_gradient(functional, [adjoint.Control(force) for force in forces])
    return {"forward": middle - start, "adjoint": time.process_time() - middle}, {}


VERBS = {"taped": _taped}
