"""Every method's posterior beside long chains of NUTS on the same model (`method: reference`), and NUTS beside NUTS.

Distances are in deviations of the reference, averaged over the parameters, and over TIMES times of each force: how far
means lie apart, the ratio of deviations, Wasserstein-1 of each number by itself. C2ST is how often a network that was
trained to tell both kinds of draws apart is right on draws that it has not seen; 0.5 is chance. The row `reference` is
the floor: one half of its chains beside the other.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.calibration_nonlinear import GENES, PREDATORS
from benchmarks.counts import model as counts
from benchmarks.goals import at_most
from benchmarks.p53 import CONFIG as P53
from distlfm.config import build, load
from distlfm.data.catalog import load as load_set
from distlfm.fleets.fit_job import model_of
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.method import SERIES
from distlfm.inference.model import Model
from distlfm.inference.result import FitResult
from distlfm.inference.series.reference.method import AGREED
from distlfm.instance import FloatArray, Instance
from distlfm.mechanisms import Mechanism, Parameter, Values, register
from distlfm.mechanisms.base import join_states
from distlfm.mechanisms.priors import LogNormal
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

TIMES, DRAWS, FOLDS = 20, 1000, 5
TOLD_APART = 8
"""Times of each force that the network sees beside the parameters."""

LINEAR = 0.15
"""Wasserstein-1 that a method in closed form may be away, in deviations, on average over parameters or over times."""


@register("jakstat")
class JakStat(Mechanism):
    """STAT5 after erythropoietin: phosphorylated by the receptor, paired, into the nucleus, and out of it again.

    The receptor's activity is the force. Amounts are in units of all STAT5; both outputs have a scale of their own.
    """

    force_names = ("receptor",)

    @property
    def num_states(self) -> int:
        return 4

    def parameters(self) -> list[Parameter]:
        rates, scales = ("activation", "pairing", "import", "export"), self.outputs
        own = {"activation": 0.5, "pairing": 1.0, "import": 0.1, "export": 0.1}
        found = [Parameter(f"{name}_rate", (name,), LogNormal(own[name], 0.5), positive=True) for name in rates]
        return [*found, Parameter("scale", scales, LogNormal(1.0, 0.3), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        free, active, pairs, nuclear = y.unbind(-1)
        enter = values["import_rate"][..., 0] * pairs
        leave = values["export_rate"][..., 0] * nuclear
        pushed = values["activation_rate"][..., 0] * softplus(f[..., 0]) * free
        paired = values["pairing_rate"][..., 0] * active.square()
        return join_states(2 * leave - pushed, pushed - paired, 0.5 * paired - enter, enter - leave)

    def initial_state(self, values: Values) -> Tensor:
        none = torch.zeros_like(values["import_rate"][..., 0])
        return join_states(none + 1, none, none, none)

    def observe(self, y: Tensor, values: Values) -> Tensor:
        phosphorylated = y[..., 1] + 2 * y[..., 2]
        return values["scale"] * join_states(phosphorylated, y[..., 0] + phosphorylated)


def jakstat() -> list[Instance]:
    """What was measured of STAT5; the receptor's own measurements are left out."""
    table = pd.read_csv(Path(os.environ["DISTLFM_DATA_DIR"]) / "measured" / "jakstat.csv")
    outputs, times = ("tpSTAT", "tSTAT"), np.unique(table.time_min).astype(np.float64)
    columns = [table[table.name == name].set_index("time_min").reindex(times) for name in outputs]
    values, sigma = (np.stack([column[what] for column in columns]) for what in ("value", "sigma"))
    seen = np.isfinite(values)
    variance = np.where(seen, sigma, 1.0) ** 2
    return [Instance("stat5", outputs, times, np.where(seen, values, 0.0), seen, variance=variance)]


def _force(lengthscale: float, variance: float) -> dict[str, Any]:
    sizes = {"lengthscale": (lengthscale, 0.3), "variance": (variance, 0.3)}
    return {"priors": {key: {"kind": "lognormal", "median": m, "spread": spread} for key, (m, spread) in sizes.items()}}


STAT = {"mechanism": {"kind": "jakstat"}, "force": _force(8.0, 2.0), "likelihood": {"noise": "given"}}
HILL = {
    **GENES,
    "mechanism": {
        **GENES["mechanism"],
        "response": {"kind": "hill"},
        "forces": ["activator", "repressor"],
        "priors": {**GENES["mechanism"]["priors"], "hill_weight": {"kind": "normal", "mean": 0.0, "sd": 1.0}},
    },
}


def _p53(kernel: str) -> tuple[dict[str, Any], list[Instance]]:
    config = load(FitConfig, P53, [f"force.kernel.kind={kernel}"])
    content = config.model_dump(mode="json", include={"mechanism", "force", "likelihood"})
    return content, list(load_set("p53").instances)[:1]


def _drawn(content: dict[str, Any], **observed: Any) -> Callable[[], tuple[dict[str, Any], list[Instance]]]:
    settings = {**content, **observed, "instances": 1, "seed": 17}
    return lambda: (content, simulate_from(build(SimulateConfig, settings)))


@dataclass(frozen=True)
class Case:
    """A model with an instance, and the methods that take it; linear ones have a goal."""

    make: Callable[[], tuple[dict[str, Any], list[Instance]]]
    methods: tuple[str, ...]
    linear: bool = False


