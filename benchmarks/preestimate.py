"""Pre-estimation: how much sooner a fit through the solver ends when it starts from the match; and the quick mode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from benchmarks.evidence import matched_mode
from benchmarks.goals import at_least
from distlfm.config import build, load
from distlfm.fleets.fit_job import model_of
from distlfm.fleets.sources import read_instances
from distlfm.inference.curvature import find_modes
from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import fit_instances, seed_of
from distlfm.inference.observations import collate
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.preestimate import PreestimateConfig
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.runs.settings import FitConfig

CONFIG = Path("configs/fit/transcription_toy.yaml")
NATS = 1.0
"""A run has arrived when its joint density is this near to the best that either run finds."""

NOISE = 0.02

PREDATORS: dict[str, Any] = {
    "mechanism": {
        "kind": "lotka_volterra",
        "fixed": {"growth": {"predator": 1.0}},
        "priors": {
            "mortality": {"kind": "lognormal", "median": 0.8, "spread": 0.3},
            "initial": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
        },
    },
    "force": {
        "priors": {
            "lengthscale": {"kind": "lognormal", "median": 1.5, "spread": 0.4},
            "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.7},
        }
    },
    "likelihood": {"prior": {"kind": "lognormal", "median": 0.02, "spread": 0.7}},
}
"""A predator's growth on a unit of prey gives the prey its unit, and is taken as known."""


class _Watched(Forward):
    """Keeps the joint density of every visit: (seconds since `begin`, rows, minus log density)."""

    begin = 0.0

    def watch(self) -> list[tuple[float, Tensor, Tensor]]:
        self.begin, self.visits = time.perf_counter(), list[tuple[float, Tensor, Tensor]]()
        return self.visits

    def log_likelihood(self, w: Tensor, rows: Tensor, noise: Tensor | None = None) -> Tensor:
        density = super().log_likelihood(w, rows, noise)
        joint = density[0].detach() - 0.5 * w[0].detach().square().sum(-1)
        self.visits.append((time.perf_counter() - self.begin, rows.clone(), -joint))
        return density


Visits = list[tuple[float, Tensor, Tensor]]


def run(quick: bool = False) -> dict[str, Any]:
    toy = load(FitConfig, CONFIG)
    predators = build(FitConfig, PREDATORS)
    count = 3 if quick else 8
    sets = {
        "transcription": (toy, [one.thinned(toy.data.stride) for one in read_instances(toy.data).instances]),
        "Lotka–Volterra": (predators, [_predator(i) for i in range(count)]),
    }
    shown: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for name, (config, instances) in sets.items():
        found = details[name] = {"race": _race(config, instances)}
        shown[f"{name}: evaluations from the middle over those from the match, median"] = at_least(
            found["race"]["evaluations, ratio"], 5.0
        )
        shown[f"{name}: the same of seconds, whole batch"] = at_least(found["race"]["seconds, ratio"], 2.0)
        scores = {kind: _score(config, instances, "preestimate", kind) for kind in ("spline", "gp")}
        found["quick mode"] = scores
        goal = 0.9 if name == "transcription" else 0.8
        for kind, score in scores.items():
            shown[f"{name}: quick mode's latent Q², mean, {kind}"] = at_least(score["latent Q², mean"], goal)
    whole = [_score(predators, sets["Lotka–Volterra"][1][:3], "variational", "spline", use) for use in (True, False)]
    details["Lotka–Volterra"]["whole fit, noise learned"] = dict(zip(("match", "middle"), whole, strict=True))
    shown["Lotka–Volterra: ELBO gained by the match, worst instance"] = at_least(
        min(a - b for a, b in zip(whole[0]["bound"], whole[1]["bound"], strict=True)), 0.0
    )
    return {"figures": shown, "sets": details}


def _predator(seed: int) -> Instance:
    """Both equations of Lotka and Volterra: the predator is observed, with noise, and the prey is the truth."""
    generator = np.random.default_rng(seed)
    birth, mortality = generator.uniform(0.8, 1.2), generator.uniform(0.6, 1.0)
    times, fine = np.linspace(0, 12, 25), np.linspace(0, 12, 121)

    def rates(_: float, state: FloatArray) -> list[float]:
        prey, predator = state
        return [prey * (birth - predator), predator * (prey - mortality)]

    begin = generator.uniform(0.5, 1.5, 2)
    path = solve_ivp(rates, (0, 12), begin, t_eval=fine, rtol=1e-9, atol=1e-9).y
    seen = np.interp(times, fine, path[1]) + NOISE * generator.standard_normal(len(times))
    truth = Truth(fine, path[:1], path[1:], parameters={"mortality": np.array([mortality])})
    return Instance(f"pair-{seed}", ("predator",), times, seen[None], np.ones((1, len(times)), bool), truth=truth)


