"""Results made of invented numbers, for tests of what is done with results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distlfm.answer import Band
from distlfm.inference.base import Mixture, Posterior, Predicted, Unknowns
from distlfm.inference.findings.estimates import Direction, Estimate
from distlfm.inference.findings.scores import Tally, words_of
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.result import FitResult, Prediction
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.report.fit_page import fit_page

END = 12.0


class InventedPosterior(Posterior):
    """Knows names and observations, and predicts nothing but zeros."""

    method = "invented"

    def __init__(self, model: Model, instance: Instance) -> None:
        self.model = model
        self.observations = collate([instance], model.mechanism.outputs)

    def unknowns(self) -> Unknowns:
        return Unknowns(torch.zeros(1, 1, self.model.space.num_free), torch.ones(1, 1))

    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        def zeros(names: Sequence[str]) -> Mixture:
            nothing = torch.zeros(1, len(rows), len(names), times.shape[-1], dtype=torch.float64)
            return Mixture(nothing, torch.ones_like(nothing))

        return Predicted(zeros(self.model.mechanism.force_names), zeros(self.model.mechanism.outputs))

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        found = self.predict(rows, times)
        return found.force.means.repeat(count, 1, 1, 1), found.outputs.means.repeat(count, 1, 1, 1)

    def state(self) -> dict[str, Tensor]:
        return {}


def band(mean: FloatArray, sd: FloatArray) -> Band:
    return Band(mean, sd, mean - sd, mean + sd, mean - 1.96 * sd, mean + 1.96 * sd)


def force_at(times: FloatArray, seed: int) -> FloatArray:
    return 0.2 + np.exp(-0.5 * ((times - 3 - seed % 3) / 1.2) ** 2) + 0.6 * np.exp(-0.5 * ((times - 8) / 1.8) ** 2)


def outputs_at(times: FloatArray, num_outputs: int) -> FloatArray:
    return np.stack([(1 + 0.2 * p) * (1 + 0.5 * np.sin(0.5 * times + 0.4 * p)) for p in range(num_outputs)])


def make_result(
    name: str = "one",
    *,
    num_outputs: int = 3,
    outputs: Sequence[str] | None = None,
    kind: str = "transcription",
    truth: bool = True,
    status: str = "converged",
    advice: str = "",
    metadata: Mapping[str, str] | None = None,
    undetermined: Sequence[Direction] = (),
    seed: int = 0,
) -> FitResult:
    """A fit that looks like one; `status="diverged"` has no finite number in it."""
    names = tuple(outputs) if outputs is not None else tuple(f"gene{p}" for p in range(num_outputs))
    if kind == "lotka_volterra":
        names = ("predator",)
    rng = np.random.default_rng(seed)
    times, fine = np.linspace(0, END, 13), np.linspace(0, END, 121)
    values = outputs_at(times, len(names)) + 0.08 * rng.normal(size=(len(names), len(times)))
    model = Model(build_mechanism({"kind": kind}, names), ForceConfig(), LikelihoodConfig(shared=True))
    known = {
        one.name: 0.5 + rng.random(len(one.labels)) for one in model.space.parameters if one.kind in ("mechanism",)
    }
    instance = Instance(
        name,
        names,
        times,
        values,
        rng.random(values.shape) > 0.1,
        truth=Truth(fine, force_at(fine, seed)[None], outputs_at(fine, len(names)), parameters=known)
        if truth
        else None,
        metadata=metadata or {},
    )
    scale = np.nan if status == "diverged" else 1.0
    spread = 0.12 + 0.1 * (fine / END) ** 2
    force = band(scale * (force_at(fine, seed) + 0.08 * np.sin(2 * fine))[None], spread[None])
    curves = band(scale * outputs_at(fine, len(names)) + 0.02, np.full((len(names), len(fine)), 0.06))
    grid = Prediction(fine, force, curves)
    return FitResult(
        instance=instance,
        method="invented",
        status=status,
        advice=advice,
        bound=41.5 * scale,
        trace=(41.5 - 900 * np.exp(-0.2 * np.arange(60))) * scale,
        effective_draws=300.0,
        seconds=0.8,
        force_names=model.mechanism.force_names,
        estimates=tuple(_estimates(model, known, rng, scale)),
        undetermined=tuple(undetermined),
        grid=grid,
        at_data=grid,
        noise={},
        posterior=InventedPosterior(model, instance),
        row=0,
    )


def _estimates(model: Model, known: Mapping[str, FloatArray], rng: np.random.Generator, scale: float) -> list[Estimate]:
    found = []
    for parameter in model.space.parameters:
        for i, label in enumerate(parameter.labels):
            true = known[parameter.name][i] if parameter.name in known else 0.4
            middle = np.log(true) + 0.15 * rng.normal()
            sd = 0.15 + 0.2 * rng.random()
            limits = [scale * float(np.exp(middle + k * sd)) for k in (-1, 1, -1.96, 1.96)]
            mean = scale * float(np.exp(middle))
            shown = label if len(parameter.labels) > 1 else ""
            name = f"{parameter.name}[{shown}]" if shown else parameter.name
            found.append(
                Estimate(
                    name, parameter.kind, mean, sd * mean, *limits, shrinkage=0.7, parameter=parameter.name, label=shown
                )
            )
    return found


def make_rows(results: Sequence[FitResult], *, truth: bool = True) -> list[dict[str, Any]]:
    """The rows of a run, with invented scores."""
    rows = []
    for i, result in enumerate(results):
        rows.append(
            {
                "id": result.id,
                "status": result.status,
                **words_of(result),
                "output_q2": 0.99 - 0.01 * i if result.ok else None,
                "latent_q2": 0.95 - 0.03 * i if truth and result.ok else None,
                "latent_coverage_68": 0.66 if truth else None,
                "latent_coverage_95": 0.94 if truth else None,
                "output_coverage_68": 0.7,
                "output_coverage_95": 0.96,
                "parameter_mae": {"basal": 0.03, "decay": 0.05} if truth else {},
                "parameter_mae_sum": 0.08 if truth else None,
                "elbo": result.bound,
                "seconds": 0.5 + 0.1 * i,
                "kept": "somewhere",
            }
        )
    return rows


def make_page(path: Path, results: Sequence[FitResult], config: str = "", **given: Any) -> Path:
    """The page of some results, with invented scores."""
    tally = Tally(make_rows(results), given.pop("set_aside", ()))
    return fit_page(path, tally, {result.id: result for result in results}, config, given)
