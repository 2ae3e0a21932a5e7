"""The verbs of a helper group, asked as its ranks are, with the answers as one line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from distlfm.errors import UsageError
from distlfm.solvers.fem.group.service import VERBS

SPEC = {
    "equation": {"module": "distlfm.equations.fisher_kpp", "name": "FisherKpp"},
    "mesh": {"kind": "rectangle", "lower": [0, 0], "upper": [1, 1], "size": 0.2},
    "boundary": {"left": {"kind": "dirichlet", "value": 0.2}},
}
NODES = 36


def main() -> None:
    session: dict[str, Any] = {}

    def ask(verb: str, arrays: Any = None, **header: Any) -> Any:
        return VERBS[verb](session, {"key": "toy", **header}, arrays or {})

    about, mesh = ask("open", spec=SPEC)
    generator = np.random.default_rng(0)
    points = generator.uniform(size=(5, 2))
    _, weights = ask("interpolate", {"points": points})
    weights = MPI.COMM_WORLD.bcast(weights)  # as the owner would send them
    given = {
        "theta": generator.uniform(0.3, 1.0, (2, 4)),
        "initial": generator.uniform(size=(2, 2, NODES)),
        "force": generator.normal(size=(2, 2, 3, NODES)),
        **{name.replace("matrix", "observe"): value for name, value in weights.items()},
    }
    given["force"][1, 1] = -1e9
    forward, observed = ask("taped_forward", given, dt=0.05, num_steps=4)
    seeds = generator.normal(size=(2, 2, 5, 5))
    _, gradients = ask("taped_adjoint", {"weights": seeds}, run=forward["run"])
    unkept, _ = ask("taped_forward", given, dt=0.05, num_steps=4, keep=False)
    ask("taped_drop", runs=[forward["run"]])
    dropped = said(lambda: ask("taped_adjoint", {"weights": seeds}, run=forward["run"]))
    wrong = said(lambda: ask("taped_forward", {**given, "force": given["force"][..., 1:]}, dt=0.05, num_steps=4))
    ask("close")
    closed = said(lambda: ask("interpolate", {"points": points}))
    if MPI.COMM_WORLD.rank == 0:
        answer = {
            "about": about,
            "shapes": {name: list(array.shape) for name, array in {**mesh, **observed, **gradients}.items()},
            "failures": forward["failures"],
            "failed": bool(np.isnan(observed["observed"][1, 1]).all()),
            "failed_gradient": float(np.abs(gradients["force"][1, 1]).max()),
            "observed": observed["observed"][:, 0].ravel().tolist(),
            **{name: gradients[name].ravel().tolist() for name in gradients},
            "said": {"dropped": dropped, "wrong": wrong, "closed": closed},
            "unkept": unkept["run"],
        }
        sys.stdout.write("\n" + json.dumps(answer) + "\n")
    else:
        assert not any((mesh, observed, gradients))


def said(question: Any) -> str:
    try:
        question()
    except UsageError as error:
        return str(error)
    return "nothing was said"


if __name__ == "__main__":
    main()
