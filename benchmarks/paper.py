"""The paper's own software (alfi) on the paper's series: by its scripts' settings, and scored as ours is.

Its figures have no goals: they stand beside ours in docs/paper.md. Its scripts choose an epoch with the truth; that
one is scored as they do, and the last one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from benchmarks.goals import at_least
from benchmarks.hafner import period
from benchmarks.lfo_shared import say
from benchmarks.p53 import num_peaks
from benchmarks.paper_fits import Found, Rates, Series, analytic, prey, variational
from benchmarks.paper_software import VERSION, software
from distlfm.config import load
from distlfm.data import catalog
from distlfm.inference.findings.scores import q2
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.runs.settings import FitConfig
from distlfm.verbs.fit import fit

CONFIGS = Path("configs/fit")
NAMES = ("basal", "sensitivity", "decay")
P21, STARTS = Rates(gene=3, sensitivity=1.0, decay=0.8), 5
LITERATURE = {
    "basal": np.array([0.0649, 0.0069, 0.0181, 0.0033, 0.0869]),
    "sensitivity": np.array([0.9075, 0.9748, 0.9785, 1.0, 0.9680]),
    "decay": np.array([0.2829, 0.3720, 0.3617, 0.8, 0.3573]),
}
"""p53's targets, in the order of the data, as alfi quotes them for its figures."""

INDUCING = (5, 10, 15, 20, 29)
SEEN, UNTIL = 12.0, 20.0


def run(quick: bool = False) -> dict[str, Any]:
    """The only goal is that every part of it ran to its last epoch."""
    found: dict[str, Any] = {}
    with software():
        for one in PARTS:
            say(f"alfi {VERSION}: {one.__name__}")
            found[one.__name__] = one(20 if quick else 0)
    figures = {"parts that ran": at_least(len(found), len(PARTS))}
    return {"figures": figures, "alfi": VERSION, **found}


def transcription(epochs: int) -> dict[str, Any]:
    """The five sets, the first gene's sensitivity and decay known: as recorded (the paper), and as they really are."""
    sets = np.load(catalog.path_of("transcription_toy"))
    stride = int(sets["train_stride"])
    found: dict[str, Any] = {}
    for label in ("sensitivity_as_recorded", "sensitivity"):
        rows: dict[str, list[dict[str, Any]]] = {"variational": [], "analytic": []}
        for index, values in enumerate(sets["y"]):
            times, given = sets["t"], values[:, ::stride]
            series = Series(times[::stride], given, np.full_like(given, 1e-3))
            truth = {name: sets[label if name == "sensitivity" else name][index] for name in NAMES}
            known = Rates(0, *(float(truth[name][0]) for name in ("sensitivity", "decay")))
            runs = {
                "variational": variational(series, times, known, epochs or 700, seed=index),
                "analytic": analytic(series, times, known, epochs or 700),
            }
            for method, every in runs.items():
                rows[method].append(_against(every, sets["force"][index], values, truth))
            say(f"set {index}, {label}: {rows['variational'][-1]['last']}")
        found[label] = {method: _together(each) for method, each in rows.items()}
    return found


def _against(every: Sequence[Found], force: FloatArray, outputs: FloatArray, rates: dict[str, FloatArray]) -> Any:
    """Scores of the last epoch, and those of the epochs that the truth likes best, one for each kind of score."""
    scores = [
        {
            "latent Q²": q2(one.force, force),
            "output Q²": q2(one.outputs, outputs),
            "sum of parameter errors": float(sum(np.abs(one.rates[name] - rates[name]).mean() for name in NAMES)),
            "force within 68 %": float((np.abs(one.force - force) <= one.force_sd).mean()),
            "force within 95 %": float((np.abs(one.force - force) <= 1.96 * one.force_sd).mean()),
        }
        for one in every
    ]
    best = max(scores, key=lambda one: one["latent Q²"] + one["output Q²"])
    return {"last": scores[-1], "best by the truth": best, "epochs": every[-1].epochs, "seconds": every[-1].seconds}


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and worst of five sets."""
    found: dict[str, Any] = {"epochs": [row["epochs"] for row in rows], "seconds": [row["seconds"] for row in rows]}
    for which in ("last", "best by the truth"):
        columns = {name: [row[which][name] for row in rows] for name in rows[0][which]}
        found[which] = {
            name: {"mean": float(np.mean(each)), "worst": max(each) if "errors" in name else min(each)}
            for name, each in columns.items()
        }
    return found


def p53(epochs: int) -> dict[str, Any]:
    """p53 of each replicate, p21's rates known, and the rates of the first one over five starts."""
    oracle = fit(load(FitConfig, CONFIGS / "p53.yaml", ["inference.method=exact"])).results
    rows = []
    for seed, result in enumerate(oracle):
        one, grid = result.instance, result.grid.times
        series = Series(one.times, one.values, one.variance)
        options = {
            "inducing": 20,
            "rates": (0.09, 0.02),
            "model": {"initial_basal": 0.1, "initial_decay": 0.1, "initial_sensitivity": 2},
        }
        last = variational(series, grid, P21, epochs or 200, seed, **options)[-1]
        own = analytic(series, grid, P21, epochs or 150, rate=0.07)[-1]
        here = [int(np.abs(grid - time).argmin()) for time in one.times]
        assert one.variance is not None
        sd = np.sqrt(last.outputs_sd[:, here] ** 2 + one.variance)
        band = result.grid.force
        rows.append(
            {
                "data within 2 sd": float((np.abs(one.values - last.outputs[:, here]) <= 2 * sd).mean()),
                "peak, h": float(grid[np.argmax(last.force)]),
                "maxima above half the peak": num_peaks(last.force),
                "force within our analytic 95 % band": _within(last.force, band.lower95[0], band.upper95[0]),
                "its own analytic force within it": _within(own.force, band.lower95[0], band.upper95[0]),
                "mean distance from its own analytic force": float(np.abs(last.force - own.force).mean()),
                "epochs": last.epochs,
            }
        )
    first = oracle[0].instance
    series = Series(first.times, first.values, first.variance)
    starts = [
        variational(series, first.times, P21, epochs or 450, seed, inducing=12, rates=(0.1, 0.03))[-1].rates
        for seed in range(STARTS)
    ]
    spread = {name: np.stack([one[name] for one in starts]).std(0) for name in NAMES}
    return {
        "replicates": rows,
        "rates over starts, mean": {name: np.mean([one[name] for one in starts], 0).tolist() for name in NAMES},
        "rates over starts, largest deviation": {name: float(each.max()) for name, each in spread.items()},
    }


