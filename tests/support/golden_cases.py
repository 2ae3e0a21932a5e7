"""The cases whose numbers are recorded: data that depend on numpy alone, and what each verb makes of them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from numpy.typing import NDArray

import distlfm

Array = NDArray[Any]
Numbers = dict[str, Array]

PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = PROJECT / "configs"

CLOCKED = ("seconds", "samples_per_second", "wall_s", "bytes", "closing")
"""Figures that follow from the clock or from random keys, at any depth."""

NAMED = ("versions", "identity", "data", "checkpoint", "config_hash")
"""Sections of summaries without figures."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

IMPORTANCE = ("inference.posterior.stages=[12,20]", "inference.posterior.draws=16")
FEW_FEATURES = ("inference.variational.num_inducing=8", "inference.variational.features=32")
SHORT_GRID = ("inference.grid_points=20",)
TINY_OPERATOR = (
    *("operator.layers=1", "operator.width=8", "operator.modes=4", "operator.points=21"),
    *("operator.head=16", "operator.pooled=8", "loop.epochs=4", "loop.batch=16", "loop.precision=float64"),
    *("run.threads=1", "run.launcher=inline", "run.tensorboard=false"),
)


@dataclass(frozen=True)
class Case:
    """work: numbers of a case, from a scratch folder that all cases share. relative: allowed deviation on another
    processor, as a share of an array's largest entry. why: what that size follows from.
    """

    work: Callable[[Path], Numbers]
    relative: float
    why: str


CASES: dict[str, Case] = {}


def case(relative: float, why: str) -> Callable[[Callable[[Path], Numbers]], Callable[[Path], Numbers]]:
    """Register a function as the case of its name."""

    def register(work: Callable[[Path], Numbers]) -> Callable[[Path], Numbers]:
        CASES[work.__name__] = Case(work, relative, why)
        return work

    return register


# Data that depend on numpy alone, so that a change of `simulate` changes its own case and no other.


def _instance(outputs: Sequence[str], times: Array, values: Array, **more: Any) -> distlfm.Instance:
    return distlfm.Instance("one", tuple(outputs), times, values, np.ones(values.shape, dtype=bool), **more)


def _genes(names: Sequence[str], count: int = 12, scale: float = 1.0) -> distlfm.Instance:
    """Genes at rest that a pulse drives, by small Euler steps; the pulse is their truth."""
    fine = np.linspace(0, 11, 1101)
    force = 1 + np.exp(-0.5 * ((fine - 3) / 1.2) ** 2)
    rates = [(0.1, 1.0, 0.4), (0.2, 0.7, 0.6), (0.05, 1.4, 0.3)][: len(names)]
    courses = []
    for basal, sensitivity, decay in rates:
        course = [(basal + sensitivity * force[0]) / decay]
        for driven in force[:-1]:
            course.append(course[-1] + 0.01 * (basal + sensitivity * driven - decay * course[-1]))
        courses.append(course)
    shown = np.linspace(0, 1100, count).astype(int)
    outputs = scale * np.array(courses)
    values = outputs[:, shown] + 0.02 * scale * np.random.default_rng(1).standard_normal((len(names), count))
    known = slice(None, None, 50)
    truth = distlfm.Truth(fine[known], force[None, known], outputs[:, known])
    return _instance(names, fine[shown], values, truth=truth)


def _counted() -> distlfm.Instance:
    genes = _genes(("output_0", "output_1"), count=9, scale=8.0)
    return _instance(genes.outputs, genes.times, np.rint(genes.values))


def _day() -> distlfm.Instance:
    times = np.arange(0.0, 1440.0, 20.0)
    meals = 30 * np.exp(-0.5 * ((times - 500) / 60) ** 2) + 20 * np.exp(-0.5 * ((times - 1000) / 50) ** 2)
    return _instance(["glucose"], times, (110 + meals + 2 * np.random.default_rng(2).standard_normal(len(times)))[None])


