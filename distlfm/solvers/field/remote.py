"""Engines whose work is done in a helper group: PETSc on a divided mesh, and dolfin-adjoint for any weak form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import DistlfmError, UsageError
from distlfm.solvers.fem.group.client import PartitionedSolver, RunId
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.fem.spec import Csr, pack_csr
from distlfm.solvers.field.engine import Engine, Sensitivities, TimeGrid


def to_csr(observe: Tensor) -> Csr:
    """A tensor [O, J], dense or sparse, in compressed rows."""
    entries = observe.to_sparse_coo().coalesce()
    rows, columns = entries.indices().numpy()
    shape = (int(observe.shape[0]), int(observe.shape[1]))
    counts = np.bincount(rows, minlength=shape[0])
    pointers = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return Csr(entries.values().numpy(), columns.astype(np.int64), pointers, shape)


class Held:
    """Something that a group keeps for the adjoint, dropped when nobody can ask for it any more."""

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop

    def __del__(self) -> None:
        with contextlib.suppress(DistlfmError, OSError):
            self._drop()


@dataclass(frozen=True)
class _PetscRuns:
    runs: list[RunId]
    held: Held


class PetscEngine(Engine):
    """Large meshes: matrices and factors are distributed over the ranks of a group."""

    def __init__(self, solver: PartitionedSolver, names: tuple[str, ...]) -> None:
        self.solver, self.names, self.num_nodes = solver, names, solver.num_nodes

    def forward(
        self,
        theta: Tensor,
        initial: Tensor,
        force: Tensor,
        grid: TimeGrid,
        observe: Tensor,
        *,
        driven: bool,
        keep: bool,
    ) -> tuple[Tensor, _PetscRuns]:
        looked, found = to_csr(observe), []
        runs: list[RunId] = []
        held = Held(lambda: self.solver.drop(*runs))  # also those before one that fails
        for a, values in enumerate(theta.tolist()):
            given = dict(zip(self.names, values, strict=True))
            start, pushed = initial[a].numpy(), force[a].numpy()
            observed, run = self.solver.forward(
                given, start, pushed, grid.dt, grid.steps, looked, driven=driven, keep_states=keep, scheme=grid.scheme
            )
            found.append(observed)
            runs.append(run)
        return torch.from_numpy(np.stack(found)), _PetscRuns(runs, held)

    def adjoint(self, saved: _PetscRuns, weights: Tensor) -> Sensitivities:
        found = [self.solver.adjoint(run, weight.numpy()) for run, weight in zip(saved.runs, weights, strict=True)]
        theta = np.array([[one.theta[name] for name in self.names] for one in found])
        return Sensitivities(
            torch.from_numpy(theta),
            torch.from_numpy(np.stack([one.initial for one in found])),
            torch.from_numpy(np.stack([one.force for one in found])),
        )


@dataclass(frozen=True)
class _Tape:
    run: int
    generation: int
    held: Held


class TapedEngine(Engine):
    """Any weak form, linear or not: one dolfin-adjoint tape a trajectory. A trajectory that fails is NaN.

    problem: kept as long as this engine, so that the group does not let it go.
    """

    def __init__(self, group: Group, key: str, names: tuple[str, ...], num_nodes: int, problem: Held) -> None:
        self.group, self.key, self.names, self.num_nodes, self.problem = group, key, names, num_nodes, problem

    def forward(
        self,
        theta: Tensor,
        initial: Tensor,
        force: Tensor,
        grid: TimeGrid,
        observe: Tensor,
        *,
        driven: bool,
        keep: bool,
    ) -> tuple[Tensor, _Tape]:
        if not driven:
            raise UsageError("A recorded trajectory has no part that is linear in the force.", "Use driven=True.")
        arrays = {
            "theta": theta.numpy(),
            "initial": initial.numpy(),
            "force": force.numpy(),
            **pack_csr("observe", to_csr(observe)),
        }
        steps = {"dt": grid.dt, "num_steps": grid.steps, "scheme": vars(grid.scheme)}
        header = {"key": self.key, "keep": keep, **steps}
        self.group.revive()
        reply = self.group.call("taped_forward", header, arrays)[0]
        run, generation = int(reply.header["run"] or 0), self.group.generation

        def drop() -> None:
            if run and self.group.alive and self.group.generation == generation:
                self.group.later("taped_drop", {"key": self.key, "runs": [run]})

        return torch.from_numpy(np.array(reply.arrays["observed"])), _Tape(run, generation, Held(drop))

    def adjoint(self, saved: _Tape, weights: Tensor) -> Sensitivities:
        self.group.check(saved.generation)
        header = {"key": self.key, "run": saved.run}
        clean = torch.nan_to_num(weights).contiguous().numpy()
        arrays = self.group.call("taped_adjoint", header, {"weights": clean})[0].arrays
        parts = (torch.from_numpy(np.array(arrays[name])) for name in ("theta", "initial", "force"))
        return Sensitivities(*parts)
