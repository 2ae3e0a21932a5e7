"""Cases of equations that are linear in the force: what is wrong is the data, the noise, or what is held fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from distlfm.instance import FloatArray, Instance
from distlfm.mechanisms import Mechanism, MechanismConfig, Parameter, Values
from distlfm.mechanisms.priors import LogNormal
from tests.support.catalogue.case import Case, Force, observed

TIMES = np.linspace(0.0, 10.0, 41)
DECAY = 0.5


def inflow(t: FloatArray) -> FloatArray:
    return 1.0 + np.sin(t)


def quick(t: FloatArray) -> FloatArray:
    return 1.0 + np.sin(9 * t)


def leak(t: float, y: FloatArray, f: float) -> list[float]:
    return [f - DECAY * y[0]]


def genes(*sensitivities: float) -> Any:
    """Outputs with one force and the same decay."""

    def rate(t: float, y: FloatArray, f: float) -> list[float]:
        return [s * f - DECAY * one for s, one in zip(sensitivities, y, strict=True)]

    return rate


def tank(**more: Any) -> dict[str, Any]:
    """ẏ = f − d y from an empty tank, d unknown."""
    fixed = {"sensitivity": 1.0, "basal": 0.0, **more.pop("fixed", {})}
    return {"kind": "transcription", "initial": "zero", "fixed": fixed, **more}


NOISE = 0.05


def level(
    rng: np.random.Generator,
    start: float = 0.0,
    noise: float = NOISE,
    times: FloatArray = TIMES,
    force: Force = inflow,
    **more: Any,
) -> Instance:
    """The tank's level."""
    return observed(rng, leak, force, [start], times, noise, **more)


def wandering(rng: np.random.Generator) -> Instance:
    """White noise on top of an error that forgets itself within an hour."""
    times = np.linspace(0, 24, 97)

    def scatter(seen: FloatArray) -> FloatArray:
        gaps = np.abs(times[:, None] - times)
        slow = np.linalg.cholesky(0.3**2 * np.exp(-gaps / 1.0) + 1e-9 * np.eye(len(times)))
        return seen + slow @ rng.standard_normal(len(times)) + 0.02 * rng.standard_normal(seen.shape)

    return level(rng, times=times, force=lambda t: 1 + np.sin(t / 3), scatter=scatter)


def with_outliers(rng: np.random.Generator) -> Instance:
    def scatter(seen: FloatArray) -> FloatArray:
        far = rng.random(seen.shape) < 0.1
        return seen + np.where(far, 1.0, 0.02) * rng.standard_normal(seen.shape)

    return level(rng, scatter=scatter)


def saturated(rng: np.random.Generator) -> Instance:
    return level(rng, scatter=lambda seen: np.minimum(seen + 0.02 * rng.standard_normal(seen.shape), 2.0))


def rounded(rng: np.random.Generator) -> Instance:
    return level(rng, scatter=lambda seen: np.round(2 * seen) / 2)


def jumped(rng: np.random.Generator) -> Instance:
    """A sensor that was calibrated anew half way."""
    return level(rng, scatter=lambda seen: seen + (TIMES > 5) * 1.0 + 0.02 * rng.standard_normal(seen.shape))


def proportional(rng: np.random.Generator) -> Instance:
    """Noise that grows with the level, over two decades of it."""
    force = lambda t: np.exp(2.5 * np.sin(0.6 * t))  # noqa: E731
    times = np.linspace(0, 20, 81)
    return level(
        rng,
        times=times,
        force=force,
        scatter=lambda seen: seen * (1 + 0.2 * rng.standard_normal(seen.shape)),
    )


def clusters(rng: np.random.Generator) -> Instance:
    return level(rng, times=np.concatenate([np.linspace(0, 2, 12), np.linspace(12, 14, 12)]))


def doubled(rng: np.random.Generator) -> Instance:
    """Each reading copied to the next time."""
    made = level(rng, noise=0.1)
    made.values[:, 1::2] = made.values[:, :-1:2]
    return made


def delayed(rng: np.random.Generator) -> Instance:
    """The second of two genes answers a unit of time late."""
    early = observed(rng, genes(1.0, 0.7), inflow, [0, 0], TIMES, 0.02)
    late = observed(rng, genes(1.0, 0.7), lambda t: inflow(t - 1.0) * (t > 1.0), [0, 0], TIMES, 0.02)
    early.values[1], early.truth.outputs[1] = late.values[1], late.truth.outputs[1]  # type: ignore[union-attr, index]
    return early


