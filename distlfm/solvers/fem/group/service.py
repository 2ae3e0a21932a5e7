"""What a helper group can be asked: verbs of a session, a header (JSON) and named arrays, answered by the same.

All ranks get the same request, except where a verb says otherwise, and all of them answer; of arrays that every rank
has, rank 0 alone sends them.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from distlfm.equations.base import ProblemSpec
from distlfm.errors import UsageError, WorkError
from distlfm.solvers.fem.forms.collective import on_root, on_root_concatenated
from distlfm.solvers.fem.forms.discretise import Discretisation, discretise
from distlfm.solvers.fem.forms.evaluate import FormDerivatives, interpolation
from distlfm.solvers.fem.forms.mesh_files import count_nodes, read_mesh
from distlfm.solvers.fem.forms.operators import assemble_operators, fixed_nodes, joined_cells
from distlfm.solvers.fem.forms.steppers import CachedStepper
from distlfm.solvers.fem.forms.taped import TapedTrajectory
from distlfm.solvers.fem.group import partitioned_service
from distlfm.solvers.fem.group.partitioned_service import WHOLE, Answer, Arrays, Header, Session, Verb, forget, held
from distlfm.solvers.fem.spec import pack_csr, pack_operators, unpack_csr
from distlfm.solvers.field.scheme import Scheme, scheme_in


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

    Answers {affine, linear, reason, num_nodes, num_cells, dims, coefficients, boundaries, lower, upper, ranks} and
    nodes [J, d], cells [C, d + 1], fixed [F], fixed_values [F].
    """
    from mpi4py import MPI

    try:
        spec = ProblemSpec.model_validate(header["spec"])
    except ValidationError as error:
        raise UsageError(f"The problem cannot be read: {error.errors()[0]['msg']}.") from None
    d = discretise(spec, MPI.COMM_WORLD)
    session.setdefault(WHOLE, {})[header["key"]] = OpenProblem(d)
    about = {
        "affine": d.affine,
        "linear": d.linear,
        "reason": d.reason,
        "num_nodes": d.num_nodes,
        "num_cells": d.domain.num_cells,
        "dims": d.dims,
        "coefficients": list(d.coefficients),
        "boundaries": sorted(d.domain.boundaries),
        "lower": d.domain.lower.tolist(),
        "upper": d.domain.upper.tolist(),
        "ranks": d.comm.size,
    }
    return about, _from_root(d, {"nodes": d.nodes, "cells": joined_cells(d, on_root_concatenated), **fixed_nodes(d)})


def count_mesh(_session: Session, header: Header, _: Arrays) -> Answer:
    """`count` {mesh, degree}: the number of nodes {num_nodes} that a mesh from a file has. Nothing is kept."""
    from mpi4py import MPI

    path = Path(header["mesh"]["path"])
    return {"num_nodes": on_root(MPI.COMM_WORLD, lambda: count_nodes(read_mesh(path), header["degree"]))}, {}


def assemble(session: Session, header: Header, _: Arrays) -> Answer:
    """`assemble` {key}: the operators of an affine problem, to be unpacked by `unpack_operators`."""
    d = _opened(session, header).discretisation
    return {}, _from_root(d, pack_operators(assemble_operators(d)))


def interpolate(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`interpolate` {key} with points [O, d]: the matrix [O, J], to be unpacked by `unpack_csr("matrix", …)`."""
    d = _opened(session, header).discretisation
    return {}, _from_root(d, pack_csr("matrix", interpolation(d, arrays["points"])))


def taped_forward(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`taped_forward` {key, dt, num_steps, keep, scheme}: record trajectories of any weak form.

    Arrays: theta [A, k] in the order of `coefficients`; initial [A, S, J]; force [A, S, K, J] at the leading K times;
    the observation operator [O, J] packed as `observe`, or nothing to get all nodes.
    Answers {run, failures} and observed [A, S, N + 1, O]. A failed trajectory is not a number there, stops no other,
    and is in `failures` as {index: [a, s], cause, fix}. Without `keep` no tape is kept, and `run` is None.
    """
    problem = _opened(session, header)
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
    problem = _opened(session, header)
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
    recordings = _opened(session, header).recordings
    for recording in [recordings.pop(run) for run in header["runs"] if run in recordings]:
        for trajectory in itertools.chain.from_iterable(recording.trajectories):
            if trajectory is not None:
                trajectory.clear()
    return {}, {}


def linearise(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`linearise` {key}: the weak form and its derivatives, as `FormDerivatives.at` gives them. Nothing is solved.

    Arrays: theta [k] in the order of `coefficients`; states [n, J]; force [n, J].
    """
    problem = _opened(session, header)
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


def _opened(session: Session, header: Header) -> OpenProblem:
    return held(session, WHOLE, header, OpenProblem)


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
    **partitioned_service.VERBS,
}
