"""What a helper group can be asked of a mesh that is spread over its ranks: the verbs of `partitioned.py`.

Between requests a rank holds problems, of two kinds, by their keys.

Arrays hold the rank's own nodes, in the order of `owned`, which `petsc_open` gives: `J_r` of them. `S` right-hand
sides, `K` leading times with a force, `O_r` observations that see these nodes, `N` steps.
"""

from __future__ import annotations

import functools
import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from distlfm.equations.base import ProblemSpec
from distlfm.errors import UsageError
from distlfm.solvers.fem.forms.operators import Bases, reduce_operators
from distlfm.solvers.fem.forms.partitioned import ForwardRun, PartitionedStepper, run_adjoint, run_forward
from distlfm.solvers.fem.spec import unpack_csr
from distlfm.solvers.field.scheme import scheme_in

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
    found = problems[header["key"]]
    assert isinstance(found, of)
    return found


def forget(kind: str, session: Session, header: Header, _: Arrays) -> Answer:
    """`close` and `petsc_close` {key}: let a problem go with all that belongs to it."""
    session.get(kind, {}).pop(header["key"], None)
    gc.collect()  # now, on all ranks alike
    return {}, {}


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


def open_problem(session: Session, header: Header, _: Arrays) -> Answer:
    """`petsc_open` {key, spec}: put a problem on the ranks, once. Tells names, and the nodes that this rank owns."""
    problems: dict[str, PartitionedProblem] = session.setdefault(PARTITIONED, {})
    key = header["key"]
    if key not in problems:
        problems[key] = PartitionedProblem(_assembled(session, header))
    bases = problems[key].bases
    about = {"names": list(bases.names), "num_bases": len(bases.matrices), "symmetric": bases.symmetric}
    return about, {"owned": bases.owned}


def _assembled(session: Session, header: Header) -> Bases:
    """The operators of a problem; its mesh is not kept, unless another verb holds it, and then it is used."""
    from mpi4py import MPI

    from distlfm.solvers.fem.forms.discretise import discretise

    spec = ProblemSpec.model_validate(header["spec"])
    known = (one.discretisation for one in session.get(WHOLE, {}).values() if one.discretisation.spec == spec)
    bases = reduce_operators(next(known, None) or discretise(spec, MPI.COMM_WORLD))
    del known
    gc.collect()  # now, on all ranks alike
    return bases


def forward(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`petsc_forward` {key, theta, dt, num_steps, solver: {kind, tolerance}, driven, keep_states, scheme}.

    Arrays: initial [S, J_r] or none for zero, force [S, K, J_r], and the rows [O_r, J_r] of the observation operator
    packed as `observe`. Answers {run} and observed [S, N + 1, O_r].
    """
    problem = _opened(session, header)
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


def adjoint(session: Session, header: Header, arrays: Arrays) -> Answer:
    """`petsc_adjoint` {key, run} with weights [S, N + 1, O_r]: the gradients of `run_adjoint`. The run stays."""
    problem = _opened(session, header)
    if header["run"] not in problem.runs:
        raise UsageError("The forward solve of this adjoint is no longer held.", "Solve forward again.")
    return {}, run_adjoint(problem.runs[header["run"]], arrays["weights"])


def drop(session: Session, header: Header, _: Arrays) -> Answer:
    """`petsc_drop` {key, runs}: forget these forward solves."""
    problem = _opened(session, header)
    for run in header["runs"]:
        problem.runs.pop(run, None)
    return {}, {}


def _opened(session: Session, header: Header) -> PartitionedProblem:
    return held(session, PARTITIONED, header, PartitionedProblem)


VERBS: dict[str, Verb] = {
    "petsc_open": open_problem,
    "petsc_forward": forward,
    "petsc_adjoint": adjoint,
    "petsc_drop": drop,
    "petsc_close": functools.partial(forget, PARTITIONED),
}
