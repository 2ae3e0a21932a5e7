"""Engines whose work is done in a helper group: PETSc on a divided mesh, and dolfin-adjoint for any weak form."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.solvers.fem.group.client import PartitionedSolver, RunId
from distlfm.solvers.fem.group.owner import Group, GroupHandle
from distlfm.solvers.fem.spec import pack_csr
from distlfm.solvers.field.engine import Engine, Inputs, TimeGrid
from distlfm.solvers.field.sparse import to_csr


class PetscEngine(Engine):
    """Large meshes: matrices and factors are distributed over the ranks of a group."""

    def __init__(self, solver: PartitionedSolver, names: tuple[str, ...]) -> None:
        self.solver, self.names, self.num_nodes = solver, names, solver.num_nodes

    def forward(
        self, given: Inputs, grid: TimeGrid, observe: Tensor, *, driven: bool, keep: bool
    ) -> tuple[Tensor, GroupHandle]:
        theta, initial, force = given
        looked, trajectories = to_csr(observe), []
        runs: list[RunId] = []
        held = GroupHandle(lambda: self.solver.drop(*runs), runs)  # also those before one that fails
        for a, values in enumerate(theta.tolist()):
            named = dict(zip(self.names, values, strict=True))
            start, pushed = initial[a].numpy(), force[a].numpy()
            observed, run = self.solver.forward(
                named, start, pushed, grid.dt, grid.steps, looked, driven=driven, keep_states=keep, scheme=grid.scheme
            )
            trajectories.append(observed)
            runs.append(run)
        return torch.from_numpy(np.stack(trajectories)), held

    def adjoint(self, saved: GroupHandle, weights: Tensor) -> Inputs:
        gradients = [self.solver.adjoint(run, weight.numpy()) for run, weight in zip(saved.name, weights, strict=True)]
        theta = np.array([[one.theta[name] for name in self.names] for one in gradients])
        initial, force = np.stack([one.initial for one in gradients]), np.stack([one.force for one in gradients])
        return Inputs(*map(torch.from_numpy, (theta, initial, force)))


class TapedEngine(Engine):
    """Any weak form, linear or not: one dolfin-adjoint tape a trajectory. A trajectory that fails is NaN.

    problem: kept as long as this engine, so that the group does not let it go.
    """

    def __init__(self, group: Group, key: str, names: tuple[str, ...], num_nodes: int, problem: GroupHandle) -> None:
        self.group, self.key, self.names, self.num_nodes, self.problem = group, key, names, num_nodes, problem

    def forward(
        self, given: Inputs, grid: TimeGrid, observe: Tensor, *, driven: bool, keep: bool
    ) -> tuple[Tensor, GroupHandle]:
        if not driven:
            raise UsageError("A recorded trajectory has no part that is linear in the force.", "Use driven=True.")
        arrays = {name: values.numpy() for name, values in given._asdict().items()}
        arrays |= pack_csr("observe", to_csr(observe))
        steps = {"dt": grid.dt, "num_steps": grid.steps, "scheme": vars(grid.scheme)}
        header = {"key": self.key, "keep": keep, **steps}
        self.group.revive()
        reply = self.group.call("taped_forward", header, arrays)[0]
        run, generation = int(reply.header["run"] or 0), self.group.generation

        def drop() -> None:
            if run and self.group.alive and self.group.generation == generation:
                self.group.later("taped_drop", {"key": self.key, "runs": [run]})

        return torch.from_numpy(np.array(reply.arrays["observed"])), GroupHandle(drop, (run, generation))

    def adjoint(self, saved: GroupHandle, weights: Tensor) -> Inputs:
        run, generation = saved.name
        self.group.check(generation)
        header = {"key": self.key, "run": run}
        clean = torch.nan_to_num(weights).contiguous().numpy()
        arrays = self.group.call("taped_adjoint", header, {"weights": clean})[0].arrays
        return Inputs(*(torch.from_numpy(np.array(arrays[name])) for name in Inputs._fields))