def _predator() -> distlfm.Instance:
    times = np.linspace(0, 8, 16)
    noise = 0.02 * np.random.default_rng(3).standard_normal(len(times))
    return _instance(["predator"], times, (1 + 0.3 * np.sin(times) + noise)[None])


def _field(level: float, rise: float, times: Array, places: Array) -> distlfm.Instance:
    when, where = (one.ravel() for one in np.meshgrid(times, places, indexing="ij"))
    values = level + rise * when + 0.5 * when * np.sin(np.pi * where)
    values += 0.01 * np.random.default_rng(4).standard_normal(len(values))
    return _instance(["output"], when, values[None], positions=where[:, None])


# What the verbs leave, as numbers.


def _store(path: Path) -> Numbers:
    """Every array of a store that is a number, and follows from the seed."""
    members = zarr.open_group(str(path), mode="r").members(max_depth=None)
    found = {name: np.asarray(one[...]) for name, one in members if isinstance(one, zarr.Array) and one.dtype != object}
    return {name: found[name] for name in sorted(found) if name not in CLOCKED}


def _leaves(content: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """The numbers of a JSON file by their path; null is NaN.

    Numbers of one list or one mapping are one array: the bounds of a parameter are measured by the largest of them, and
    one that happens to be near zero is not measured by itself.
    """
    if isinstance(content, Mapping):
        content = {key: value for key, value in content.items() if key not in (*CLOCKED, *NAMED)}
        if content and all(isinstance(one, int | float | None) for one in content.values()):
            content = list(content.values())
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, list):
        if content and all(isinstance(one, int | float | None) for one in content):
            yield name, np.array([np.nan if one is None else one for one in content], dtype=np.float64)
        else:
            for place, value in enumerate(content):
                yield from _leaves(value, f"{name}.{place}")
    elif content is None or isinstance(content, int | float):
        yield name, np.array(np.nan if content is None else content, dtype=np.float64)


def _json(path: Path, only: Iterable[str] | None = None) -> Numbers:
    content = json.loads(path.read_text())
    return dict(_leaves(content if only is None else {key: content[key] for key in only}))


def _weights(path: Path) -> Numbers:
    """The weights of an operator in one array, in the order of their names, and what calibrates it."""
    content = torch.load(path, weights_only=False)
    weights = [content["weights"][name].double().numpy().ravel() for name in sorted(content["weights"])]
    return {"weights": np.concatenate(weights), **dict(_leaves(content["calibration"], "calibration"))}


def _fitted(folder: Path, config: str, data: distlfm.Instance, *overrides: str) -> Numbers:
    """The store of a fit, its scores, its bands, and what the saved fit predicts after the last observation."""
    settings = ["data.dataset=null", "run.executor=serial", "run.draws=2", f"run.dir={folder}", *overrides]
    run = distlfm.fit(CONFIGS / "fit" / f"{config}.yaml", [data], settings)
    numbers = _store(folder / "store.zarr") | _json(folder / "summary.json", ["mean"])
    result = run.results[0]
    later = np.linspace(data.times[0], 1.1 * data.times[-1], 6)
    places = None if data.positions is None else np.linspace(data.positions.min(), data.positions.max(), 6)[:, None]
    asked = result.predict(later, places)
    for what, found in (("grid", result.grid), ("asked", asked)):
        for name, band in (("force", found.force), ("outputs", found.outputs)):
            numbers |= {f"{what}.{name}.{side}": getattr(band, side) for side in ("mean", "sd", "lower95", "upper95")}
    for estimate in result.estimates:
        numbers[f"parameter.{estimate.name}"] = np.array([estimate.mean, estimate.sd])
    return numbers


# The cases.

