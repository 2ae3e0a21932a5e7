"""`make demo`: the main job end to end, one act after the other; a failed act says so and the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from distlfm.config import build
from distlfm.data import write_npz
from distlfm.equations.problem import MeshConfig
from distlfm.errors import DistlfmError
from distlfm.mechanisms import FieldMechanism, build_system
from distlfm.pipeline.fit import fit
from distlfm.pipeline.settings import FitConfig, SimulateConfig
from distlfm.pipeline.simulate import simulate_from
from distlfm.runtime.reporting import Reporter
from distlfm.solvers.fem.group import Group
from distlfm.solvers.fem.partitioned_client import PartitionedSolver

GENES = 5
INSTANCES = 8
PRIORS = {
    "basal": {"kind": "lognormal", "median": 0.1, "spread": 0.5},
    "sensitivity": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
    "decay": {"kind": "lognormal", "median": 0.4, "spread": 0.3},
}
MODEL = {
    "mechanism": {"kind": "transcription", "priors": PRIORS, "fixed": {"sensitivity": {"output_0": 1.0}}},
    "force": {
        "priors": {
            "lengthscale": {"kind": "lognormal", "median": 1.5, "spread": 0.3},
            "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
        }
    },
    "likelihood": {"shared": True, "prior": {"kind": "lognormal", "median": 0.05, "spread": 0.5}},
}


FIELD: dict[str, Any] = {
    "mechanism": {
        "kind": "reaction_diffusion",
        "mesh": {"kind": "interval", "lower": [0.0], "upper": [1.0], "size": 0.05},
        "boundary": {"all": {"kind": "dirichlet"}},
        "fixed": {"sensitivity": 1.0},
        "priors": {
            "decay": {"kind": "lognormal", "median": 0.5, "spread": 0.5},
            "diffusion": {"kind": "lognormal", "median": 0.02, "spread": 0.5},
        },
    },
    "force": {
        "priors": {
            "lengthscale": {"kind": "lognormal", "median": 0.4, "spread": 0.2},
            "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
        }
    },
    "likelihood": {"prior": {"kind": "lognormal", "median": 0.02, "spread": 0.3}},
}
SQUARE = 48
"""Cells along a side of the mesh that is divided."""


Act = tuple[str, Callable[[], str]]
"""A title, and what plays it and says in one line what it showed."""


def run(out: Path, reporter: Reporter, more: Sequence[Act] = ()) -> int:
    """Play the acts, then `more` of them; the exit code is 1 if one of them failed."""
    out.mkdir(parents=True, exist_ok=True)
    data = out / "instances.npz"
    acts: list[Act] = [
        ("simulate genes driven by a hidden transcription factor", lambda: _simulate(data)),
        ("infer the factor from the genes", lambda: _fit(data, out / "fit", reporter)),
        ("infer what drives a field, through an equation that FEniCS assembles", lambda: _field(out / "field")),
        ("solve it and its gradient on a mesh divided between two MPI processes", _divided),
        *more,
    ]
    failed = 0
    for number, (title, act) in enumerate(acts, 1):
        reporter.say(f"[{number}/{len(acts)}] {title}")
        start = time.perf_counter()
        try:
            reporter.say(f"      {act()} ({time.perf_counter() - start:.1f} s)")
        except DistlfmError as error:
            failed += 1
            reporter.warn(f"this act failed: {error}")
    for page in ("fit", "field"):
        if (out / page / "report.html").is_file():
            reporter.say(f"Open {(out / page / 'report.html').resolve()} in a browser.")
    return 1 if failed else 0


def _simulate(path: Path) -> str:
    content = {**MODEL, "instances": INSTANCES, "num_outputs": GENES}
    instances = simulate_from(build(SimulateConfig, content))
    write_npz(path, instances)
    return f"{len(instances)} instances of {GENES} genes at {len(instances[0].times)} times, truth kept for scoring"


def _fit(data: Path, out: Path, reporter: Reporter) -> str:
    config = build(FitConfig, {**MODEL, "data": {"path": str(data)}, "run": {"dir": str(out)}})
    done = fit(config, reporter=reporter)
    mean, worst = done.summary["mean"], done.summary["worst"]
    return (
        f"the hidden factor is found with Q² {mean['latent_q2']:.3f} (worst {worst['latent_q2']:.3f}); "
        f"its 95 % bands hold {100 * mean['latent_coverage_95']:.0f} % of the truth"
    )


def _field(out: Path) -> str:
    content = {**FIELD, "instances": 1, "stop": 1.0, "points": 13, "places": 13, "missing": 0.3}
    instances = simulate_from(build(SimulateConfig, content))
    out.mkdir(parents=True, exist_ok=True)
    write_npz(out / "instances.npz", instances)
    data = {"path": str(out / "instances.npz")}
    figures = fit(build(FitConfig, {**FIELD, "data": data, "run": {"dir": str(out)}})).figures[0]
    return (
        f"{int(instances[0].mask.sum())} noisy points of a field give its unseen source with Q² "
        f"{figures['latent_q2']:.3f}; the 95 % band holds {100 * figures['latent_coverage_95']:.0f} % of the truth"
    )


def _divided() -> str:
    problem = build_system(FIELD["mechanism"])
    assert isinstance(problem, FieldMechanism)
    spec = problem.problem(MeshConfig(kind="rectangle", lower=(0.0, 0.0), upper=(1.0, 1.0), size=1 / SQUARE))
    theta = {"sensitivity": 1.0, "decay": 0.5, "diffusion": 0.02}
    found = []
    for ranks in (1, 2):
        with Group.start(ranks) as group:
            solver = PartitionedSolver(group, spec)
            force = np.random.default_rng(0).normal(size=(1, 11, solver.num_nodes))
            look = sp.csr_array(np.eye(5, solver.num_nodes, k=solver.num_nodes // 2))
            observed, number = solver.forward(theta, None, force, 0.02, 10, look)
            found.append(solver.adjoint(number, np.ones_like(observed)).force)
    apart = float(np.abs(found[1] - found[0]).max() / np.abs(found[0]).max())
    return f"{found[0].shape[-1]} nodes on two ranks: the gradient is that of one rank to {apart:.0e}"