def _race(config: FitConfig, instances: Sequence[Instance]) -> dict[str, Any]:
    """Look for the same mode from the prior's middle and from the match; the noise is given, so that there is one."""
    given = [replace(one, variance=np.full(one.values.shape, NOISE**2)) for one in instances]
    likelihood = config.likelihood.model_copy(update={"noise": "given"})
    model = model_of(config.model_copy(update={"likelihood": likelihood}), given)
    data = collate([one.blind() for one in given], model.mechanism.outputs)
    options = config.inference
    forward = _Watched(model, data, options.variational.solver, options.variational.num_inducing)
    seeds = [seed_of(config.run.seed, one.id) for one in instances]
    rows = torch.arange(len(instances))

    def objective(w: Tensor, rows: Tensor) -> Tensor:
        return 0.5 * w.square().sum(-1) - forward.log_likelihood(w[None], rows)[0]

    runs: dict[str, Visits] = {"middle": forward.watch()}
    find_modes(objective, torch.zeros(len(rows), forward.size, dtype=torch.float64), options.optimiser)
    runs["match"] = forward.watch()
    matched_mode(forward, seeds, options.optimiser, options.preestimate)
    reached = {name: _best(visits, len(rows)) for name, visits in runs.items()}
    target = torch.stack(list(reached.values())).amin(0) + NATS
    found: dict[str, Any] = {}
    counts = {}
    for name, visits in runs.items():
        evaluations, seconds = _arrivals(visits, target)
        arrived, made = torch.isfinite(evaluations), _made(visits, len(rows))
        # One that never arrives counts with all that it did, which is less than it would need.
        counts[name] = torch.where(arrived, evaluations, made)
        found[name] = {
            "arrived": float(arrived.double().mean()),
            "evaluations, median": float(counts[name].median()),
            "seconds, whole batch": float(seconds.nan_to_num(posinf=visits[-1][0]).max()),
            "joint density reached": [-float(x) for x in reached[name]],
        }
    found["evaluations, ratio"] = float((counts["middle"] / counts["match"]).median())
    found["seconds, ratio"] = found["middle"]["seconds, whole batch"] / found["match"]["seconds, whole batch"]
    return found


def _best(visits: Visits, size: int) -> Tensor:
    best = torch.full((size,), torch.inf, dtype=torch.float64)
    for _, rows, values in visits:
        best.scatter_reduce_(0, rows, values, "amin")
    return best


def _made(visits: Visits, size: int) -> Tensor:
    """Evaluations of each instance, [B]."""
    return torch.stack([torch.bincount(rows, minlength=size) for _, rows, _ in visits]).sum(0).double()


def _arrivals(visits: Visits, target: Tensor) -> tuple[Tensor, Tensor]:
    """Evaluations and seconds until each instance is at its target [B]; infinite if it never is."""
    count = torch.zeros_like(target)
    evaluations, seconds = torch.full_like(target, torch.inf), torch.full_like(target, torch.inf)
    for clock, rows, values in visits:
        count += torch.bincount(rows, minlength=len(count))
        there = rows[(values <= target[rows]) & torch.isinf(evaluations[rows])]
        evaluations[there], seconds[there] = count[there], clock
    return evaluations, seconds


def _score(
    config: FitConfig, instances: Sequence[Instance], method: str, interpolant: str, enabled: bool = True
) -> dict[str, Any]:
    """Fit, and compare with the truth."""
    chosen = build(PreestimateConfig, {"interpolant": interpolant, "enabled": enabled})
    options = config.inference.model_copy(update={"method": method, "preestimate": chosen})
    begin = time.perf_counter()
    rows = [figures(one) for one in fit_instances(model_of(config, instances), instances, options, config.run.seed)]
    seconds = time.perf_counter() - begin
    return {
        "latent Q², mean": float(np.mean([row["latent_q2"] for row in rows])),
        "latent Q², worst": float(np.min([row["latent_q2"] for row in rows])),
        "latent coverage of 95 % bands": float(np.mean([row["latent_coverage_95"] for row in rows])),
        "bound": [row["elbo"] for row in rows],
        "seconds an instance": seconds / len(instances),
    }