EXACT = "the force is integrated out exactly; rounding reaches the optimiser's last step, and so the proposals"
SPREAD = "variances of weakly known parameters, which follow the optimiser's last step"
MATCHED = "slopes are matched to a fit of the data with a flat optimum, at which rounding ends the search elsewhere"
SOLVED = "draws are seeded, and one forward solve follows; the factor of a covariance is nearly singular"


@case(1e-3, SPREAD)
def fit_of_a_linear_series(folder: Path) -> Numbers:
    genes = _genes(("output_0", "output_1", "output_2"))
    return _fitted(folder / "linear", "transcription_toy", genes, "data.stride=1", *SHORT_GRID, *IMPORTANCE)


@case(1e-4, EXACT)
def fit_by_the_exact_covariance(folder: Path) -> Numbers:
    genes = _genes(("output_0", "output_1"))
    return _fitted(
        folder / "exact",
        "transcription_toy",
        genes,
        "data.stride=1",
        "inference.method=exact",
        *SHORT_GRID,
        *IMPORTANCE,
    )


@case(1e-4, EXACT)
def fit_by_the_filter(folder: Path) -> Numbers:
    how = ("data.window=null", "data.columns=null", *SHORT_GRID, *IMPORTANCE)
    return _fitted(folder / "filter", "glucose", _day(), *how)


@case(1e-3, SPREAD)
def fit_of_a_nonlinear_series(folder: Path) -> Numbers:
    return _fitted(folder / "nested", "lotka_volterra", _predator(), *SHORT_GRID, *IMPORTANCE, *FEW_FEATURES)


@case(1e-3, SPREAD)
def fit_of_counts(folder: Path) -> Numbers:
    how = ("likelihood.kind=negative_binomial", *SHORT_GRID, *IMPORTANCE, *FEW_FEATURES)
    return _fitted(folder / "counts", "transcription", _counted(), *how)


@case(1e-3, SPREAD)
def fit_by_variation(folder: Path) -> Numbers:
    how = ("inference.variational.iterations=10", "inference.variational.draws=16", *SHORT_GRID, *FEW_FEATURES)
    return _fitted(folder / "variational", "hafner", _genes(("CDKN1A", "MDM2")), *how)


@case(3e-2, MATCHED)
def fit_without_a_solver(folder: Path) -> Numbers:
    return _fitted(folder / "slopes", "lotka_volterra", _predator(), "inference.method=preestimate", *SHORT_GRID)


@case(1e-4, EXACT)
def fit_of_a_linear_field(folder: Path) -> Numbers:
    data = _field(0.0, 0.0, np.linspace(0.125, 1, 8), np.linspace(0, 1, 9))
    how = ("data.fraction=1", "mechanism.mesh.size=0.1", *IMPORTANCE)
    return _fitted(folder / "field", "reaction_diffusion_noisy", data, *how)


@case(1e-3, SPREAD)
def fit_of_a_nonlinear_field(folder: Path) -> Numbers:
    data = _field(0.5, 0.3, np.linspace(0.1, 1, 5), np.linspace(0, 1, 5))
    how: tuple[str, ...] = (
        "mechanism.mesh.size=0.25",
        "mechanism.step=0.1",
        "inference.field.refinements=0",
        "inference.field.num_times=4",
    )
    how += ("inference.field.num_places=4", "inference.posterior.stages=[4]", "inference.posterior.draws=8")
    return _fitted(folder / "laplace", "fisher_kpp", data, *how)


@case(1e-4, SOLVED)
def simulate_series_and_fields(folder: Path) -> Numbers:
    """Through the command line, as the Python verb takes a model that is built from inner parts."""
    numbers: Numbers = {}
    for kind, overrides in (
        ("transcription", ("points=7", "num_outputs=2", "truth_points=11", "mechanism.fixed.sensitivity.output_0=1")),
        ("fisher_kpp", ("points=5", "places=4", "truth_points=6", "mechanism.mesh.size=0.2")),
    ):
        config = CONFIGS / "simulate" / f"{kind}.yaml"
        out = folder / f"{kind}.npz"
        _command("simulate", config if config.exists() else kind, "--instances", 2, "--out", out, *overrides)
        with np.load(out) as content:
            found = {name: content[name] for name in content.files}
        numbers |= {f"{kind}.{name}": value for name, value in found.items() if value.dtype.kind in "fiub"}
    return numbers


