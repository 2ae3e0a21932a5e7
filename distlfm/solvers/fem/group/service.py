"""What a helper group can be asked: verbs of a session, a header (JSON) and named arrays, answered by the same.

All ranks get the same request, and all of them answer; of arrays that every rank has, rank 0 alone sends them. Verbs
`petsc_` are of a mesh that is spread over the ranks: arrays hold the rank's own nodes, in the order of `owned`, which
`petsc_open` gives: `J_r` of them. `S` right-hand sides, `K` leading times with a force, `O_r` observations that see
these nodes, `N` steps.

Between requests a rank holds problems, of two kinds, by their keys.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from distlfm.equations.base import ProblemSpec
from distlfm.errors import UsageError, WorkError
from distlfm.solvers.fem.forms.collective import on_root, on_root_concatenated
from distlfm.solvers.fem.forms.discretise import Discretisation, discretise
from distlfm.solvers.fem.forms.evaluate import FormDerivatives, interpolation
from distlfm.solvers.fem.forms.mesh_files import count_nodes, read_mesh
from distlfm.solvers.fem.forms.operators import Bases, assemble_operators, fixed_nodes, joined_cells, reduce_operators
from distlfm.solvers.fem.forms.partitioned import ForwardRun, PartitionedStepper, run_adjoint, run_forward
from distlfm.solvers.fem.forms.steppers import CachedStepper
from distlfm.solvers.fem.forms.taped import TapedTrajectory
from distlfm.solvers.fem.spec import pack_csr, pack_operators, unpack_csr
from distlfm.solvers.field.scheme import Scheme, scheme_in

Session = dict[str, Any]
"""Lasts as long as the rank."""
Header = Mapping[str, Any]
Arrays = Mapping[str, Any]
Answer = tuple[Header, Arrays]
Verb = Callable[[Session, Header, Arrays], Answer]
Opened = TypeVar("Opened")

WHOLE, PARTITIONED = "fem", "petsc"
"""Problems that every rank knows all of, and those of which each has its part."""


def held(session: Session, kind: str, header: Header, of: type[Opened]) -> Opened:
    """The problem of the header's key."""
    problems = session.get(kind, {})
    if header["key"] not in problems:
        raise UsageError(f"The helper group holds no problem {header['key']!r}.", "Open it first.")
    problem = problems[header["key"]]
    assert isinstance(problem, of)
    return problem


def forget(kind: str, session: Session, header: Header, _: Arrays) -> Answer:
    """`close` and `petsc_close` {key}: let a problem go with all that belongs to it."""
    session.get(kind, {}).pop(header["key"], None)
    gc.collect()  # now, on all ranks alike
    return {}, {}


@dataclass
class Recording:
    """Trajectories that wait for their adjoint: [A][S], None for those that failed."""

    trajectories: list[list[TapedTrajectory | None]]
    num_forced: int


@dataclass
class OpenProblem:
    """What a rank holds of one problem."""

    discretisation: Discretisation
    steppers: dict[Scheme, CachedStepper] = field(default_factory=dict)
    derivatives: FormDerivatives | None = None
    recordings: dict[int, Recording] = field(default_factory=dict)
    num_recordings: int = 0


def open_problem(session: Session, header: Header, _: Arrays) -> Answer:
    """`open` {key, spec}: put a problem on its mesh and keep it under the key.

    Answers {affine, reason, coefficients} and nodes [J, d], cells [C, d + 1], fixed [F], fixed_values [F].
    """
    from mpi4py import MPI

    try:
        spec = ProblemSpec.model_validate(header["spec"])
    except ValidationError as error:
        raise UsageError(f"The problem cannot be read: {error.errors()[0]['msg']}.") from None
    d = discretise(spec, MPI.COMM_WORLD)
    session.setdefault(WHOLE, {})[header["key"]] = OpenProblem(d)
    about = {"affine": d.affine, "reason": d.reason, "coefficients": list(d.coefficients)}
    return about, _from_root(d, {"nodes": d.nodes, "cells": joined_cells(d, on_root_concatenated), **fixed_nodes(d)})


