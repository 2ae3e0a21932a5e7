"""`make demo`: the main job end to end, one act after the other; a failed act says so and the rest goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from distlfm.config import build
from distlfm.data import read, write_npz
from distlfm.equations.problem import MeshConfig
from distlfm.errors import DistlfmError, Stopped
from distlfm.mechanisms import FieldMechanism, build_system
from distlfm.pipeline.fit import fit
from distlfm.pipeline.generate import generate
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.query import query
from distlfm.pipeline.rundir import SUMMARY
from distlfm.pipeline.settings import FitConfig, SimulateConfig
from distlfm.pipeline.simulate import simulate_from
from distlfm.pipeline.train import train
from distlfm.pipeline.train_settings import TrainConfig
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
LESSON: dict[str, Any] = {"instances": 600, "sampling": {"every": 10}}
TEACHING: dict[str, Any] = {
    "operator": {"points": 48, "width": 32, "layers": 3},
    "augment": {"recombine": 1.0, "mix": 0.7},
    "loop": {"epochs": 10, "batch": 32},
}
FIT, OPERATOR, FIELD_RUN = "fit", "operator", "field"
PAGES = (f"{FIT}/report.html", f"{OPERATOR}/answers/report.html", f"{FIELD_RUN}/report.html")
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
        ("infer the factor from the genes, in blocks shared among Ray's actors", lambda: _fit(data, out, reporter)),
        ("teach an operator the same from simulated genes, and ask it", lambda: _operator(data, out, reporter)),
        ("infer what drives a field, through an equation that FEniCS assembles", lambda: _field(out / FIELD_RUN)),
        ("solve it and its gradient on a mesh divided between two MPI processes", _divided),
        *more,
    ]
    failed = play(acts, reporter)
    for page in PAGES:
        if (out / page).is_file():
            reporter.say(f"Open {(out / page).resolve()} in a browser.")
    return 1 if failed else 0


def play(acts: Sequence[Act], reporter: Reporter) -> int:
    """Play acts one after another, and count those that failed."""
    failed = 0
    for number, (title, act) in enumerate(acts, 1):
        reporter.say(f"[{number}/{len(acts)}] {title}")
        start = time.perf_counter()
        try:
            reporter.say(f"      {act()} ({time.perf_counter() - start:.1f} s)")
        except Stopped:  # by a signal, which means all of it
            raise
        except DistlfmError as error:
            failed += 1
            reporter.warn(f"this act failed: {error}")
    return failed


def _simulate(path: Path) -> str:
    content = {**MODEL, "instances": INSTANCES, "num_outputs": GENES}
    instances = simulate_from(build(SimulateConfig, content))
    write_npz(path, instances)
    return f"{len(instances)} instances of {GENES} genes at {len(instances[0].times)} times, truth kept for scoring"


def _fit(data: Path, out: Path, reporter: Reporter) -> str:
    run = {"dir": str(out / FIT), "batch": INSTANCES // 2}
    done = fit(build(FitConfig, {**MODEL, "data": {"path": str(data)}, "run": run}), reporter=reporter)
    mean, worst = done.summary["mean"], done.summary["worst"]
    return (
        f"the hidden factor is found with Q² {mean['latent_q2']:.3f} (worst {worst['latent_q2']:.3f}); "
        f"its 95 % bands hold {100 * mean['latent_coverage_95']:.0f} % of the truth"
    )


def _operator(data: Path, out: Path, reporter: Reporter) -> str:
    folder = out / OPERATOR
    drawn = {**MODEL, **LESSON, "num_outputs": GENES, "run": {"dir": str(folder / "lesson.zarr")}}
    store = generate(build(GenerateConfig, drawn), reporter=reporter)
    content = {**TEACHING, "data": {"stores": [str(store.path)]}, "run": {"dir": str(folder / "training")}}
    trained = train(build(TrainConfig, content), reporter=reporter)
    assert trained.directory is not None
    asked = query(trained.directory, data, [f"run.dir={folder / 'answers'}", "plot=true"])
    fitted = json.loads((out / FIT / SUMMARY).read_text(encoding="utf-8"))["mean"]["latent_q2"]
    instance, operator = read(data).instances[0], trained.operator
    operator(instance)  # the first answer makes what the others share
    start = time.perf_counter()
    operator(instance)
    return (
        f"taught by {store.spec.instances} others, it answers in {1000 * (time.perf_counter() - start):.0f} ms with Q² "
        f"{asked.overall['mean']['latent_q2']:.3f}; the fits above have {fitted:.3f}"
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