@case(1e-4, SOLVED)
def generate_series(folder: Path) -> Numbers:
    return _store(_generated(folder))


@case(1e-4, SOLVED)
def generate_fields(folder: Path) -> Numbers:
    out = folder / "fields.zarr"
    how = ["instances=3", "points=9", "places=9", "mechanism.mesh.size=0.1", "run.executor=serial", f"run.dir={out}"]
    distlfm.generate(CONFIGS / "generate" / "reaction_diffusion.yaml", how)
    return _store(out)


@case(1e-3, "computed in float64; a calibration is a quantile of few instances")
def train_an_operator(folder: Path) -> Numbers:
    run = _trained(folder)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [[line[key] for key in ("train_total", "validation_loss")] for line in lines if line["event"] == "epoch"]
    return _weights(run / "operator.pt") | _json(run / "summary.json") | {"losses": np.array(losses)}


@case(2e-3, "the network is kept in float32, and novelty is a distance in its inner channels")
def query_an_operator(folder: Path) -> Numbers:
    out = folder / "answers"
    distlfm.query(_trained(folder), [_genes(("output_0", "output_1"), count=21)], [f"run.dir={out}"])
    with (out / "parameters.csv").open() as file:
        means = [float(row["mean"]) for row in csv.DictReader(file)]
    return _json(out / "answers.json") | _json(out / "summary.json", ["mean"]) | {"parameters.csv": np.array(means)}


@case(2e-3, "a share of points within a band moves by whole points")
def evaluate_an_operator(folder: Path) -> Numbers:
    out = folder / "judged"
    distlfm.evaluate(_trained(folder), _generated(folder), [f"run.dir={out}", "part=all"])
    return _json(out / "summary.json", ["count", "mean"])


@case(1e-2, "sites tune in float32, and gains are small differences of losses")
def federated_round(folder: Path) -> Numbers:
    """One secure round of four sites with generated patients."""
    out = folder / "federation"
    small = ", ".join((*TINY_OPERATOR, "loop.epochs=1"))
    _command(
        *("federated", "simulate", CONFIGS / "federated" / "glucose.yaml", "--out", out),
        *("data=generated", "patients=12", "personal=1"),
        *("programme.rounds=1", "programme.task.steps=2", "programme.task.batch=8"),
        *("base.generate_with=[instances=40, points=49, run.executor=serial]", f"base.train_with=[{small}]"),
    )
    with np.load(out / "rounds" / "round-0001.npz") as content:
        rounds = {f"round.{name}": content[name] for name in content.files}
    return rounds | _weights(out / "operator.pt") | _json(out / "summary.json")


def _command(*arguments: object) -> None:
    """`distlfm` in a process of its own."""
    given = [str(one) for one in arguments]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-m", "distlfm", *given], cwd=PROJECT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"distlfm {' '.join(given)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def _generated(folder: Path) -> Path:
    """A store that several cases look at; what is there already is not made again."""
    out = folder / "genes.zarr"
    how = ["instances=150", "points=21", "num_outputs=2", "run.executor=serial", f"run.dir={out}"]
    distlfm.generate(CONFIGS / "generate" / "transcription.yaml", how)
    return out


def _trained(folder: Path) -> Path:
    """An operator that several cases ask; a training that has ended is not repeated."""
    out = folder / "operator"
    if not (out / "operator.pt").exists():
        stores = f"data.stores=[{_generated(folder)}]"
        distlfm.train(CONFIGS / "train" / "transcription.yaml", [stores, f"run.dir={out}", *TINY_OPERATOR])
    return out
