"""The Kalman filter of long series is the dense Gaussian process by another road."""

from __future__ import annotations

import pytest
import torch

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.linear import LinearGaussian, Quadrature
from distlfm.inference.series.statespace import LONG, StateSpace, supports
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.solvers import kalman
from distlfm.solvers.kalman import plain
from distlfm.solvers.linear import probe

ROWS = torch.arange(3)


def model_of(kind: str, kernel: str, outputs: list[str], **more: object) -> Model:
    mechanism = build_mechanism({"kind": kind, **more}, outputs)
    return Model(mechanism, build(ForceConfig, {"kernel": {"kind": kernel}}), LikelihoodConfig())


def observations_of(model: Model, num_times: int = 14) -> Observations:
    generator = torch.Generator().manual_seed(5)
    times = torch.rand(3, num_times, generator=generator, dtype=torch.float64).sort(-1).values * 8
    times[1] = torch.linspace(0, 8, num_times, dtype=torch.float64)
    shape = (3, len(model.mechanism.outputs), num_times)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if model.mechanism.outputs == ("glucose",):
        values = values + 110
    mask = torch.rand(shape, generator=generator) > 0.2
    return Observations(("a", "b", "c"), model.mechanism.outputs, times, values, mask, None)


CASES = [
    ("glucose", "matern52", ["glucose"], {}),
    ("glucose", "matern32", ["glucose"], {}),
    ("transcription", "matern52", ["g0", "g1"], {}),
    ("cascade", "matern52", ["g0", "g1"], {}),
    ("transcription", "matern32", ["g0", "g1"], {"forces": ["p53", "myc"]}),
    ("linear_ode", "matern52", ["y"], {"order": 3}),
]


