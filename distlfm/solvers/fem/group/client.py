"""The fitting process's side of the partitioned path: whole arrays here, each rank's own nodes on the wire.

Shapes: `S` right-hand sides, `J` nodes in canonical order, `K` leading times at which the force is not zero, `N` steps,
`O` observations.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from distlfm.config import Config
from distlfm.equations.base import ProblemSpec
from distlfm.errors import UsageError
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.fem.group.wire import Array
from distlfm.solvers.fem.spec import Arrays, Csr, FloatArray, IntArray, pack_csr
from distlfm.solvers.field.scheme import CRANK_NICOLSON, Scheme

LARGEST_FACTORED = 200_000
"""Nodes; above, `auto` iterates where the matrix is symmetric: the memory of a factor grows faster than the mesh."""

_keys = itertools.count()


class LinearSolverConfig(Config):
    """How a time step's equations are solved.

    `mumps`: a factor, spread over the ranks. `petsc_lu`: a factor on one rank, faster there. `cg_amg`: conjugate
    gradients (GMRES, if the equation is not symmetric) with algebraic multigrid, to a residual of `tolerance` relative
    to the right-hand side. `auto`: petsc_lu on one rank, mumps on several; cg_amg for symmetric ones on large meshes.
    """

    kind: Literal["auto", "mumps", "petsc_lu", "cg_amg"] = "auto"
    tolerance: float = Field(default=1e-10, gt=0, lt=1)


@dataclass(frozen=True)
class RunId:
    """A forward solve that the group holds for its adjoint."""

    number: int
    generation: int
    rows: tuple[IntArray, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightedGradients:
    """Derivatives of a weighted sum of what was observed. theta: by name; initial: [S, J]; force: [S, K, J]."""

    theta: Mapping[str, float]
    initial: FloatArray
    force: FloatArray


class PartitionedSolver:
    """Trajectories of one affine problem, solved by the ranks of a group, which is started anew if it has died.

    The group forgets the problem when this object goes.
    """

    def __init__(self, group: Group, spec: ProblemSpec, solver: LinearSolverConfig | None = None) -> None:
        self._group, self._spec = group, spec
        self.linear = solver or LinearSolverConfig()
        self._key = f"partitioned-{next(_keys)}"
        weakref.finalize(self, group.later, "petsc_close", {"key": self._key}).atexit = False
        self._generation = -1
        self._settle()

    @property
    def num_nodes(self) -> int:
        return sum(len(owned) for owned in self._owned)

    @property
    def kind(self) -> str:
        """The linear solver that is used."""
        if self.linear.kind != "auto":
            return self.linear.kind
        if self.num_nodes > LARGEST_FACTORED and self.symmetric:
            return "cg_amg"
        return "petsc_lu" if self._group.ranks == 1 else "mumps"

    def forward(
        self,
        theta: Mapping[str, float],
        initial: FloatArray | None,
        force: FloatArray,
        dt: float,
        num_steps: int,
        observe: Csr,
        *,
        driven: bool = True,
        keep_states: bool = True,
        scheme: Scheme = CRANK_NICOLSON,
    ) -> tuple[FloatArray, RunId]:
        """Observed states [S, N + 1, O], and the run for `adjoint`.

        initial: [S, J], or None for zero; force: [S, K, J], K ≤ N + 1; observe: [O, J]. `driven=False` leaves out the
        source and takes zero at Dirichlet nodes. `keep_states=False` saves the memory of the whole trajectory, and
        the adjoint's gradient by theta is then NaN.
        """
        self._settle()
        self._check(theta, initial, force, dt, num_steps)
        if observe.shape[1] != self.num_nodes:
            raise UsageError(f"The observations are of {observe.shape[1]} nodes, not {self.num_nodes}.", "Give [O, J].")
        by_column = Csr(observe.astype(np.float64)).tocsc()
        rows: list[IntArray] = []
        arrays: list[Arrays] = []
        for owned in self._owned:
            part = Csr(by_column[:, owned])
            seen = np.flatnonzero(np.diff(part.indptr))
            rows.append(seen)
            own = {"force": np.take(force, owned, axis=2), **pack_csr("observe", Csr(part[seen]))}
            if initial is not None:
                own["initial"] = np.take(initial, owned, axis=1)
            arrays.append(own)
        header = {
            "key": self._key,
            "theta": {name: float(theta[name]) for name in self.names},
            "dt": float(dt),
            "num_steps": int(num_steps),
            "solver": {"kind": self.kind, "tolerance": self.linear.tolerance},
            "driven": driven,
            "keep_states": keep_states,
            "scheme": vars(scheme),
        }
        replies = self._group.call("petsc_forward", header, arrays)
        observed = np.zeros((len(force), num_steps + 1, observe.shape[0]))
        for seen, reply in zip(rows, replies, strict=True):
            observed[:, :, seen] += reply.arrays["observed"]
        return observed, RunId(int(replies[0].header["run"]), self._generation, tuple(rows), observed.shape)

    def adjoint(self, run: RunId, weights: FloatArray) -> WeightedGradients:
        """The gradients of Σ weights · observed, weights [S, N + 1, O]. The run can be used again, until `drop`."""
        self._group.check(run.generation)
        if weights.shape != run.shape:
            raise UsageError(
                f"The weights are {weights.shape}, and what was observed is {run.shape}.", "Give one each."
            )
        header = {"key": self._key, "run": run.number}
        replies = self._group.call("petsc_adjoint", header, [{"weights": weights[:, :, seen]} for seen in run.rows])
        theta = np.sum([reply.arrays["theta"] for reply in replies], axis=0)
        initial, force = (self._whole([reply.arrays[name] for reply in replies]) for name in ("initial", "force"))
        return WeightedGradients(dict(zip(self.names, map(float, theta), strict=True)), initial, force)

    def _whole(self, parts: list[Array]) -> FloatArray:
        """[…, J] from the ranks' parts [… , J_r]."""
        # To take in order is several times faster than to write out of order.
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        whole: FloatArray = np.take(joined, self._places, axis=-1)
        return whole

    def drop(self, *runs: RunId) -> None:
        """Let the group forget these forward solves, when it is next asked something. Safe in `__del__` too."""
        numbers = [run.number for run in runs if run.generation == self._group.generation]
        if numbers:
            self._group.later("petsc_drop", {"key": self._key, "runs": numbers})

    def close(self) -> None:
        """Let the group forget the problem and its factors."""
        if self._group.alive and self._generation == self._group.generation:
            self._group.call("petsc_close", {"key": self._key})
        self._generation = -1

    def _settle(self) -> None:
        """Put the problem on the ranks, also on those of a group that was, or has to be, started anew."""
        self._group.revive()
        if self._generation == self._group.generation:
            return
        header = {"key": self._key, "spec": self._spec.model_dump(mode="json")}
        replies = self._group.call("petsc_open", header)
        self.names: tuple[str, ...] = tuple(replies[0].header["names"])
        self.symmetric = bool(replies[0].header["symmetric"])
        self._owned: list[IntArray] = [np.asarray(reply.arrays["owned"]) for reply in replies]
        self._places = np.argsort(np.concatenate(self._owned))
        self._generation = self._group.generation

    def _check(
        self, theta: Mapping[str, float], initial: FloatArray | None, force: FloatArray, dt: float, num_steps: int
    ) -> None:
        if set(theta) != set(self.names) or not np.isfinite(list(theta.values())).all():
            raise UsageError(
                f"The coefficients are {dict(theta)}.", f"Give a finite number for each of {', '.join(self.names)}."
            )
        if not (np.isfinite(dt) and dt > 0 and num_steps >= 1):
            raise UsageError(f"{num_steps} steps of length {dt} cannot be made.", "Both must be positive.")
        if force.ndim != 3 or force.shape[2] != self.num_nodes or not 0 <= force.shape[1] <= num_steps + 1:
            raise UsageError(
                f"The force has the shape {force.shape}.",
                f"It is [S, K, {self.num_nodes}] with K at most {num_steps + 1} times.",
            )
        if initial is not None and initial.shape != (len(force), self.num_nodes):
            raise UsageError(
                f"The initial state has the shape {initial.shape}.", f"It is {(len(force), self.num_nodes)}."
            )
