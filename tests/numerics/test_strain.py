"""Values in wrong units are told by the priors, however well a flexible force describes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.findings.estimates import strain
from distlfm.inference.fit import fit_instances
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

MODEL = {"mechanism": {"kind": "transcription", "fixed": {"sensitivity": {"output_0": 1.0}}}}


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (1000.0, True)])
def test_a_fit_of_values_1000_times_too_large_asks_for_their_units(factor: float, told: bool) -> None:
    content = {**MODEL, "instances": 1, "num_outputs": 2, "points": 8, "seed": 1}
    [one] = simulate_from(build(SimulateConfig, content))
    one = replace(one.observed(), values=factor * one.observed().values, truth=None)
    config = build(FitConfig, {**MODEL, "inference": {"posterior": {"draws": 16}}})
    [result] = fit_instances(model_of(config, [one]), [one], config.inference)
    assert ("check the units" in result.advice) == told


def test_noise_far_below_its_prior_is_no_strain() -> None:
    names = ("decay", "noise[a]")
    assert strain(names, torch.tensor([0.5, -9.0])) == ""
    assert strain(names, torch.tensor([0.5, 9.0])).startswith("noise[a] lies far")
    assert strain(names, torch.tensor([-6.0, 9.0])).startswith("noise[a], decay lie far")


def test_what_is_strained_is_told_with_the_keys_of_its_priors() -> None:
    names = ["meal.variance", "force.lengthscale[x]", "decay[p2.1]", "noise[a]"]
    assert strain(names, torch.tensor([9.0, 8.0, 7.0, 0.0])).endswith(
        "or widen the priors (force.priors.variance, force.priors.lengthscale[x], mechanism.priors.decay)."
    )
    assert strain(names, torch.tensor([0.0, 0.0, 0.0, 7.0])).endswith("(likelihood.prior).")
