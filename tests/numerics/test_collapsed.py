"""The collapsed likelihood of linear mechanisms, against closed forms and a Gaussian process made by brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.kernels import KernelConfig
from distlfm.inference.gaussian import log_normal
from distlfm.inference.marginal import GaussianMarginal
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.series.exact import AnalyticMotif
from distlfm.inference.series.linear import LinearGaussian, Quadrature
from distlfm.inference.series.statespace import StateSpace, supports
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.solvers.linear import probe

FINE = Quadrature(substeps=8, order=6)
PRODUCT = KernelConfig(kind="product", parts=(KernelConfig(kind="periodic"), KernelConfig(kind="rbf")))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_model(options: dict[str, Any], kernel: KernelConfig | None = None, **likelihood: Any) -> Model:
    force = ForceConfig(kernel=kernel or KernelConfig())
    return Model(build_mechanism(options), force, LikelihoodConfig(**likelihood))


def make_instances(outputs: tuple[str, ...], counts: tuple[int, ...] = (4, 7), seed: int = 0) -> list[Instance]:
    """Each with its own irregular times, its own beginning, and some values missing."""
    rng = np.random.default_rng(seed)
    found = []
    for b, count in enumerate(counts):
        times = b - 0.5 + np.cumsum(rng.uniform(0.2, 1.5, count))
        shape = (len(outputs), count)
        mask = rng.random(shape) > 0.2
        mask[0, 0] = mask[-1, -1] = True
        values, variance = rng.normal(size=shape), rng.uniform(0.01, 0.3, shape)
        found.append(Instance(f"i{b}", outputs, times, np.where(mask, values, 0), mask, variance=variance))
    return found


def linear(model: Model, data: Observations, quadrature: Quadrature = FINE) -> LinearGaussian:
    return LinearGaussian(model, data, probe(model.mechanism, model.space), quadrature)


class BruteForce:
    """The joint Gaussian of one instance's data, and of force and outputs at query times, on a fine grid.

    The force is a vector on the grid. Its unit vectors go through the vector field by RK4 steps of two cells each, so
    that the stages find the force on the grid; the covariance of everything follows from the kernel on the grid.
    """

    def __init__(self, model: Model, data: Observations, row: int, z: Tensor, query: Tensor, cells: int = 24) -> None:
        mechanism, self.row = model.mechanism, row
        values = model.space.unpack(z)
        one = data.rows(torch.tensor([row]))
        length = int((torch.diff(data.times[row]) > 0).sum()) + 1
        times = data.times[row, :length]
        corners = torch.unique(torch.cat([times, query]))
        pieces = [
            torch.linspace(float(a), float(b), 2 * cells + 1, dtype=torch.float64)[:-1]
            for a, b in itertools.pairwise(corners)
        ]
        grid = torch.cat([*pieces, corners[-1:]])
        num_forces, size = len(mechanism.force_names), len(grid)
        # The last column is the equation without force.
        forces = torch.eye(num_forces * size + 1, dtype=torch.float64)[:, :-1].unflatten(-1, (num_forces, size))
        rows = {name: value.unsqueeze(0) for name, value in values.items()}
        state = mechanism.initial_state(rows).expand(len(forces), -1)
        states = [state]

        def rate(i: int, y: Tensor) -> Tensor:
            return mechanism.vector_field(grid[i], y, forces[..., i], rows)

        for i in range(0, size - 1, 2):
            step = grid[i + 2] - grid[i]
            k1 = rate(i, state)
            k2 = rate(i + 1, state + step / 2 * k1)
            k3 = rate(i + 1, state + step / 2 * k2)
            k4 = rate(i + 2, state + step * k3)
            state = state + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            states.append(state)
        outputs = mechanism.observe(torch.stack(states, 1), {k: v.unsqueeze(0) for k, v in rows.items()})
        breaks = grid[::2].contiguous()

        def seen(at: Tensor) -> Tensor:
            """Affine map to outputs at `at`: [P·T, unknowns + 1]."""
            found = outputs[:, torch.searchsorted(breaks, at - 1e-9)]
            return torch.cat([found[:-1] - found[-1:], found[-1:]]).permute(2, 1, 0).flatten(0, 1)

        blocks = [
            kernel.covariance(hyper, grid[:, None], grid[:, None])
            for kernel, hyper in zip(model.kernels, model.hyper(values), strict=True)
        ]
        prior = torch.block_diag(*blocks)
        mask = one.mask[0, :, :length].flatten()
        at_data, at_query = seen(times)[mask], seen(query)
        at_force = torch.eye(size, dtype=torch.float64)[torch.searchsorted(grid, query - 1e-9)]
        at_force = torch.block_diag(*[at_force] * num_forces)
        noise = model.noise_variance({k: v[None] for k, v in values.items()}, one)[0, :, :length].flatten()[mask]
        self.covariance = at_data[:, :-1] @ prior @ at_data[:, :-1].T + torch.diag(noise)
        self.residual = one.values[0, :, :length].flatten()[mask] - at_data[:, -1]
        push = torch.cat([at_force, at_query[:, :-1]])
        cross = push @ prior @ at_data[:, :-1].T
        solved = torch.linalg.solve(self.covariance, torch.cat([self.residual[:, None], cross.T], -1))
        offset = torch.cat([torch.zeros(len(at_force), dtype=torch.float64), at_query[:, -1]])
        self.mean = offset + cross @ solved[:, 0]
        self.variance = (push @ prior * push).sum(-1) - (cross * solved[:, 1:].T).sum(-1)
        self.num_force = len(at_force)

    def log_marginal(self) -> float:
        return float(multivariate_normal(cov=self.covariance.numpy()).logpdf(self.residual.numpy()))


MECHANISMS: dict[str, dict[str, Any]] = {
    "oscillator": {"kind": "linear_ode", "order": 2, "free_start": True},
    "third order": {"kind": "linear_ode", "order": 3},
    "cascade": {"kind": "cascade", "outputs": ("a", "b")},
    "two forces": {"kind": "transcription", "outputs": ("a", "b", "c"), "forces": ("f", "g"), "initial": "free"},
    "glucose": {
        "kind": "glucose",
        "priors": {
            "base_level": {"kind": "lognormal", "median": 1.0},
            "return_rate": {"kind": "lognormal", "median": 0.5},
            "initial": {"kind": "lognormal", "median": 1.0},
        },
    },
}
KERNELS: dict[str, KernelConfig] = {
    "matern32": KernelConfig(kind="matern32"),
    "matern52": KernelConfig(kind="matern52"),
    "periodic": KernelConfig(kind="periodic"),
    "product": PRODUCT,
}
WHITE = {"drift": False}
CASES = [(name, options, None, WHITE) for name, options in MECHANISMS.items()]
CASES += [(name, MECHANISMS["oscillator"], kernel, {}) for name, kernel in KERNELS.items()]
CASES += [("given noise", MECHANISMS["cascade"], None, {"noise": "given"})]
CASES += [("both noises", MECHANISMS["cascade"], None, {"noise": "both", "shared": True, "floor": 0.1})]


@pytest.mark.parametrize(("options", "kernel", "likelihood"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_likelihood_and_posterior_are_those_of_a_dense_gaussian_process(
    options: dict[str, Any], kernel: KernelConfig | None, likelihood: dict[str, Any]
) -> None:
    model = make_model(options, kernel, **likelihood)
    data = collate(make_instances(model.mechanism.outputs), model.mechanism.outputs)
    marginal = linear(model, data)
    z = 0.5 * normal(2, model.space.num_free, seed=3)
    first, last = data.times[:, :1], data.times[:, -1:]
    query = first + (last - first) * torch.tensor([0.13, 0.5, 1.0, 1.2], dtype=torch.float64)
    found = marginal.posterior(z, torch.arange(2), query)
    log_marginal = marginal.log_marginal(z, torch.arange(2))
    # The kinks of rough kernels limit the brute force, not the quadrature.
    tolerance = 3e-3 if kernel is not None and kernel.kind.startswith("matern") else 1e-4
    for row in range(2):
        brute = BruteForce(model, data, row, z[row], query[row])
        assert float(log_marginal[row]) == pytest.approx(brute.log_marginal(), abs=10 * tolerance)
        means = torch.cat([found.force_mean[row].flatten(), found.output_mean[row].flatten()])
        variances = torch.cat([found.force_var[row].flatten(), found.output_var[row].flatten()])
        scale = brute.variance.abs().max().sqrt()
        torch.testing.assert_close(means, brute.mean, rtol=tolerance, atol=tolerance * float(scale))
        torch.testing.assert_close(variances, brute.variance, rtol=tolerance, atol=tolerance * float(scale) ** 2)


# ---- the closed form of Lawrence et al. (2007) -----------------------------------------------------------------------


def motif(**likelihood: Any) -> tuple[Model, Observations]:
    model = make_model({"kind": "transcription", "outputs": ("a", "b", "c")}, **likelihood)
    return model, collate(make_instances(("a", "b", "c"), (3, 6, 9)), model.mechanism.outputs)


@pytest.mark.parametrize("noise", ["learned", "given"])
def test_quadrature_agrees_with_the_closed_form(noise: str) -> None:
    model, data = motif(noise=noise)
    z, rows = normal(30, model.space.num_free, seed=5), torch.arange(3).repeat(10)
    closed = AnalyticMotif(model, data)
    expected = closed.log_marginal(z, rows)
    torch.testing.assert_close(linear(model, data).log_marginal(z, rows), expected, rtol=1e-6, atol=1e-6)


def test_predictions_agree_with_the_closed_form_late_between_and_beyond_the_data() -> None:
    model, data = motif()
    z, rows = 0.7 * normal(3, model.space.num_free, seed=6), torch.arange(3)
    first, last = data.times[:, :1], data.times[:, -1:]
    for shares in ([0.0, 0.4, 1.0], [0.3, 0.31, 0.8], [0.9, 1.1, 1.6], [1.5]):
        query = first + (last - first) * torch.tensor(shares, dtype=torch.float64)
        closed = AnalyticMotif(model, data).posterior(z, rows, query)
        found = linear(model, data).posterior(z, rows, query)
        for name in ("force_mean", "force_var", "output_mean", "output_var"):
            torch.testing.assert_close(getattr(found, name), getattr(closed, name), rtol=1e-5, atol=1e-6)


def test_the_closed_form_survives_fast_decays_and_short_lengthscales() -> None:
    model, data = motif()
    z = torch.zeros(3, model.space.num_free, dtype=torch.float64)
    z[:, model.space.slice_of("decay")] = 6.0  # a decay of 50 a unit of time
    z[1, model.space.slice_of("force.lengthscale")] = 3.0
    assert AnalyticMotif(model, data).log_marginal(z, torch.arange(3)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"kind": "cascade", "outputs": ("a",)}, "rbf"),
        ({"kind": "transcription", "outputs": ("a",)}, "matern52"),
        ({"kind": "transcription", "outputs": ("a",), "response": {"kind": "exp"}}, "rbf"),
        ({"kind": "transcription", "outputs": ("a",), "forces": ("f", "g")}, "rbf"),
    ],
)
def test_the_closed_form_is_refused_where_there_is_none(options: dict[str, Any], kernel: str) -> None:
    model = make_model(options, KernelConfig(kind=kernel))
    with pytest.raises(UsageError, match=r"The method 'exact' is for transcription.*inference\.method=collapsed"):
        AnalyticMotif(model, collate(make_instances(("a",)), ("a",)))


# ---- the filter for long series --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52"])
@pytest.mark.parametrize("name", ["oscillator", "cascade", "two forces"])
def test_the_filter_has_the_likelihood_and_the_posterior_of_dense_matrices(name: str, kernel: str) -> None:
    model = make_model(MECHANISMS[name], KernelConfig(kind=kernel))
    data = collate(make_instances(model.mechanism.outputs), model.mechanism.outputs)
    z, rows = 0.5 * normal(2, model.space.num_free, seed=3), torch.arange(2)
    # The kink of a rough kernel is what the quadrature sees least of.
    tolerance = {"matern12": 2e-2, "matern32": 1e-4, "matern52": 1e-5}[kernel]
    dense, filtered = linear(model, data), StateSpace(model, data)
    assert supports(model)
    torch.testing.assert_close(
        filtered.log_marginal(z, rows), dense.log_marginal(z, rows), rtol=tolerance, atol=tolerance
    )
    query = data.times[:, :1] + (data.times[:, -1:] - data.times[:, :1]) * torch.tensor([0.0, 0.3, 1.0, 1.4]).double()
    one, other = filtered.posterior(z, rows, query), dense.posterior(z, rows, query)
    for part in ("force_mean", "force_var", "output_mean", "output_var"):
        torch.testing.assert_close(getattr(one, part), getattr(other, part), rtol=tolerance, atol=tolerance)


# ---- masks, gradients, failures --------------------------------------------------------------------------------------


def both(model: Model, data: Observations) -> list[GaussianMarginal]:
    return [linear(model, data), AnalyticMotif(model, data)]


def test_masking_values_is_dropping_them() -> None:
    model, _ = motif(noise="given")
    whole = make_instances(("a", "b", "c"), (6,))[0]
    mask = np.ones((3, 6), dtype=bool)
    mask[:, [1, 4]] = False
    masked = replace(whole, mask=mask, values=np.where(mask, whole.values, 1e30))
    kept = [0, 2, 3, 5]
    dropped = replace(
        whole, times=whole.times[kept], mask=mask[:, kept], values=whole.values[:, kept],
        variance=whole.variance[:, kept] if whole.variance is not None else None,
    )  # fmt: skip
    z, row = normal(1, model.space.num_free), torch.tensor([0])
    query = torch.from_numpy(whole.times[-1] + np.array([-0.3, 0.0, 0.9]))[None]
    for first, second in zip(
        both(model, collate([masked], "abc")), both(model, collate([dropped], "abc")), strict=True
    ):
        torch.testing.assert_close(first.log_marginal(z, row), second.log_marginal(z, row), rtol=1e-7, atol=1e-7)
        one, other = first.posterior(z, row, query), second.posterior(z, row, query)
        torch.testing.assert_close(one.force_mean, other.force_mean, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(one.output_var, other.output_var, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["oscillator", "two forces", "cascade"])
def test_gradients_of_the_joint_density_agree_with_differences(name: str) -> None:
    model = make_model(MECHANISMS[name])
    marginal = linear(model, collate(make_instances(model.mechanism.outputs), model.mechanism.outputs), Quadrature(2))
    z = (0.5 * normal(2, model.space.num_free, seed=8)).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda one: marginal.log_joint(one, torch.tensor([1, 0])), (z,), atol=1e-4)


def test_the_log_density_has_the_gradient_of_the_cholesky_factorisation() -> None:
    root = normal(3, 5, 5)
    covariance = (root @ root.mT + torch.eye(5)).requires_grad_(True)
    residual = normal(3, 5, seed=1).requires_grad_(True)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    plain = torch.distributions.MultivariateNormal(torch.zeros(5).double(), covariance).log_prob(residual)
    constant = 2.5 * np.log(2 * np.pi)
    found = log_normal(covariance, residual)
    torch.testing.assert_close(found, plain + constant, rtol=1e-8, atol=1e-8)
    expected = torch.autograd.grad((weights * plain).sum(), (covariance, residual))
    gradient = torch.autograd.grad((weights * found).sum(), (covariance, residual))
    symmetric = 0.5 * (expected[0] + expected[0].mT)
    torch.testing.assert_close(gradient[0], symmetric, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradient[1], expected[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("spoil", [torch.nan, torch.inf, -1e6], ids=["nan", "inf", "indefinite"])
def test_a_covariance_that_cannot_be_factored_is_minus_infinity_and_leaves_its_neighbours(spoil: float) -> None:
    root = normal(3, 4, 4)
    good = root @ root.mT + torch.eye(4)
    bad = good.clone()
    bad[1, 2, 2] = spoil
    found = log_normal(bad.requires_grad_(True), normal(3, 4))
    assert found[1] == -torch.inf
    assert torch.equal(found[[0, 2]], log_normal(good, normal(3, 4))[[0, 2]])
    (gradient,) = torch.autograd.grad(found[[0, 2]].sum(), bad)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("way", [linear, StateSpace], ids=["dense", "filter"])
@pytest.mark.parametrize("name", ["force.variance", "decay"])
def test_an_impossible_z_is_minus_infinity_and_leaves_its_neighbours(way: Any, name: str) -> None:
    model = make_model({"kind": "transcription", "outputs": ("a", "b")}, KernelConfig(kind="matern52"))
    marginal = way(model, collate(make_instances(("a", "b"), (3, 6, 9)), model.mechanism.outputs))
    z = normal(3, model.space.num_free)
    expected = marginal.log_marginal(z, torch.arange(3))
    z[1, model.space.slice_of(name)] = 1e4  # e^10000
    found = marginal.log_marginal(z, torch.arange(3))
    assert found[1] == -torch.inf
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