def inducing_points(epochs: int) -> dict[str, Any]:
    """Squared distance of the first replicate's rates from the literature's, by the number of inducing points."""
    config = load(FitConfig, CONFIGS / "p53.yaml")
    (first, *_) = fit(config).results
    ours = {one.name: one.mean for one in first.estimates}
    genes = first.instance.outputs
    known = {"sensitivity": {"p21": 1.0}, "decay": {"p21": 0.8}}
    rates = {
        name: np.array([known.get(name, {}).get(gene, ours.get(f"{name}[{gene}]", np.nan)) for gene in genes])
        for name in NAMES
    }
    one = first.instance
    series = Series(one.times, one.values, one.variance)
    found: dict[str, Any] = {"distlfm, which needs none": _distance(rates)}
    for count in INDUCING:
        options = {"inducing": count, "rates": (0.1, 0.03), "step": 0.1}
        last = variational(series, one.times, P21, epochs or 350, seed=0, **options)[-1]
        found[f"alfi, {count}"] = _distance(last.rates)
    return found


def _distance(rates: dict[str, FloatArray]) -> float:
    return float(sum(np.square(rates[name] - LITERATURE[name]).mean() for name in NAMES))


def convergence(epochs: int) -> dict[str, Any]:
    """Seconds of the script's 600 epochs on the first replicate of p53, and of a whole fit by distlfm."""
    config = load(FitConfig, CONFIGS / "p53.yaml")
    done = fit(config).results
    one = done[0].instance
    series = Series(one.times, one.values, one.variance)
    return {
        "alfi, variational": variational(series, one.times, P21, epochs or 600, 0, inducing=20, rates=(0.1, 0.03))[
            -1
        ].seconds,
        "alfi, analytic": analytic(series, one.times, P21, epochs or 600)[-1].seconds,
        "distlfm": done[0].seconds,
    }


def _within(force: FloatArray, lower: FloatArray, upper: FloatArray) -> float:
    return float(((force >= lower) & (force <= upper)).mean())


def hafner(epochs: int) -> dict[str, Any]:
    """p53 in MCF7 cells: the script's linear model, each gene scaled as its reader does."""
    found = {}
    for seed, one in enumerate(catalog.load("hafner").instances):
        scale = np.sqrt(np.linalg.norm(one.values, axis=1, keepdims=True) / len(one.values))
        grid = np.linspace(0, float(one.times[-1]), 121)
        options = {"inducing": 12, "natural": False, "lengthscale": 2, "samples": 70}
        series = Series(one.times, one.values / scale)
        last = variational(series, grid, None, epochs or 500, seed, **options)[-1]
        found[one.id] = {"period, h": period(grid, last.force, last.force_sd), "epochs": last.epochs}
    return found


def lotka_volterra(epochs: int) -> dict[str, Any]:
    """The paper's predator at 13 times up to 12, its prey up to 20: by alfi, and by distlfm with rates known or not."""

    def flow(_: float, state: FloatArray) -> list[float]:
        hare, lynx = state
        return [2 / 3 * hare - 4 / 3 * hare * lynx, hare * lynx - lynx]

    times = np.linspace(0, UNTIL, 201)
    hare, lynx = solve_ivp(flow, (0, UNTIL), [1.6, 0.8], t_eval=times, rtol=1e-9, atol=1e-9).y
    later, seen = times > SEEN, np.flatnonzero(times <= SEEN)[::10]
    values = lynx[None, seen]
    truth = Truth(times, hare[None], lynx[None])
    given = Instance("paper", ("predator",), times[seen], values, np.ones_like(values, dtype=bool), truth=truth)
    found = prey(Series(times[seen], values), times, epochs or 1400, seed=0)
    scores: dict[str, Any] = {
        "alfi, rates learned": {
            "prey Q², unseen": q2(found.force[later], hare[later]),
            "predator Q², unseen": q2(found.outputs[0, later], lynx[later]),
            "rates": {name: each.tolist() for name, each in found.rates.items()},
            "epochs": found.epochs,
            "seconds": found.seconds,
        }
    }
    free = ["mechanism.fixed={}", "inference.method=variational"]
    for label, overrides in (("rates known", []), ("rates learned", free)):
        config = load(FitConfig, CONFIGS / "lotka_volterra.yaml", [f"inference.until={UNTIL}", *overrides])
        (result,) = fit(config, data=[given]).results
        ours = result.predict(times[later])
        scores[f"distlfm, {label}"] = {
            "prey Q², unseen": q2(ours.force.mean, hare[None, later]),
            "predator Q², unseen": q2(ours.outputs.mean, lynx[None, later]),
            "rates": {one.name: [one.mean, one.sd] for one in result.estimates},
            "status": result.status,
        }
    return scores


PARTS = (transcription, p53, inducing_points, convergence, hafner, lotka_volterra)
