"""dolfin-adjoint as it comes, in a helper group: the oracle of gradients and the yardstick of speed.

The module is the service of that group: nothing else imports dolfin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.equations.base import ProblemSpec
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.fem.spec import Csr, FloatArray, pack_csr, unpack_csr


def start() -> Group:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return Group.start(1, service="benchmarks.pde_tape", environment=environment)


def trajectory(
    group: Group,
    spec: ProblemSpec,
    theta: Mapping[str, float],
    initial: FloatArray,
    force: FloatArray,
    weights: FloatArray,
    observe: Csr,
    dt: float,
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Seconds and gradients of one trajectory: initial [J], force [N + 1, J], weights [N + 1, O]."""
    header = {"spec": spec.model_dump(mode="json"), "theta": dict(theta), "dt": dt}
    arrays = {"initial": initial, "force": force, "weights": weights, **pack_csr("observe", observe)}
    reply = group.call("trajectory", header, arrays)[0]
    return reply.header, reply.arrays


def _trajectory(
    session: dict[str, Any], header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """One tape, recorded and run back by dolfin-adjoint's own blocks."""
    from mpi4py import MPI

    from distlfm.solvers.fem.forms.discretise import discretise
    from distlfm.solvers.fem.forms.taped import TapedTrajectory
    from tests.support.plain_stepper import PlainStepper

    key = str(header["spec"])
    if key not in session:
        session[key] = PlainStepper(discretise(ProblemSpec.model_validate(header["spec"]), MPI.COMM_WORLD))
    tape = TapedTrajectory(session[key])
    begin = time.process_time()
    observed = tape.forward(
        header["theta"],
        arrays["initial"],
        arrays["force"],
        header["dt"],
        len(arrays["force"]) - 1,
        unpack_csr("observe", arrays),
    )
    middle = time.process_time()
    by_theta, by_initial, by_force = tape.adjoint(arrays["weights"])
    seconds = {"forward": middle - begin, "adjoint": time.process_time() - middle}
    tape.clear()
    found = {"observed": observed, "theta": np.asarray(by_theta), "initial": by_initial, "force": by_force}
    return seconds, found


VERBS = {"trajectory": _trajectory}