SOLVED = ("nested", "joint", "variational")
CASES = {
    "p53": Case(lambda: _p53("rbf"), ("collapsed", "exact", "variational"), linear=True),
    "p53, matern52": Case(lambda: _p53("matern52"), ("collapsed", "filter"), linear=True),
    "predator": Case(_drawn(PREDATORS, points=16, stop=8.0), SOLVED),
    "softplus genes": Case(_drawn(GENES, points=12), SOLVED),
    "hill genes, two forces": Case(_drawn(HILL, points=12), SOLVED),
    "jak-stat": Case(lambda: (STAT, jakstat()), SOLVED),
    "counts": Case(_drawn(counts("poisson"), points=12), SOLVED),
}
QUICK = ("p53, matern52",)


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    table: list[dict[str, Any]] = []
    for name in only or (QUICK if quick else tuple(CASES)):
        case = CASES[name]
        content, instances = case.make()
        model = model_of(build(FitConfig, content), instances)

        reference, spent = fitted(model, instances, "reference", quick)
        truth = numbers(reference)
        figures[f"{name}: R-hat of the reference"] = at_most(reference.rhat or np.inf, AGREED)
        for method in ("reference", *(one for one in case.methods if one in SERIES)):
            if method == "reference":
                result, seconds, distance = reference, spent, compared(*halves(reference))
            else:
                result, seconds = fitted(model, instances, method, quick)
                distance = compared(numbers(result), truth)
            about = {"status": result.status, "effective draws": result.effective_draws, "R-hat": result.rhat}
            row = {"case": name, "method": method, **distance, **about, "CPU s": seconds}
            table.append(row)
            told = {key: round(one, 3) if isinstance(one, float) else one for key, one in row.items()}
            print(json.dumps(told), file=sys.stderr, flush=True)
            if case.linear and method != "variational":
                for what in ("parameters", "force"):
                    figures[f"{name}: {method}, W1 of {what}"] = at_most(row[f"W1 {what}"], LINEAR)
    return {"figures": figures, "table": table}


def fitted(model: Model, instances: list[Instance], method: str, quick: bool) -> tuple[FitResult, float]:
    """The fit by a method, and its CPU seconds."""
    options = build(InferenceConfig, {"method": method, "grid_points": TIMES, **_lengths(method, quick)})
    start = time.process_time()
    (result,) = fit_instances(model, instances, options)
    return result, time.process_time() - start


def _lengths(method: str, quick: bool) -> dict[str, Any]:
    """As many draws as are compared, of every method."""
    if method == "reference":
        return {"reference": {"warmup": 150, "draws": 150}} if quick else {}
    if method == "variational":
        return {"variational": {"draws": DRAWS}}
    if method == "joint":
        return {"joint": {"kept": 32}}
    return {"posterior": {"draws": DRAWS}}


@dataclass(frozen=True)
class Numbers:
    """Draws [DRAWS, parameters] and [DRAWS, forces · TIMES]."""

    parameters: FloatArray
    force: FloatArray


def numbers(result: FitResult, count: int = DRAWS) -> Numbers:
    """Draws of all unknowns, positive ones as logarithms, and of the force where people are shown it."""
    drawn = result.draws(count)
    space = result.posterior.model.space
    positive = [one.positive for one in space.parameters for _ in one.free]
    parts = [np.log(x) if log else x for x, log in zip(drawn.parameters.values(), positive, strict=True)]
    return Numbers(np.stack(parts, -1), drawn.force.reshape(len(drawn), -1))


def halves(reference: FitResult) -> tuple[Numbers, Numbers]:
    """Draws of one half of the chains and of the other, which know nothing of each other."""
    both, chains = numbers(reference, 2 * DRAWS), reference.chains
    first = np.arange(2 * DRAWS) % chains < chains // 2
    one, other = (Numbers(both.parameters[here], both.force[here]) for here in (first, ~first))
    return one, other


def compared(ours: Numbers, theirs: Numbers) -> dict[str, Any]:
    """How far our draws are from theirs."""
    found: dict[str, Any] = {}
    units = []
    for what in ("parameters", "force"):
        mine, other = getattr(ours, what), getattr(theirs, what)
        sd = other.std(0) + 1e-300
        apart = np.abs(np.sort(mine, 0) - np.sort(other, 0)).mean(0) / sd
        found[f"mean {what}"] = float(np.sqrt(np.mean(((mine.mean(0) - other.mean(0)) / sd) ** 2)))
        found[f"sd {what}"] = float(np.exp(np.mean(np.log(mine.std(0) / sd))))
        found[f"W1 {what}"], found[f"worst W1 {what}"] = float(apart.mean()), float(apart.max())
        keep = slice(None) if what == "parameters" else slice(None, None, max(1, TIMES // TOLD_APART))
        units.append([(one[:, keep] - other.mean(0)[keep]) / sd[keep] for one in (mine, other)])
    both = [np.concatenate(parts, -1) for parts in zip(*units, strict=True)]
    return {**found, "C2ST": told_apart(*both)}


def told_apart(ours: FloatArray, theirs: FloatArray) -> float:
    """Share of unseen draws [n, d] of both kinds that a network assigns rightly."""
    network = MLPClassifier((64, 64), max_iter=60, early_stopping=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        x, y = np.concatenate([ours, theirs]), np.repeat([0, 1], [len(ours), len(theirs)])
        scores = cross_val_score(network, np.clip(x, -8, 8), y, cv=FOLDS)
    return float(scores.mean())
