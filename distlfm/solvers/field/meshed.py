"""A field on a mesh, ready to be solved: nodes, an engine, and the operator that looks at the field anywhere.

Where FEniCS made the mesh, the helper group assembles once, and the engine follows from the mesh's size.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import weakref
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from distlfm.equations.base import MeshConfig, ProblemSpec
from distlfm.errors import UsageError
from distlfm.solvers.fem.group.client import LinearSolverConfig, PartitionedSolver
from distlfm.solvers.fem.group.owner import Group, GroupHandle
from distlfm.solvers.fem.spec import Csr, FloatArray, IntArray, split, unpack_csr, unpack_operators
from distlfm.solvers.field.dense import DenseEngine
from distlfm.solvers.field.engine import Engine
from distlfm.solvers.field.remote import PetscEngine, TapedEngine
from distlfm.solvers.field.sparse import SparseEngine


class Discretised(ABC):
    """nodes: [J, d]; cells: [C, d + 1]; affine: whether the equation is linear in state and force."""

    nodes: FloatArray
    cells: IntArray
    engine: Engine
    affine: bool
    reason: str

    @abstractmethod
    def weights(self, places: FloatArray) -> Csr:
        """The operator [O, J] that takes nodal values to places [O, d]."""

    def observe(self, places: FloatArray) -> Tensor:
        """`weights` as a tensor: sparse where the mesh is not small."""
        matrix = self.weights(places)
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        index = torch.from_numpy(np.stack([rows, matrix.indices]))
        tensor = torch.sparse_coo_tensor(index, torch.from_numpy(matrix.data), matrix.shape, check_invariants=True)
        return tensor.coalesce()


DENSE_NODES = 250
"""Up to this many nodes a product with a dense matrix beats a sparse solve, and many parameter values share it."""

SPARSE_NODES = 60_000
"""Up to this many nodes a factor fits in the fitting process."""

Solver = Literal["auto", "dense", "sparse", "petsc", "taped"]

_keys = itertools.count()
_groups: dict[int, Group] = {}
_in_use: weakref.WeakValueDictionary[tuple[object, ...], Meshed] = weakref.WeakValueDictionary()
"""Problems that somebody holds, also after the cache has let go of them."""


def helper_group(ranks: int) -> Group:
    """This process's helper group of `ranks` ranks, started when first asked for, and anew if it has died."""
    if ranks not in _groups:
        _groups[ranks] = Group.start(ranks)
        _groups[ranks].before_restart = _forget_unused
    _groups[ranks].revive()
    return _groups[ranks]


def _forget_unused() -> None:
    meshed.cache_clear()
    gc.collect()  # an error that was caught may hold a problem in a cycle


def close_helper_groups() -> None:
    """End all helper groups of this process; they start again when needed."""
    meshed.cache_clear()
    for ranks, group in list(_groups.items()):
        group.close()
        if not group.holds:  # otherwise somebody has a field of it, which must come back with the group
            del _groups[ranks]


class Meshed(Discretised):
    """A problem opened in a helper group. Its matrices are fetched if an engine of this process works with them.

    The group forgets the problem when neither this object nor its engine is there any more.
    """

    def __init__(self, spec: ProblemSpec, solver: Solver, ranks: int, linear: LinearSolverConfig) -> None:
        self.spec, self.ranks = spec, ranks
        self.key = f"field-{next(_keys)}"
        group = self.group
        header = {"key": self.key, "spec": spec.model_dump(mode="json")}
        opened = group.call("open", header, remember=True)[0]
        self._held = GroupHandle(functools.partial(_let_go, group, self.key))
        self.nodes, self.cells = np.array(opened.arrays["nodes"]), np.array(opened.arrays["cells"])
        self.fixed, self.fixed_values = np.array(opened.arrays["fixed"]), np.array(opened.arrays["fixed_values"])
        self.names = tuple(str(name) for name in opened.header["coefficients"])
        self.affine, self.reason = bool(opened.header["affine"]), str(opened.header["reason"])
        self.kind = self._choose(solver)
        self.engine: Engine = self._build(linear)
        self._weights: dict[bytes, Csr] = {}

    @property
    def group(self) -> Group:
        """The helper group that holds the mesh."""
        return helper_group(self.ranks)

    def _choose(self, solver: Solver) -> Solver:
        if solver == "auto":
            if not self.affine:
                return "taped"
            if self.ranks > 1 or len(self.nodes) > SPARSE_NODES:
                return "petsc"
            return "dense" if len(self.nodes) <= DENSE_NODES else "sparse"
        if not self.affine and solver != "taped":
            raise UsageError(
                f"The solver {solver!r} needs an equation that is linear, and this one is not: {self.reason}",
                "Use mechanism.solver=taped, or auto.",
            )
        return solver

    def _build(self, linear: LinearSolverConfig) -> Engine:
        group = self.group
        if self.kind == "taped":
            return TapedEngine(group, self.key, self.names, len(self.nodes), self._held)
        if self.kind == "petsc":
            return PetscEngine(PartitionedSolver(group, self.spec, linear), self.names)
        system = split(unpack_operators(group.call("assemble", {"key": self.key})[0].arrays), self.names)
        return DenseEngine(system) if self.kind == "dense" else SparseEngine(system)

    def weights(self, places: FloatArray) -> Csr:
        name = hashlib.sha256(np.ascontiguousarray(places).tobytes()).digest()
        if name not in self._weights:
            reply = self.group.call("interpolate", {"key": self.key}, {"points": places})[0]
            if len(self._weights) >= 8:
                self._weights.pop(next(iter(self._weights)))
            self._weights[name] = unpack_csr("matrix", reply.arrays)
        return self._weights[name]


def count_nodes(mesh: MeshConfig, degree: int) -> int:
    """Nodes of a mesh from a file, as a helper process reads it."""
    header = {"mesh": mesh.model_dump(mode="json"), "degree": degree}
    return int(helper_group(1).call("count", header)[0].header["num_nodes"])


def _let_go(group: Group, key: str) -> None:
    group.forget(key)
    group.later("close", {"key": key})


@functools.lru_cache(maxsize=16)
def meshed(
    spec_json: str, solver: Solver, ranks: int, linear: str, tolerance: float = LinearSolverConfig().tolerance
) -> Meshed:
    """Return the cached discretised problem for a spec."""
    name = (spec_json, solver, ranks, linear, tolerance)
    problem = _in_use.get(name)
    if problem is None:
        settings = LinearSolverConfig.model_validate({"kind": linear, "tolerance": tolerance})
        problem = _in_use[name] = Meshed(ProblemSpec.model_validate_json(spec_json), solver, ranks, settings)
    return problem
