"""Trajectories: exact solutions, order of convergence, gradients, and neighbours that diverge."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from distlfm.mechanisms import Mechanism, ParameterSpace, build_mechanism
from distlfm.solvers.base import FixedMethod, SolverConfig
from distlfm.solvers.ode import RULES, check_step, choose_steps, solve

FREQUENCY = 1.3


def glucose() -> Mechanism:
    """ẏ = −p (y − b) + f, of which everything is known in closed form when f is a sine."""
    return build_mechanism({"kind": "glucose"})


def glucose_values(rates: list[float], *, base: float = 2.0) -> dict[str, Tensor]:
    p = torch.tensor(rates, dtype=torch.float64).unsqueeze(-1)
    return {"return_rate": p, "base_level": torch.full_like(p, base), "initial": 1 + p}


def exact_glucose(values: dict[str, Tensor], times: Tensor) -> Tensor:
    """[B, T] for f = sin(ωt)."""
    p, w = values["return_rate"], FREQUENCY

    def particular(t: Tensor) -> Tensor:
        return values["base_level"] + (p * torch.sin(w * t) - w * torch.cos(w * t)) / (p**2 + w**2)

    t0 = times[:, :1]
    return particular(times) + (values["initial"] - particular(t0)) * torch.exp(-p * (times - t0))


@dataclass(frozen=True)
class Sines:
    """weight [S, B, L] · sin(ω x), of the first input."""

    weight: Tensor
    frequency: float = FREQUENCY

    def __call__(self, x: Tensor) -> Tensor:
        return self.weight.unsqueeze(-1) * torch.sin(self.frequency * x[..., 0]).unsqueeze(-2)


def unit_sines(num_samples: int, num_instances: int, num_forces: int = 1) -> Sines:
    return Sines(torch.ones(num_samples, num_instances, num_forces, dtype=torch.float64))


def uneven_times() -> Tensor:
    """Two instances: their own starts, spans and spacings, the second padded."""
    short = torch.linspace(1, 5, 700, dtype=torch.float64) ** 1.2
    return torch.stack([torch.linspace(0, 10, 998, dtype=torch.float64), torch.cat([short, short[-1:].expand(298)])])


@pytest.mark.parametrize(("method", "order"), [("rk4", 4), ("heun3", 3), ("midpoint", 2), ("heun2", 2), ("euler", 1)])
def test_error_falls_with_the_methods_order(method: FixedMethod, order: int) -> None:
    values, times = glucose_values([0.5, 1.1]), uneven_times()
    errors = []
    for steps in (40, 80, 160):
        found = solve(glucose(), unit_sines(1, 2), values, times, SolverConfig(method=method, steps=steps)).states
        errors.append(float((found[0, ..., 0] - exact_glucose(values, times)).abs().max()))
    rates = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
    assert all(abs(rate - order) < 0.25 for rate in rates), (errors, rates)


@pytest.mark.parametrize("method", ["dopri5", "bosh3"])
def test_adaptive_methods_meet_their_tolerance(method: str) -> None:
    values, times = glucose_values([0.5, 1.1]), uneven_times()
    config = SolverConfig(method=method, steps=200, rtol=1e-7, atol=1e-9)
    found = solve(glucose(), unit_sines(1, 2), values, times, config)
    assert found.ok.all()
    torch.testing.assert_close(found.states[0, ..., 0], exact_glucose(values, times), rtol=0, atol=2e-6)


def test_rk4_takes_torchdiffeqs_steps() -> None:
    from torchdiffeq import odeint

    mechanism = build_mechanism({"kind": "lotka_volterra"})
    values = ParameterSpace(mechanism.settled()).unpack(torch.linspace(-1, 1, 3, dtype=torch.float64).expand(1, 3))
    times = torch.linspace(0, 7, 22, dtype=torch.float64)

    def field(t: Tensor, y: Tensor) -> Tensor:
        return mechanism.vector_field(t, y, torch.sin(FREQUENCY * t), values)

    for method in RULES:
        expected = odeint(field, values["initial"], times, method=method)
        config = SolverConfig(method=method, steps=21)
        found = solve(mechanism, unit_sines(1, 1), values, times.unsqueeze(0), config)
        torch.testing.assert_close(found.states[0, 0], expected[:, 0], rtol=1e-12, atol=1e-12)


def test_choosing_steps_ignores_padding_and_the_unobserved() -> None:
    times = torch.tensor([[0.0, 1.0, 2.0, 10.0, 20.0, 20.0]], dtype=torch.float64)
    assert choose_steps(times) == 80
    assert choose_steps(times, torch.tensor([[True, False, False, True, True, True]])) == 32
    assert choose_steps(torch.cat([times, 3 * times])) == 80


def test_step_doubling_finds_the_instance_that_needs_more() -> None:
    values, times = glucose_values([0.3, 30.0]), torch.linspace(0, 10, 11, dtype=torch.float64).expand(2, 11)
    change = check_step(glucose(), unit_sines(3, 2), values, times, SolverConfig(steps=120))
    assert change.shape == (2,)
    assert change[0] < 1e-7
    assert change[1] > 1e-5
