"""Fits through the solver with the force summed out: exact where the equation is linear, sound where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.series import nested
from distlfm.inference.series.forward import Forward, SolvedPosterior
from distlfm.inference.series.layers import Layers
from distlfm.inference.series.linear import LinearGaussian, Quadrature
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.mechanisms.priors import LogNormal
from distlfm.runs.settings import FitConfig
from distlfm.simulation.instances import simulate
from distlfm.solvers.base import SolverConfig
from distlfm.solvers.linear import probe

GENES = ("a", "b")
SMALL: dict[str, Any] = {"posterior": {"stages": [8, 12], "draws": 48}, "grid_points": 12}


def make_model(kind: str = "transcription", response: str = "identity", noise: float = 0.1, **mechanism: Any) -> Model:
    options = {
        "kind": kind,
        "outputs": GENES,
        "response": {"kind": response},
        "fixed": {"sensitivity": {"a": 1.0}},
        "priors": {
            "basal": {"kind": "lognormal", "median": 0.1, "spread": 0.5},
            "decay": {"kind": "lognormal", "median": 0.6, "spread": 0.3},
        },
        **mechanism,
    }
    priors = {"lengthscale": LogNormal(median=2.0, spread=0.2), "variance": LogNormal(median=1.0, spread=0.3)}
    likelihood = LikelihoodConfig(shared=True, prior=LogNormal(median=noise, spread=0.5))
    return Model(build_mechanism(options), ForceConfig(priors=priors), likelihood)


def make_instances(model: Model, count: int, points: int = 10) -> list[Instance]:
    times, truth_times = np.linspace(0, 9, points).tolist(), np.linspace(0, 9, 37).tolist()
    return simulate(model, num_instances=count, times=times, truth_times=truth_times, seed=2)


def options(**content: Any) -> InferenceConfig:
    return build(InferenceConfig, {"method": "nested", **SMALL, **content})


# ---- linear equations: the exact answer is known ---------------------------------------------------------------------


def linear_layers() -> tuple[Layers, LinearGaussian]:
    model = make_model()
    data = collate([one.blind() for one in make_instances(model, 2)], GENES)
    forward = Forward(model, data, SolverConfig(steps=72), num_inducing=24)
    layers = Layers.at(forward, torch.zeros(2, forward.size, dtype=torch.float64), [1, 2])
    return layers.moved(layers.z), LinearGaussian(model, data, probe(model.mechanism, model.space), Quadrature(4))


def test_the_density_of_the_parameters_is_the_exact_one() -> None:
    layers, exact = linear_layers()
    z = 0.4 * torch.randn(6, layers.z.shape[-1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.tensor([0, 1, 0, 1, 0, 1])
    found, expected = layers.negative(z, rows), -exact.log_joint(z, rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


def test_where_the_gaussian_is_exact_its_correction_is_nothing() -> None:
    layers, _ = linear_layers()
    z = 0.4 * torch.randn(4, layers.z.shape[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = torch.tensor([0, 1, 0, 1])
    torch.testing.assert_close(layers.corrected(z, rows), layers.negative(z, rows), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_bands_are_those_of_the_closed_form() -> None:
    model = make_model()
    instances = make_instances(model, 2)
    sampling = {"posterior": {"stages": [20, 40, 60], "draws": 400}}
    for one, other in zip(
        fit_instances(model, instances, options(**sampling)),
        fit_instances(model, instances, options(method="collapsed", **sampling)),
        strict=True,
    ):
        assert (one.method, one.status) == ("nested", "converged")
        sd = other.grid.force.sd
        assert np.abs((one.grid.force.mean - other.grid.force.mean) / sd).max() < 0.35
        np.testing.assert_allclose(one.grid.force.sd, sd, rtol=0.25)
        assert one.bound == pytest.approx(other.bound, abs=0.5)


# ---- nonlinear equations ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_is_its_instances_one_by_one_and_an_absurd_neighbour_is_flagged() -> None:
    """Within the error of the draws: rounding may end a search one step earlier, and sampling begins elsewhere then."""
    model = make_model(response="softplus")
    one, two, bad = make_instances(model, 3)
    bad = replace(bad, values=np.full_like(bad.values, 1e200))
    together = fit_instances(model, [one, bad, two], options())
    assert [result.status for result in together] == ["converged", "diverged", "converged"]
    for instance, result in ((one, together[0]), (two, together[2])):
        (alone,) = fit_instances(model, [instance], options())
        error = np.abs(alone.grid.force.mean - result.grid.force.mean) / result.grid.force.sd
        assert error.max() < 0.4
        assert alone.bound == pytest.approx(result.bound, abs=0.01)


@pytest.mark.slow
def test_hidden_states_do_not_let_the_noise_vanish() -> None:
    """Nothing can be matched where the protein is unseen; at the joint mode of force and noise there is no noise.

    Decays are known: with them free the scale of the force is open, and Q² says nothing of the method.
    """
    known = {"sensitivity": 1.0, "protein_decay": 0.5, "decay": {"a": 0.5, "b": 0.8}}
    model = make_model("cascade", "softplus", noise=0.03, fixed=known)
    results = fit_instances(model, make_instances(model, 3, points=16), options())
    for result in results:
        assert result.instance.truth is not None
        true = float(result.instance.truth.parameters["noise"][0])
        (found,) = [one for one in result.estimates if one.parameter == "noise"]
        assert true / 2 < found.mean < 2 * true
    scores = [figures(result)["latent_q2"] for result in results]
    assert np.mean(scores) > 0.8, scores


@pytest.mark.parametrize("start", ["steady", "zero", "free"])
def test_a_cascade_starts_where_it_is_told(start: str) -> None:
    mechanism = make_model("cascade", initial=start).mechanism
    values = {one.name: torch.full((3, len(one.labels)), 0.5) for one in mechanism.parameters()}
    state = mechanism.initial_state(values)
    expected = {"steady": [0.0, 1.0, 1.0], "zero": [0.0, 0.0, 0.0], "free": [0.5, 0.5, 0.5]}[start]
    assert state.tolist() == [expected] * 3


def test_each_instance_is_solved_with_steps_of_its_own() -> None:
    model = make_model(response="softplus")
    data = collate([one.blind() for one in make_instances(model, 3)], GENES)
    forward = Forward(model, data, SolverConfig(), num_inducing=8).with_steps(torch.tensor([24, 9, 24]))
    w = 0.5 * torch.randn(2, 3, forward.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    together, coarse = forward.run(w, torch.arange(3)), forward.step_error(w[0], torch.arange(3))
    z, v = forward.split(w)
    _, responses, _ = forward.respond(z[0], v, torch.arange(3))
    for b in range(3):
        one = forward.of(torch.tensor([b]))
        alone = one.run(w[:, b : b + 1], torch.tensor([0]))
        torch.testing.assert_close(together.outputs[:, b], alone.outputs[:, 0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(together.force[:, b], alone.force[:, 0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(coarse[b], one.step_error(w[0, b : b + 1], torch.tensor([0]))[0], rtol=1e-6, atol=0)
        _, single, _ = one.respond(z[0, b : b + 1], v[:, b : b + 1], torch.tensor([0]))
        torch.testing.assert_close(responses[:, b], single[:, 0], rtol=1e-12, atol=1e-12)
    assert float(coarse[1]) > 10 * float(coarse[[0, 2]].max())


@pytest.mark.slow
def test_a_neighbour_that_needs_shorter_steps_does_not_shorten_those_of_others(tmp_path: Path) -> None:
    model = make_model(response="softplus")
    calm, quick = make_instances(model, 2)
    # The same curve in a tenth of the time, and then nothing for long: even steps over the span miss it.
    late = np.concatenate([0.1 * quick.times, [30.0]])
    values, mask = (np.concatenate([one, one[:, -1:]], 1) for one in (quick.values, quick.mask))
    quick = replace(quick, times=late, values=values, mask=mask, truth=None)
    few = options(variational={"solver": {"steps": 16}, "num_inducing": 10})
    (alone,) = fit_instances(model, [calm], few)
    together = fit_instances(model, [calm, quick], few)
    kept, shortened = (int(one.posterior.state()["steps"][one.row]) for one in together)
    assert kept == int(alone.posterior.state()["steps"][0]) < shortened
    save_fit(together[1], tmp_path / "fit.npz")
    assert int(load_fit(tmp_path / "fit.npz").posterior.state()["steps"][0]) == shortened


# ---- what the user is told -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_steps_that_stay_too_long_are_told_and_kept_with_the_fit(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nested, "MAX_DOUBLINGS", 0)
    model = make_model(response="softplus")
    few = {"variational": {"solver": {"steps": 2}, "num_inducing": 8}}
    (result,) = fit_instances(model, make_instances(model, 1), options(**few))
    assert "2 solver steps are too few" in result.advice
    save_fit(result, tmp_path / "fit.npz")
    assert load_fit(tmp_path / "fit.npz").advice == result.advice
    (result,) = fit_instances(model, make_instances(model, 1), options())
    assert result.advice == ""


def test_draws_that_could_not_be_solved_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: SolvedPosterior) -> torch.Tensor:
        return torch.arange(len(self.w)).unsqueeze(-1).expand(-1, len(self.observations)) % 2 == 0

    monkeypatch.setattr(SolvedPosterior, "solved", half)
    model = make_model(response="softplus")
    (result,) = fit_instances(model, make_instances(model, 1), options())
    assert "50 % of the posterior's draws could not be solved" in result.advice


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"method": "variational", "posterior": {"draws": 7}}, "posterior.draws has no effect with method variational"),
        (
            {"method": "variational", "variational": {"learn_inducing": True, "gradient": "natural"}},
            "needs gradient adam",
        ),
        ({"variational": {"learn_inducing": True}}, "learn_inducing needs method variational"),
    ],
)
def test_options_that_would_do_nothing_are_refused(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build(InferenceConfig, content)


@pytest.mark.parametrize("outputs", [{}, {"outputs": ["a"]}])
def test_priors_of_unknown_parameters_are_refused_with_the_config(outputs: dict[str, Any]) -> None:
    mechanism = {"kind": "transcription", "priors": {"dekay": {"kind": "lognormal", "median": 1.0}}, **outputs}
    with pytest.raises(UsageError, match=r"no parameter 'dekay'.*decay"):
        build(FitConfig, {"mechanism": mechanism})