@pytest.mark.parametrize(("kind", "kernel", "outputs", "more"), CASES)
def test_filter_and_dense_matrices_agree(kind: str, kernel: str, outputs: list[str], more: dict[str, object]) -> None:
    model = model_of(kind, kernel, outputs, **more)
    data = observations_of(model)
    z = 0.4 * torch.randn(3, model.space.num_free, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if kind == "linear_ode":
        z = z * 0.2
    dense = LinearGaussian(model, data, probe(model.mechanism, model.space), Quadrature(16, 4))
    quick = StateSpace(model, data)
    torch.testing.assert_close(quick.log_marginal(z, ROWS), dense.log_marginal(z, ROWS), rtol=2e-6, atol=2e-3)
    query = (data.times[:, :1] + torch.linspace(0, 10, 9, dtype=torch.float64)).contiguous()
    found, expected = quick.posterior(z, ROWS, query), dense.posterior(z, ROWS, query)
    for name in ("force_mean", "force_var", "output_mean", "output_var"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=2e-3, atol=2e-3)


def test_gradient_of_the_filter_is_that_of_finite_differences() -> None:
    model = model_of("transcription", "matern52", ["g0", "g1"])
    quick = StateSpace(model, observations_of(model))
    z = 0.3 * torch.randn(3, model.space.num_free, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    z.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: quick.log_joint(x, ROWS), (z,), atol=1e-3, rtol=1e-4)


def test_an_instance_does_not_depend_on_its_neighbours() -> None:
    model = model_of("glucose", "matern52", ["glucose"])
    quick = StateSpace(model, observations_of(model))
    z = torch.zeros(3, model.space.num_free, dtype=torch.float64)
    together = quick.log_marginal(z, ROWS)
    alone = torch.cat([quick.log_marginal(z[i : i + 1], ROWS[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


def test_only_stable_mechanisms_with_matern_forces_are_filtered() -> None:
    for kind, kernel, outputs, expected in [
        ("glucose", "matern52", ["glucose"], True),
        ("glucose", "rbf", ["glucose"], False),
        ("lotka_volterra", "matern52", ["predator"], False),
    ]:
        model = model_of(kind, kernel, outputs)
        assert supports(model) is expected, (kind, kernel)


@pytest.mark.slow
def test_long_series_are_filtered_by_themselves_and_find_the_force() -> None:
    content = {
        "mechanism": {"kind": "glucose", "fixed": {"return_rate": {"p": 0.02}}},
        "force": {
            "kernel": {"kind": "matern52"},
            "priors": {
                "lengthscale": {"kind": "lognormal", "median": 60.0, "spread": 0.2},
                "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.3},
            },
        },
        "likelihood": {"drift": False, "prior": {"kind": "lognormal", "median": 1.0, "spread": 0.2}},
        "instances": 3,
        "stop": 1000.0,
        "points": 120,
    }
    config = build(SimulateConfig, content)
    model = Model(build_mechanism(config.mechanism), config.force, config.likelihood)
    results = fit_instances(model, simulate_from(config), InferenceConfig(grid_points=5))
    for result in results:
        assert result.method == "filter"
        truth = result.instance.truth
        band = result.predict(truth.times).force
        spread = truth.force.var()
        assert ((band.mean - truth.force) ** 2).mean() < 0.15 * spread
        assert 0.8 < ((truth.force >= band.lower95) & (truth.force <= band.upper95)).mean() <= 1


def test_series_are_filtered_from_so_many_times_on_whatever_the_number_of_outputs() -> None:
    model = model_of("transcription", "matern52", ["g0", "g1", "g2"])
    for num_times, method in [(LONG - 1, "collapsed"), (LONG, "filter")]:
        data = observations_of(model, num_times)
        instance = Instance(
            "a", model.mechanism.outputs, data.times[1].numpy(), data.values[1].numpy(), data.mask[1].numpy()
        )
        options = InferenceConfig(posterior={"method": "point"}, optimiser={"iterations": 2, "rounds": 0})
        assert fit_instances(model, [instance], options)[0].method == method


def test_steps_of_irregular_series_are_those_of_each_row_and_not_of_all_its_neighbours() -> None:
    model = model_of("glucose", "matern52", ["glucose"])
    chain = StateSpace(model, observations_of(model)).chain(torch.zeros(3, model.space.num_free).double(), ROWS)
    assert chain.lengths.shape == (3, 13)


@pytest.mark.parametrize(("kind", "kernel", "outputs", "more"), CASES)
def test_compiled_loops_and_plain_ones_agree(
    kind: str, kernel: str, outputs: list[str], more: dict[str, object]
) -> None:
    model = model_of(kind, kernel, outputs, **more)
    quick = StateSpace(model, observations_of(model))
    z = 0.2 * torch.randn(3, model.space.num_free, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    z.requires_grad_(True)
    chain = quick.chain(z, ROWS)
    density, (expected, _) = chain.log_density(), plain.filtered(chain)
    torch.testing.assert_close(density, expected, rtol=1e-10, atol=1e-8)
    slopes = [torch.autograd.grad(one.sum(), z, retain_graph=True)[0] for one in (density, expected)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(chain.log_density(), expected, rtol=1e-10, atol=1e-8)
        torch.testing.assert_close(chain.innovations(), plain.innovations(chain), rtol=1e-7, atol=1e-8)
        wanted = torch.eye(quick.size, dtype=torch.float64).expand(3, -1, -1)
        for found, other in zip(chain.smoothed(wanted), plain.smoothed(chain, wanted), strict=True):
            torch.testing.assert_close(found, other, rtol=1e-6, atol=1e-8)


def even_chain(kind: str, outputs: list[str]) -> tuple[StateSpace, kalman.Chain]:
    """Even times from an odd start, with holes in the data of one row."""
    model = model_of(kind, "matern52", outputs)
    data = observations_of(model, 160)
    last = 1440.7 if kind == "glucose" else 80.3
    data.times[:] = torch.linspace(0.1, last, 160, dtype=torch.float64) * torch.tensor([[1.0], [0.9], [1.0]])
    data.mask[:] = True
    data.mask[2, 0, 100:104] = False
    quick = StateSpace(model, data)
    z = 0.2 * torch.randn(3, model.space.num_free, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return quick, quick.chain(z, ROWS)


def test_even_times_have_one_gap_whatever_their_rounding() -> None:
    quick, chain = even_chain("glucose", ["glucose"])
    assert len(torch.unique(torch.diff(quick.observations.times[0]))) > 1
    assert chain.lengths.shape == (3, 2)  # one of each span
    gaps = torch.diff(quick.observations.times)
    torch.testing.assert_close(chain.lengths.gather(-1, chain.which), gaps, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("kind", "outputs"), [("glucose", ["glucose"]), ("transcription", ["g0", "g1"])])
def test_covariances_that_have_become_steady_are_those_of_the_plain_filter(kind: str, outputs: list[str]) -> None:
    quick, chain = even_chain(kind, outputs)
    torch.testing.assert_close(chain.log_density(), plain.filtered(chain)[0], rtol=1e-11, atol=1e-9)
    torch.testing.assert_close(chain.innovations(), plain.innovations(chain), rtol=0, atol=1e-8)
    wanted = torch.eye(quick.size, dtype=torch.float64).expand(3, -1, -1)
    for found, other in zip(chain.smoothed(wanted), plain.smoothed(chain, wanted), strict=True):
        torch.testing.assert_close(found, other, rtol=1e-6, atol=1e-8)


def test_steps_are_computed_once_for_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, tabled = [], kalman.moves.tabled
    monkeypatch.setattr(kalman.moves, "tabled", lambda *given: (calls.append(1), tabled(*given)))
    quick, _ = even_chain("glucose", ["glucose"])
    z = torch.zeros(3, quick.model.space.num_free).double()
    quick.draw(z, ROWS, quick.observations.times[:, ::3], torch.Generator().manual_seed(0))
    assert len(calls) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_draws_of_a_filter_have_the_moments_of_its_bands(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(kalman, "loops", None)
    model = model_of("transcription", "matern52", ["g0", "g1"])
    quick = StateSpace(model, observations_of(model, 30))
    z, rows, query = (
        torch.zeros(4000, model.space.num_free).double(),
        torch.zeros(4000).long(),
        torch.tensor([1.3, 4.0, 9.0]),
    )
    query = quick.observations.times[0, 0] + query.double()
    query[1] = quick.observations.times[0, 12]  # one of the observed times
    query = query.sort().values.expand(4000, -1)
    found = quick.draw(z, rows, query, torch.Generator().manual_seed(0))
    moments = quick.posterior(z[:1], rows[:1], query[:1])
    for drawn, mean, variance in zip(
        found, (moments.force_mean, moments.output_mean), (moments.force_var, moments.output_var), strict=True
    ):
        sd = variance[0].sqrt()
        assert (((drawn.mean(0) - mean[0]) / sd).abs() < 4 / 4000**0.5).all()
        assert ((drawn.std(0) / sd - 1).abs() < 0.06).all()


def test_glucose_without_priors_has_those_of_its_own_units() -> None:
    model = model_of("glucose", "matern52", ["glucose"])
    middle = model.space.unpack(torch.zeros(1, model.space.num_free, dtype=torch.float64))
    found = {name: float(middle[name].squeeze()) for name in ("appearance.lengthscale", "appearance.variance", "noise")}
    assert found == pytest.approx({"appearance.lengthscale": 40.0, "appearance.variance": 0.5, "noise": 2.0})


def test_glucose_takes_one_output() -> None:
    with pytest.raises(UsageError, match=r"equation of one output, and here are 2: glucose, insulin"):
        build_mechanism({"kind": "glucose"}, ["glucose", "insulin"])