def swapped(rng: np.random.Generator) -> Instance:
    """Two genes with known constants, their columns exchanged."""

    def rate(t: float, y: FloatArray, f: float) -> list[float]:
        return [f - 2.0 * y[0], 0.5 * f - 0.2 * y[1]]

    made = observed(rng, rate, inflow, [0, 0], TIMES, 0.02)
    made.values[:] = made.values[::-1].copy()
    return made


KNOWN = {"decay": {"y0": 2.0, "y1": 0.2}, "sensitivity": {"y0": 1.0, "y1": 0.5}, "basal": 0.0}


def constant(rng: np.random.Generator) -> Instance:
    del rng
    flat = lambda t: 0.0 * t  # noqa: E731
    return level(np.random.default_rng(0), start=0.0, force=flat, noise=0.0)


def shifted(values: float = 1.0, times: float = 1.0) -> Any:
    """Data in another unit than that of the priors."""

    def make(rng: np.random.Generator) -> Instance:
        if times != 1.0:
            return observed(
                rng,
                lambda t, y, f: [(f - DECAY * y[0]) / times],
                lambda t: inflow(t / times),
                [0],
                TIMES * times,
                NOISE,
            )
        return observed(rng, leak, lambda t: values * inflow(t), [0], TIMES, NOISE * values)

    return make


def hidden(rng: np.random.Generator) -> Instance:
    """A cascade whose protein is there from the beginning."""

    def rate(t: float, y: FloatArray, f: float) -> list[float]:
        return [f - y[0], 0.1 + y[0] - 0.4 * y[1], 0.1 + 0.5 * y[0] - 1.0 * y[2]]

    return observed(rng, rate, inflow, [6.0, 0.25, 0.1], TIMES, 0.01, hidden=1)


def stepped(rng: np.random.Generator) -> Instance:
    return level(rng, force=lambda t: np.where(t < 5, 0.2, 3.0), noise=0.01)


def noisy_one(rng: np.random.Generator) -> Instance:
    made = observed(rng, genes(1.0, 0.7), inflow, [0, 0], TIMES, 0.02)
    made.values[1] = 0.7 + 0.5 * rng.standard_normal(len(TIMES))
    made.truth.outputs[1] = np.nan  # type: ignore[union-attr, index]
    return made


def changed(rng: np.random.Generator) -> Instance:
    """A decay that is another one in the second half."""

    def rate(t: float, y: FloatArray, f: float) -> list[float]:
        decay = 0.3 if t < 5 else 1.5
        return [f - decay * y[0], 0.7 * f - DECAY * y[1]]

    return observed(rng, rate, inflow, [0, 0], TIMES, 0.01)


def saturating(rng: np.random.Generator) -> Instance:
    """Elimination that saturates, fitted as if it did not; the other output is what is said of it."""

    def rate(t: float, y: FloatArray, f: float) -> list[float]:
        return [f - 1.5 * y[0] / (0.3 + y[0]), f - DECAY * y[1]]

    return observed(rng, rate, lambda t: 0.6 + 0.5 * np.sin(t), [0, 0], TIMES, 0.01)


