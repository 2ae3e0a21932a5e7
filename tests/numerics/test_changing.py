"""Linear equations whose coefficients change in time: solved in closed form, and beside a solver's curve."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.collapsed import CollapsedPosterior
from distlfm.inference.findings.rerun import solver_gap
from distlfm.inference.fit import AutoSeries, InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.result import UNRELIABLE, FitResult
from distlfm.inference.series.changing import ChangingGaussian, changing_quadrature
from distlfm.inference.series.collapsed import Collapsed
from distlfm.inference.series.linear import Quadrature
from distlfm.inference.series.nested import Nested
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import Mechanism, MechanismConfig, Parameter, Values, register
from distlfm.mechanisms.priors import LogNormal, ParameterSpace
from distlfm.simulation.instances import simulate
from distlfm.solvers.changing import changing_response, jumps
from distlfm.solvers.linear import panels
from distlfm.solvers.ode import CLASSICAL, march

QUICK = InferenceConfig.model_validate({"grid_points": 41, "posterior": {"stages": [10, 20], "draws": 32}})


class Tank(Mechanism):
    """Fills by the force, and leaks."""

    def parameters(self) -> list[Parameter]:
        return [Parameter("rate", ("r",), LogNormal(median=0.5, spread=0.3), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        return f - values["rate"] * y

    def initial_state(self, values: Values) -> Tensor:
        return torch.zeros_like(values["rate"]).expand(*values["rate"].shape[:-1], self.num_states)


@register("pulsed_tank")
class Pulsed(Tank):
    """A known input for half an hour."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f + torch.where((t - 5.1).abs() < 0.25, 3.0, 0.0).unsqueeze(-1) - values["rate"] * y


@register("seasonal_tanks")
class Seasonal(Tank):
    """Everything goes with the clock, and tanks fill each other: no two of their matrices commute."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        season = (1 + 0.5 * torch.sin(2 * t)).unsqueeze(-1)
        return f * season - values["rate"] * season * y + 0.6 * y.roll(1, -1) * torch.cos(t).unsqueeze(-1)


@register("late_tank")
class Late(Tank):
    """The input begins at a time that is not known."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f + torch.where(t.unsqueeze(-1) > 5 * values["rate"], 3.0, 0.0) - values["rate"] * y


