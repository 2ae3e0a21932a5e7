"""Simulation-based calibration: bands cover what they promise when data come from the model's own prior.

What 96 instances can tell is coarse: a share that is 0.1 too low may pass. This test finds what is badly wrong; a
benchmark with many more instances has to tell the rest. Settings are those that are shipped.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.posterior import PosteriorConfig
from distlfm.inference.result import FitResult, predict
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.mechanisms.priors import LogNormal
from distlfm.simulation.instances import simulate

NUM_INSTANCES = 96
PROBES = np.linspace(0.8, 7.2, 5)
"""Times at which the truth is asked for: far apart, as neighbouring ones say the same."""


def make_model() -> Model:
    mechanism = build_mechanism({"kind": "transcription", "outputs": ("a", "b"), "fixed": {"sensitivity": {"a": 1.0}}})
    priors = {"lengthscale": LogNormal(median=1.5, spread=0.5), "variance": LogNormal(median=1.0, spread=0.7)}
    return Model(mechanism, ForceConfig(priors=priors), LikelihoodConfig(prior=LogNormal(median=0.05, spread=0.5)))


@pytest.fixture(scope="module")
def instances() -> list[Instance]:
    times = np.linspace(0, 8, 7).tolist()
    return simulate(make_model(), num_instances=NUM_INSTANCES, times=times, truth_times=PROBES.tolist(), seed=11)


def fitted(instances: list[Instance], posterior: PosteriorConfig) -> list[FitResult]:
    return fit_instances(make_model(), instances, InferenceConfig(posterior=posterior, grid_points=2))


@pytest.fixture(scope="module")
def shipped(instances: list[Instance]) -> list[FitResult]:
    return fitted(instances, PosteriorConfig())


def coverage(results: list[FitResult]) -> dict[int, FloatArray]:
    """Share of probes [B] at which each instance's band of the force holds the truth, by level."""
    rows = torch.arange(len(results))
    found = predict(results[0].posterior, rows, torch.from_numpy(PROBES).repeat(len(results), 1))
    shares: dict[int, FloatArray] = {}
    for level in (68, 95):
        inside = []
        for result, one in zip(results, found, strict=True):
            assert result.instance.truth is not None
            lower, upper = getattr(one.force, f"lower{level}"), getattr(one.force, f"upper{level}")
            inside.append(((result.instance.truth.force >= lower) & (result.instance.truth.force <= upper)).mean())
        shares[level] = np.array(inside)
    return shares


def standard_error(share: float) -> float:
    """Binomial, as if all probes of an instance were one: the most that independent instances can scatter."""
    return float(np.sqrt(share * (1 - share) / NUM_INSTANCES))


@pytest.mark.slow
def test_bands_cover_what_they_promise_and_a_point_estimate_covers_less(
    instances: list[Instance], shipped: list[FitResult]
) -> None:
    whole, point = coverage(shipped), coverage(fitted(instances, PosteriorConfig(method="point")))
    assert abs(whole[68].mean() - 0.68) < 2.5 * standard_error(0.68)
    assert abs(whole[95].mean() - 0.95) < 2.5 * standard_error(0.95) + 0.01  # 64 draws make a coarse tail
    # The same data and forces: the difference has a small error of its own.
    lost = whole[68] - point[68]
    assert lost.mean() > 0.05
    assert lost.mean() > 3 * lost.std() / NUM_INSTANCES**0.5


def test_parameters_are_within_their_intervals_as_often_as_promised(shipped: list[FitResult]) -> None:
    space = make_model().space
    inside: list[bool] = []
    for result in shipped:
        assert result.instance.truth is not None
        for one in result.estimates:
            place = space[one.parameter].labels.index(one.label) if one.label else 0
            inside.append(one.lower68 <= result.instance.truth.parameters[one.parameter][place] <= one.upper68)
    # Parameters of one instance depend on each other: the error is taken over instances.
    assert abs(np.mean(inside) - 0.68) < 2.5 * standard_error(0.68)