def count_mesh(_session: Session, header: Header, _: Arrays) -> Answer:
    """`count` {mesh, degree}: the number of nodes {num_nodes} that a mesh from a file has. Nothing is kept."""
    from mpi4py import MPI

    path = Path(header["mesh"]["path"])
    return {"num_nodes": on_root(MPI.COMM_WORLD, lambda: count_nodes(read_mesh(path), header["degree"]))}, {}


def assemble(session: Session, header: Header, _: Arrays) -> Answer:
    """`assemble` {key}: the operators of an affine problem, to be unpacked by `unpack_operators`."""
    d = held(session, WHOLE, header, OpenProblem).discretisation
    return {}, _from_root(d, pack_operators(assemble_operators(d)))


def interpolate(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`interpolate` {key} with points [O, d]: the matrix [O, J], to be unpacked by `unpack_csr("matrix", …)`."""
    d = held(session, WHOLE, header, OpenProblem).discretisation
    return {}, _from_root(d, pack_csr("matrix", interpolation(d, arrays["points"])))


def taped_forward(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`taped_forward` {key, dt, num_steps, keep, scheme}: record trajectories of any weak form.

    Arrays: theta [A, k] in the order of `coefficients`; initial [A, S, J]; force [A, S, K, J] at the leading K times;
    the observation operator [O, J] packed as `observe`, or nothing to get all nodes.
    Answers {run, failures} and observed [A, S, N + 1, O]. A failed trajectory is not a number there, stops no other,
    and is in `failures` as {index: [a, s], cause, fix}. Without `keep` no tape is kept, and `run` is None.
    """
    problem = held(session, WHOLE, header, OpenProblem)
    d = problem.discretisation
    scheme, keep = scheme_in(header), header.get("keep", True)
    if scheme not in problem.steppers:
        problem.steppers[scheme] = CachedStepper(d, scheme)
    stepper = problem.steppers[scheme]
    theta, initial, force = (np.asarray(arrays[name], dtype=np.float64) for name in ("theta", "initial", "force"))
    num_steps, dt = int(header["num_steps"]), float(header["dt"])
    observe = unpack_csr("observe", arrays) if "observe/data" in arrays else None
    num_observed = d.num_nodes if observe is None else observe.shape[0]
    _check_shapes(d, theta, initial, force, num_steps, dt)
    observed = np.full((*initial.shape[:2], num_steps + 1, num_observed), np.nan)
    recorded: list[list[TapedTrajectory | None]] = []
    failures: list[dict[str, Any]] = []
    for a, values in enumerate(theta):
        recorded.append([])
        for s in range(initial.shape[1]):
            trajectory = TapedTrajectory(stepper)
            try:
                given = dict(zip(d.coefficients, values.tolist(), strict=True))
                observed[a, s] = trajectory.forward(given, initial[a, s], force[a, s], dt, num_steps, observe)
                recorded[a].append(trajectory)
            except WorkError as error:
                failures.append({"index": [a, s], "cause": error.cause, "fix": error.fix})
                recorded[a].append(None)
            if not keep:
                trajectory.clear()
    run = None
    if keep:
        problem.num_recordings += 1
        run = problem.num_recordings
        problem.recordings[run] = Recording(recorded, force.shape[2])
    return {"run": run, "failures": failures}, _from_root(d, {"observed": observed})


def taped_adjoint(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`taped_adjoint` {key, run} with weights [A, S, N + 1, O]: gradients of Σ weights · observed. The run stays.

    Answers theta [A, k], initial [A, S, J], force [A, S, K, J]; those of failed trajectories are zero.
    """
    problem = held(session, WHOLE, header, OpenProblem)
    d = problem.discretisation
    recording = problem.recordings.get(header["run"])
    if recording is None:
        raise UsageError("The forward solve of this adjoint is no longer held.", "Solve forward again.")
    weights, trajectories = arrays["weights"], recording.trajectories
    sizes = (len(trajectories), len(trajectories[0]) if trajectories else 0)
    by_theta = np.zeros((sizes[0], len(d.coefficients)))
    by_initial = np.zeros((*sizes, d.num_nodes))
    by_force = np.zeros((*sizes, recording.num_forced, d.num_nodes))
    for a, row in enumerate(trajectories):
        for s, trajectory in enumerate(row):
            if trajectory is not None:
                gradient, by_initial[a, s], by_force[a, s] = trajectory.adjoint(weights[a, s])
                by_theta[a] += gradient
    return {}, _from_root(d, {"theta": by_theta, "initial": by_initial, "force": by_force})


def taped_drop(session: Session, header: Header, _: Arrays) -> Answer:
    """`taped_drop` {key, runs}: forget these recordings."""
    recordings = held(session, WHOLE, header, OpenProblem).recordings
    for recording in [recordings.pop(run) for run in header["runs"] if run in recordings]:
        for trajectory in itertools.chain.from_iterable(recording.trajectories):
            if trajectory is not None:
                trajectory.clear()
    return {}, {}


def linearise(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`linearise` {key}: the weak form and its derivatives, as `FormDerivatives.at` gives them. Nothing is solved.

    Arrays: theta [k] in the order of `coefficients`; states [n, J]; force [n, J].
    """
    problem = held(session, WHOLE, header, OpenProblem)
    d = problem.discretisation
    theta, states, force = (np.asarray(arrays[name], dtype=np.float64) for name in ("theta", "states", "force"))
    if theta.shape != (len(d.coefficients),) or states.shape != force.shape or states.shape[1:] != (d.num_nodes,):
        raise UsageError(
            f"theta {theta.shape}, states {states.shape} and force {force.shape} do not fit {d.num_nodes} nodes and "
            f"{len(d.coefficients)} coefficients.",
            "They are [k], [n, J] and [n, J].",
        )
    problem.derivatives = problem.derivatives or FormDerivatives(d)
    return {}, _from_root(d, problem.derivatives.at(theta, states, force))


KEPT_STEPPERS = 2
"""Factors are large: only this many of the latest are kept."""


@dataclass
class PartitionedProblem:
    """What the ranks hold of one problem."""

    bases: Bases
    steppers: OrderedDict[tuple[Any, ...], PartitionedStepper] = field(default_factory=OrderedDict)
    runs: dict[int, ForwardRun] = field(default_factory=dict)
    num_runs: int = 0

    def stepper(self, theta: Mapping[str, float], *settings: Any) -> PartitionedStepper:
        """settings: dt, kind and tolerance of the solver, scheme."""
        key = (tuple(theta[name] for name in self.bases.names), *settings)
        if key not in self.steppers:
            while len(self.steppers) >= KEPT_STEPPERS:
                self.steppers.popitem(last=False)
            self.steppers[key] = PartitionedStepper(self.bases, theta, *settings)
        self.steppers.move_to_end(key)
        return self.steppers[key]


def petsc_open(session: Session, header: Header, _: Arrays) -> Answer:
    """`petsc_open` {key, spec}: put a problem on the ranks, once. Tells names, and the nodes that this rank owns."""
    problems: dict[str, PartitionedProblem] = session.setdefault(PARTITIONED, {})
    key = header["key"]
    if key not in problems:
        problems[key] = PartitionedProblem(_assembled(session, header))
    bases = problems[key].bases
    return {"names": list(bases.names), "symmetric": bases.symmetric}, {"owned": bases.owned}


def _assembled(session: Session, header: Header) -> Bases:
    """The operators of a problem; its mesh is not kept, unless another verb holds it, and then it is used."""
    from mpi4py import MPI

    spec = ProblemSpec.model_validate(header["spec"])
    known = (one.discretisation for one in session.get(WHOLE, {}).values() if one.discretisation.spec == spec)
    bases = reduce_operators(next(known, None) or discretise(spec, MPI.COMM_WORLD))
    del known
    gc.collect()  # now, on all ranks alike
    return bases


def petsc_forward(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`petsc_forward` {key, theta, dt, num_steps, solver: {kind, tolerance}, driven, keep_states, scheme}.

    Arrays: initial [S, J_r] or none for zero, force [S, K, J_r], and the rows [O_r, J_r] of the observation operator
    packed as `observe`. Answers {run} and observed [S, N + 1, O_r].
    """
    problem = held(session, PARTITIONED, header, PartitionedProblem)
    bases, num_steps = problem.bases, int(header["num_steps"])
    theta = {name: float(header["theta"][name]) for name in bases.names}
    solver = header["solver"]
    settings = float(header["dt"]), solver["kind"], float(solver["tolerance"]), scheme_in(header)
    stepper, force = problem.stepper(theta, *settings), arrays["force"]
    keep = bool(header.get("keep_states", True))
    states = np.empty((num_steps + 1, len(force), bases.num_local)) if keep else None
    mixed = stepper.scheme.mix(force, num_steps)
    observe, driven = unpack_csr("observe", arrays), bool(header.get("driven", True))
    run = ForwardRun(stepper, mixed, force.shape[1], states, observe, driven, num_steps)
    observed = run_forward(run, arrays.get("initial"))
    problem.num_runs += 1
    problem.runs[problem.num_runs] = run
    return {"run": problem.num_runs}, {"observed": observed}


def petsc_adjoint(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`petsc_adjoint` {key, run} with weights [S, N + 1, O_r]: the gradients of `run_adjoint`. The run stays."""
    problem = held(session, PARTITIONED, header, PartitionedProblem)
    if header["run"] not in problem.runs:
        raise UsageError("The forward solve of this adjoint is no longer held.", "Solve forward again.")
    return {}, run_adjoint(problem.runs[header["run"]], arrays["weights"])


def petsc_drop(session: Session, header: Header, _: Arrays) -> Answer:
    """`petsc_drop` {key, runs}: forget these forward solves."""
    problem = held(session, PARTITIONED, header, PartitionedProblem)
    for run in header["runs"]:
        problem.runs.pop(run, None)
    return {}, {}


def _from_root(d: Discretisation, arrays: dict[str, Any]) -> Arrays:
    return arrays if d.comm.rank == 0 else {}


def _check_shapes(d: Discretisation, theta: Any, initial: Any, force: Any, num_steps: int, dt: float) -> None:
    batch = initial.shape[:2]
    expected = (batch[0], len(d.coefficients)), (*batch, d.num_nodes), (*batch, *force.shape[2:3], d.num_nodes)
    if (theta.shape, initial.shape, force.shape) != expected or force.shape[2] > num_steps + 1:
        raise UsageError(
            f"theta {theta.shape}, initial {initial.shape} and force {force.shape} do not fit {d.num_nodes} nodes, "
            f"{len(d.coefficients)} coefficients and {num_steps} steps.",
            "They are [A, k], [A, S, J] and [A, S, K, J] with K at most one more than the steps.",
        )
    if not (num_steps >= 1 and np.isfinite(dt) and dt > 0):
        raise UsageError(f"{num_steps} steps of {dt} make no trajectory.", "Give at least one step of positive length.")


VERBS: dict[str, Verb] = {
    "open": open_problem,
    "count": count_mesh,
    "assemble": assemble,
    "interpolate": interpolate,
    "taped_forward": taped_forward,
    "taped_adjoint": taped_adjoint,
    "taped_drop": taped_drop,
    "linearise": linearise,
    "close": functools.partial(forget, WHOLE),
    "petsc_open": petsc_open,
    "petsc_forward": petsc_forward,
    "petsc_adjoint": petsc_adjoint,
    "petsc_drop": petsc_drop,
    "petsc_close": functools.partial(forget, PARTITIONED),
}