@register("half_linear_tank")
class HalfLinear(Tank):
    """Linear until it is not."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f - values["rate"] * y * torch.where((t > 30).unsqueeze(-1), y, 1.0)


def made(kind: type[Mechanism], outputs: tuple[str, ...] = ("x",)) -> Mechanism:
    return kind(MechanismConfig(kind=kind.kind, outputs=outputs))


def model_of(mechanism: Mechanism) -> Model:
    smooth = {"lengthscale": LogNormal(median=1.0, spread=0.2), "variance": LogNormal(median=1.0, spread=0.2)}
    return Model(mechanism, ForceConfig(priors=smooth), LikelihoodConfig(prior=LogNormal(median=0.05, spread=0.1)))


def jumps_of(mechanism: Mechanism, last: float = 40.0) -> tuple[float, ...] | None:
    return jumps(mechanism, ParameterSpace(mechanism.settled()), 0.0, last)


def test_where_coefficients_jump_is_found() -> None:
    found = jumps_of(made(Pulsed))
    assert found is not None
    np.testing.assert_allclose(found, [4.85, 5.35], atol=1e-9)
    assert jumps_of(made(Seasonal, ("x", "y"))) == ()


@pytest.mark.parametrize("kind", [Late, HalfLinear], ids=lambda one: one.__name__)
def test_what_no_quadrature_follows_goes_through_the_solver(kind: type[Mechanism]) -> None:
    model = model_of(made(kind))
    assert model.linearity.timed
    assert jumps_of(made(kind)) is None
    times = np.linspace(0.0, 40.0, 21)
    instance = Instance("one", ("x",), times, np.zeros((1, 21)), np.ones((1, 21), dtype=bool))
    assert isinstance(AutoSeries.suits(model, instance, QUICK), Nested)


def stepped(mechanism: Mechanism, values: Values, steps: int = 1000) -> Tensor:
    """Outputs [1, P, 21] at 21 times from 0 to 10, driven by a sine, by a solver."""

    def slope(tau: float, y: Tensor) -> Tensor:
        t = torch.tensor([10.0 * tau], dtype=torch.float64)
        return 10.0 * mechanism.vector_field(t, y, t.sin().unsqueeze(-1), values)

    return march(slope, mechanism.initial_state(values), steps, CLASSICAL)[:, :: steps // 20].mT


def closed(mechanism: Mechanism, values: Values, jumping: tuple[float, ...], parts: int) -> Tensor:
    """The same in closed form, with so many panels between two times."""
    times = torch.linspace(0.0, 10.0, 21, dtype=torch.float64).unsqueeze(0)
    fine = torch.linspace(0.0, 10.0, 20 * parts + 1, dtype=torch.float64)
    breaks = torch.cat([fine, torch.tensor(jumping, dtype=torch.float64), times[0]]).unique().unsqueeze(0)
    grid = panels(breaks, 1, 4)
    offset, weight = changing_response(mechanism, values, times, grid)
    return offset + torch.einsum("bkptg,bg->bpt", weight, grid.nodes.sin())


RATE = {"rate": torch.tensor([[0.7]], dtype=torch.float64)}


def test_the_curve_of_a_pulse_is_that_of_a_solver() -> None:
    mechanism = made(Pulsed)
    found, expected = closed(mechanism, RATE, (4.85, 5.35), 1), stepped(mechanism, RATE)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-2)
    assert float((closed(mechanism, RATE, (), 1) - expected).abs().max()) > 0.05


def test_matrices_that_change_are_followed_to_the_third_order_and_better() -> None:
    mechanism = made(Seasonal, ("x", "y"))
    expected = stepped(mechanism, RATE)
    coarse, fine = (float((closed(mechanism, RATE, (), parts) - expected).abs().max()) for parts in (1, 2))
    assert coarse < 1e-3
    assert fine < coarse / 7


@pytest.fixture(scope="module")
def pulsed() -> tuple[FitResult, Instance]:
    model, even = model_of(made(Pulsed)), np.linspace(0.0, 10.0, 21)
    (instance,) = simulate(model, num_instances=1, times=even.tolist(), truth_times=even.tolist(), seed=1)
    return fit_instances(model, [instance.blind()], QUICK)[0], instance


def test_a_force_beside_a_known_pulse_is_inferred_in_closed_form(
    pulsed: tuple[FitResult, Instance], tmp_path: Any
) -> None:
    result, instance = pulsed
    assert (result.method, result.status) == ("collapsed", "converged")
    assert instance.truth is not None
    assert instance.truth.force is not None
    found = result.predict(instance.truth.times).force
    assert (np.abs(found.mean - instance.truth.force) < 4 * found.sd).all()
    save_fit(result, tmp_path / "fit.npz")
    again = load_fit(tmp_path / "fit.npz").predict([1.0, 5.2]).force
    np.testing.assert_allclose(again.mean, result.predict([1.0, 5.2]).force.mean, rtol=1e-9)


def test_a_curve_that_is_not_the_equations_is_noticed(pulsed: tuple[FitResult, Instance]) -> None:
    result, _ = pulsed
    assert solver_gap(result) < 0.1
    posterior = result.posterior
    assert isinstance(posterior, CollapsedPosterior)
    blind = ChangingGaussian(posterior.model, posterior.observations, posterior.model.linearity, Quadrature(1, 1))
    unknowns = posterior.unknowns()
    assert solver_gap(replace(result, posterior=CollapsedPosterior("collapsed", blind, posterior.draws, unknowns))) > 1


class Pumped(Tank):
    """The record of a pump, one rate for each hour."""

    record = torch.tensor([0.0, 2.0, 2.0, 0.0, 0.0, 5.0, 0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f + self.record[t.floor().long().clamp(0, 10)].unsqueeze(-1) - values["rate"] * y


def by_hand(times: FloatArray, rate: float, variance: float, lengthscale: float) -> tuple[FloatArray, FloatArray]:
    """Mean [T] and covariance [T, T] of the pumped tank at times, by twenty nodes between any of times and hours."""
    breaks = np.union1d(times, np.arange(11.0))
    points, weights = np.polynomial.legendre.leggauss(20)
    half = 0.5 * np.diff(breaks)[:, None]
    nodes = (breaks[:-1, None] + half * (1 + points)).ravel()
    left = np.where(nodes < times[:, None], np.exp(-rate * (times[:, None] - nodes)), 0.0) * (half * weights).ravel()
    apart = (nodes[:, None] - nodes) / lengthscale
    return left @ Pumped.record.numpy()[nodes.astype(int)], left @ (variance * np.exp(-0.5 * apart**2)) @ left.T


def test_the_density_of_a_pumps_record_is_that_of_an_independent_integral() -> None:
    model, times, noise = model_of(made(Pumped)), np.linspace(0.0, 10.0, 13), 0.05
    values = np.random.default_rng(0).normal(3.0, 1.0, (1, 13))
    data = collate([Instance("one", ("x",), times, values, np.ones((1, 13), dtype=bool))], ("x",))
    found = changing_quadrature(model, data, None)
    assert found is not None
    assert found.breaks == pytest.approx([1, 3, 5, 6, 7, 8], abs=1e-9)
    z = torch.tensor([[0.8, -0.5, 0.3, 0.0]], dtype=torch.float64)
    unknowns = {name: float(one) for name, one in model.space.unpack(z).items()}
    rest = (unknowns["rate"], unknowns["force.variance"], unknowns["force.lengthscale"])
    mean, covariance = by_hand(times, *rest)
    expected = stats.multivariate_normal(mean, covariance + noise**2 * np.eye(13)).logpdf(values[0])
    assert unknowns["noise"] == pytest.approx(noise)
    for substeps, near in ((found.substeps, 1e-3), (4, 1e-6)):
        marginal = ChangingGaussian(model, data, model.linearity, replace(found, substeps=substeps))
        offset, between = marginal.observed_prior(model.space.unpack(z), data.times)
        np.testing.assert_allclose(offset[0], mean, atol=1e-6)
        np.testing.assert_allclose(between[0], covariance, atol=1e-6 if substeps == 4 else 1e-3)
        assert float(marginal.log_marginal(z, torch.tensor([0]))) == pytest.approx(expected, abs=near * abs(expected))
        answer = marginal.posterior(z, torch.tensor([0]), data.times)
        gain = covariance @ np.linalg.inv(covariance + noise**2 * np.eye(13))
        np.testing.assert_allclose(answer.output_mean[0, 0], mean + gain @ (values[0] - mean), atol=near * 10)


def test_a_closed_form_that_misses_jumps_is_unreliable(monkeypatch: pytest.MonkeyPatch) -> None:
    model, times = model_of(made(Pumped)), np.linspace(0.0, 10.0, 13).tolist()
    (instance,) = simulate(model, num_instances=1, times=times, truth_times=times, seed=0)
    right = fit_instances(model, [instance.blind()], QUICK)[0]
    assert (right.method, right.status) == ("collapsed", "converged")
    assert solver_gap(right) < 1e-2
    blind = Collapsed(**asdict(Quadrature(1, 2)))
    monkeypatch.setattr(Collapsed, "through_time", lambda *_: blind)
    wrong = fit_instances(model, [instance.blind()], QUICK)[0]
    assert wrong.status == UNRELIABLE
    assert "beside that of a solver" in wrong.advice
