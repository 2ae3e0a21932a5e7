"""Cases that go through the solver: several modes, traps, stiffness, counts, few draws, a wrong equation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distlfm.instance import FloatArray, Instance
from distlfm.mechanisms import Mechanism, MechanismConfig, Parameter, Values
from distlfm.mechanisms.priors import LogNormal
from tests.support.catalogue.case import Case, observed
from tests.support.catalogue.linear import inflow

FEW = np.linspace(0.0, 10.0, 13)

SMOOTH = {"priors": {"lengthscale": {"kind": "lognormal", "median": 2.0, "spread": 0.3}}}


class Squared(Mechanism):
    """ẏ = f² − d y, which both signs of f explain alike."""

    def __init__(self) -> None:
        super().__init__(MechanismConfig(kind="squared", outputs=("y0",)))

    def parameters(self) -> list[Parameter]:
        return [Parameter("decay", self.outputs, LogNormal(median=0.5, spread=0.5), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f.square() - values["decay"] * y

    def initial_state(self, values: Values) -> Tensor:
        return torch.zeros_like(values["decay"])


def squared(rng: np.random.Generator) -> Instance:
    return observed(rng, lambda t, y, f: [f * f - 0.5 * y[0]], lambda t: -1.0 + np.sin(t), [0.0], FEW, 0.05)


def positive(x: Any) -> Any:
    return np.logaddexp(0.0, x)


def softplus(rng: np.random.Generator) -> Instance:
    """Two genes that answer to a positive drive."""

    def rate(t: float, y: FloatArray, f: float) -> list[float]:
        return [0.1 + positive(f) - 0.5 * y[0], 0.1 + 0.7 * positive(f) - 1.0 * y[1]]

    return observed(rng, rate, lambda t: 1.5 * np.sin(t), [0.2, 0.1], FEW, 0.03)


def absorbed(rng: np.random.Generator) -> Instance:
    """Concentrations after one dose, as few as are drawn in a day: a drive that is nothing but its first hour."""
    times = np.array([0.0, 0.25, 0.57, 1.12, 2.02, 3.82, 5.1, 7.03, 9.05, 12.12, 24.37])

    def uptake(t: FloatArray) -> FloatArray:
        return 15.0 * np.exp(-1.5 * t)

    made = observed(rng, lambda t, y, f: [f - 0.08 * y[0]], uptake, [0.0], times, 0.3)
    return made


def prey(t: FloatArray) -> FloatArray:
    return positive(1.5 * np.sin(1.2 * t))  # type: ignore[no-any-return]


def predators(rng: np.random.Generator) -> Instance:
    times = np.linspace(0.0, 8.0, 16)
    return observed(rng, lambda t, y, f: [y[0] * (0.5 * f - 0.8)], prey, [1.0], times, 0.05)


def counted(spread: float) -> Any:
    """Counts of a softplus gene; spread: variance beyond Poisson's, as a share of the squared mean."""

    def make(rng: np.random.Generator) -> Instance:
        def scatter(seen: FloatArray) -> FloatArray:
            mean = np.maximum(seen, 0)
            rate = rng.gamma(1 / spread, spread * mean) if spread else mean
            return rng.poisson(rate).astype(float)

        def rate(t: float, y: FloatArray, f: float) -> list[float]:
            return [5.0 + 50.0 * positive(f) - 0.5 * y[0]]

        return observed(rng, rate, lambda t: 1.0 + np.sin(t), [10.0], np.linspace(0, 10, 24), 0.0, scatter=scatter)

    return make


COUNTS = {
    "kind": "transcription",
    "response": {"kind": "softplus"},
    "fixed": {"sensitivity": 50.0},
    "priors": {
        "basal": {"kind": "lognormal", "median": 5.0, "spread": 0.5},
        "decay": {"kind": "lognormal", "median": 0.5, "spread": 0.3},
    },
}


def stiff(rng: np.random.Generator) -> Instance:
    def rate(t: float, y: FloatArray, f: float) -> list[float]:
        return [3000.0 * (positive(f) - y[0])]

    return observed(rng, rate, lambda t: np.sin(t), [np.log(2.0)], FEW, 0.02)


class Stiff(Mechanism):
    """ẏ = k (softplus(f) − y), much quicker than anything that is seen."""

    def __init__(self) -> None:
        super().__init__(MechanismConfig(kind="stiff", outputs=("y0",)))

    def parameters(self) -> list[Parameter]:
        return [Parameter("speed", self.outputs, LogNormal(median=3000.0, spread=0.1), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return values["speed"] * (torch.nn.functional.softplus(f) - y)

    def initial_state(self, values: Values) -> Tensor:
        return torch.full_like(values["speed"], float(np.log(2.0)))


GENES = {
    "kind": "transcription",
    "response": {"kind": "softplus"},
    "fixed": {"sensitivity": {"y0": 1.0}},
    "priors": {"sensitivity": {"kind": "lognormal", "median": 1.0, "spread": 0.3}},
}
ONE = {"kind": "transcription", "response": {"kind": "softplus"}, "initial": "zero", "fixed": {"basal": 0.0}}


def started(rng: np.random.Generator) -> Instance:
    """A tank of positive inflow that is not empty at the start, as its model says."""
    return observed(rng, lambda t, y, f: [positive(f) - 0.5 * y[0]], inflow, [3.0], FEW, 0.03, shown=inflow)


def linear_really(rng: np.random.Generator) -> Instance:
    """A drive that turns negative, which the model's response never does."""
    return observed(rng, lambda t, y, f: [f - 0.5 * y[0]], lambda t: 2 * np.sin(t), [0.0], np.linspace(0, 10, 25), 0.03)


FOUND = [
    Case("two signs of the force", Squared(), squared, SMOOTH),
    Case("two signs of the force, from several starts", Squared(), squared, SMOOTH, inference={"restarts": 3}),
    Case(
        "two signs of the force, variational",
        Squared(),
        squared,
        SMOOTH,
        inference={"method": "variational", "variational": {"iterations": 80}},
    ),
    Case("two genes with a positive drive", GENES, softplus, SMOOTH),
    Case("slopes matched alone", GENES, softplus, SMOOTH, inference={"method": "preestimate"}),
    Case("a dose taken up within an hour", {**ONE, "fixed": {"basal": 0.0, "sensitivity": 1.0}}, absorbed),
    Case(
        "unseen prey",
        {"kind": "lotka_volterra"},
        predators,
        likelihood={"prior": {"kind": "lognormal", "median": 0.05, "spread": 0.3}},
    ),
    Case("counts as they should be", COUNTS, counted(0.0), SMOOTH, {"kind": "poisson"}),
    Case("counts that scatter more", COUNTS, counted(0.3), SMOOTH, {"kind": "poisson"}),
    Case("a stiff equation", Stiff(), stiff, SMOOTH),
    Case(
        "a curved tank held fast beside the data", {**ONE, "fixed": {"basal": 0.0, "sensitivity": 1.0}}, started, SMOOTH
    ),
    Case("a response that cannot do it", {**ONE, "fixed": {"basal": 0.0, "sensitivity": 1.0}}, linear_really, SMOOTH),
]
QUICK: dict[str, Any] = {"posterior": {"stages": [5, 10]}}


def _quicker(case: Case) -> Case:
    """The same with fewer proposals, where the method has any and the answer is not asked to be right."""
    whole = case.inference.get("method") == "variational" or case.name == "unseen prey"
    return replace(case, slow=True, inference={**({} if whole else QUICK), **case.inference})


CASES = [_quicker(case) for case in FOUND]