class Pulsed(Mechanism):
    """A push of half an hour that is known, through the clock."""

    size = 8.0

    def __init__(self) -> None:
        super().__init__(MechanismConfig(kind="pulsed", outputs=("y0",)))

    def parameters(self) -> list[Parameter]:
        return [Parameter("decay", self.outputs, LogNormal(median=0.5, spread=0.5), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f + self.push(t).unsqueeze(-1) - values["decay"] * y

    def push(self, t: Tensor) -> Tensor:
        return self.size * ((t >= 4.0) & (t < 4.5))

    def initial_state(self, values: Values) -> Tensor:
        return torch.zeros_like(values["decay"])


class Pumped(Pulsed):
    """The record of a pump: one rate for each hour."""

    record = torch.tensor([0.0, 2.0, 2.0, 0.0, 0.0, 5.0, 0.0, 1.0, 0.0, 0.0, 0.0])

    def push(self, t: Tensor) -> Tensor:
        return self.record[t.floor().long().clamp(0, 10)].to(t)


BESIDE = np.linspace(0.0, 10.0, 40)
"""Times none of which is a whole or a half hour but the first and the last: what jumps then does so between two."""

BRIEF = {"posterior": {"stages": [10, 20], "draws": 48}}


def pulsed(rng: np.random.Generator) -> Instance:
    return observed(rng, lambda t, y, f: [f + 8.0 * (4 <= t < 4.5) - DECAY * y[0]], inflow, [0], BESIDE, NOISE)


def pumped(rng: np.random.Generator) -> Instance:
    record = Pumped.record.tolist()
    return observed(rng, lambda t, y, f: [f + record[int(t)] - DECAY * y[0]], inflow, [0], BESIDE, NOISE)


CASES = [
    Case("start held fast beside the data", tank(), lambda rng: level(rng, start=3.0), seeds=6, told=True),
    Case("a known pulse through the clock", Pulsed(), pulsed, inference=BRIEF, seeds=2),
    Case("a pump's record through the clock", Pumped(), pumped, inference=BRIEF, seeds=2),
    Case("errors of the sensor that wander", tank(), wandering),
    Case(
        "given variances too small",
        tank(),
        lambda rng: level(rng, noise=0.3, variance=0.02**2),
        likelihood={"noise": "given"},
    ),
    Case("outliers", tank(), with_outliers),
    Case("a sensor at its limit", tank(), saturated),
    Case("values rounded to halves", tank(), rounded),
    Case("a sensor calibrated anew", tank(), jumped),
    Case("noise that grows with the level", tank(), proportional),
    Case("two clusters of times", tank(), clusters),
    Case("each value twice", tank(), doubled),
    Case("an output that is late", tank(), delayed),
    Case("columns exchanged", tank(fixed=KNOWN), swapped),
    Case("constant data", tank(), constant),
    Case("values in a unit 1000 times smaller", tank(), shifted(values=1000.0)),
    Case("values in a unit 1000 times larger", tank(), shifted(values=0.001)),
    Case("times in a unit 1000 times smaller", tank(), shifted(times=1000.0)),
    Case("times in a unit 1000 times larger", tank(), shifted(times=0.001)),
    Case(
        "a decay fixed to a wrong value",
        tank(fixed={"decay": {"y0": 0.5, "y1": 3.0}}),
        lambda rng: observed(rng, genes(1.0, 1.0), inflow, [0, 0], TIMES, 0.02),
    ),
    Case(
        "a hidden state with another start",
        {
            "kind": "cascade",
            "fixed": {
                "protein_decay": 1.0,
                "basal": 0.1,
                "decay": {"y0": 0.4, "y1": 1.0},
                "sensitivity": {"y0": 1.0, "y1": 0.5},
            },
        },
        hidden,
    ),
    Case("a force that jumps", tank(), stepped),
    Case("a force quicker than the sampling", tank(), lambda rng: level(rng, force=quick, noise=0.01)),
    Case("an output of noise alone", tank(), noisy_one),
    Case("a decay that changes half way", tank(fixed={"sensitivity": {"y0": 1.0, "y1": 0.7}}), changed),
    Case("elimination that saturates", tank(), saturating),
    Case("a wrong period", tank(), level, force={"kernel": {"kind": "periodic"}, "fixed": {"period_length": 4.4}}),
    Case(
        "noise expected a hundred times too large",
        tank(),
        level,
        likelihood={"prior": {"kind": "lognormal", "median": 5.0, "spread": 0.5}},
    ),
    Case(
        "noise expected a hundred times too small",
        tank(),
        level,
        likelihood={"prior": {"kind": "lognormal", "median": 0.0005, "spread": 0.5}},
    ),
    Case(
        "a lengthscale expected far too long",
        tank(),
        level,
        force={"priors": {"lengthscale": {"kind": "lognormal", "median": 30.0, "spread": 0.1}}},
    ),
    Case(
        "a stiff decay",
        tank(priors={"decay": {"kind": "lognormal", "median": 3000.0, "spread": 0.2}}),
        lambda rng: observed(
            rng, lambda t, y, f: [3000.0 * 0 + f - 3000.0 * y[0]], lambda t: 3000 * inflow(t), [0], TIMES, NOISE
        ),
        force={"priors": {"variance": {"kind": "lognormal", "median": 1e7, "spread": 0.5}}},
    ),
    Case("three values", tank(), lambda rng: level(rng, times=np.array([0.0, 4.0, 9.0]))),
]
