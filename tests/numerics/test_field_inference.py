"""Linear fields with the force integrated out: against dense Gaussian algebra, and batch against loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distlfm.config import build
from distlfm.inference.field.map import MOST_GROUPS, FieldMap, groups_of, largest_in, pulses_of
from distlfm.inference.field.marginal import FieldGaussian
from distlfm.inference.field.points import Inducing
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.whitened import log_low_rank
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.solvers.fem.spec import split
from distlfm.solvers.field.engine import TimeGrid, solve
from distlfm.solvers.field.sparse import ReducedEngine, SparseEngine, find_shapes
from tests.support.field_problems import Line, line

NAMES = ("sensitivity", "decay", "diffusion")
NODES = np.array([0.0, 0.15, 0.4, 0.5, 0.75, 1.0])
GRID = TimeGrid(0.0, 0.1, 8)
PRIORS = {"lengthscale": {"kind": "lognormal", "median": 0.35, "spread": 0.3}}


def model(kernel: dict[str, Any] | None = None, **mechanism: Any) -> Model:
    system = build_system({"kind": "reaction_diffusion", "fixed": {"sensitivity": 1.0}, **mechanism})
    force = {"kernel": kernel or {"kind": "rbf"}, "priors": PRIORS}
    return Model(system, build(ForceConfig, force), LikelihoodConfig())


def instance(seed: int, count: int = 14) -> Instance:
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(0.0, 0.8, count))
    values = random.normal(size=(1, count))
    return Instance(
        f"i{seed}",
        ("output",),
        times,
        values,
        np.ones((1, count), bool),
        positions=random.uniform(0, 1, (count, 1)),
    )


def full_rank(owner: Model, value: float = 0.0) -> FieldMap:
    """Inducing points at every time and node: nothing is left open."""
    inducing = Inducing(GRID.times, torch.from_numpy(NODES)[:, None])
    return FieldMap(owner, Line(line(NODES, value=value), NAMES), GRID, inducing)


def even(count: int) -> Inducing:
    """So many inducing points in time and in space."""
    return Inducing(
        torch.linspace(0, 0.8, count, dtype=torch.float64), torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    )


def dense_prior(owner: Model, fields: FieldMap, z: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [T] and covariance [T, T] of the outputs at points, and covariance [T, Q] with the force on the grid."""
    values = owner.space.unpack(z)
    places = fields.places(points)
    steps, nodes = GRID.steps + 1, len(NODES)
    unit = torch.eye(steps * nodes, dtype=torch.float64).reshape(1, -1, steps, nodes)
    nothing = torch.zeros(1, steps * nodes, nodes, dtype=torch.float64)

    def at_points(observed: Tensor) -> Tensor:
        share = places.share[:, None]
        later = observed[:, :, (places.before + 1).clamp_max(GRID.steps)]
        whole = (1 - share) * observed[:, :, places.before] + share * later
        return whole[0][:, places.time[0], places.place[0]]

    theta = fields.theta(values)
    linear = at_points(solve(fields.engine, theta, nothing, unit, GRID, places.observe, driven=False)).mT
    none = torch.zeros(1, 1, 1, nodes, dtype=torch.float64)
    offset = at_points(solve(fields.engine, theta, none[:, :, 0], none, GRID, places.observe))[0]
    at = torch.cat(
        [GRID.times.repeat_interleave(nodes)[:, None], torch.from_numpy(NODES)[:, None].repeat(steps, 1)], -1
    )
    force = owner.kernels[0].covariance(owner.hyper(values)[0], at, at)[0]
    return offset, linear @ force @ linear.mT, linear @ force


@pytest.mark.parametrize("value", [0.0, 0.4])
def test_the_marginal_likelihood_is_that_of_the_dense_gaussian(value: float) -> None:
    owner = model()
    fields = full_rank(owner, value)
    data = collate([instance(0)], ("output",))
    z = 0.3 * torch.randn(1, owner.space.num_free, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    offset, covariance, _ = dense_prior(owner, fields, z, data.points)
    noise = owner.noise_variance(owner.space.unpack(z), data)[0, 0]
    gaussian = torch.distributions.MultivariateNormal(offset, covariance + torch.diag(noise))
    found = FieldGaussian(data, fields).log_marginal(z, torch.tensor([0]))
    assert float(found) == pytest.approx(float(gaussian.log_prob(data.values[0, 0])), abs=1e-5)


def test_force_and_outputs_given_the_data_are_those_of_the_dense_gaussian() -> None:
    owner = model()
    fields = full_rank(owner)
    data = collate([instance(0)], ("output",))
    z = torch.zeros(1, owner.space.num_free, dtype=torch.float64)
    offset, covariance, cross = dense_prior(owner, fields, z, data.points)
    noisy = covariance + torch.diag(owner.noise_variance(owner.space.unpack(z), data)[0, 0])
    weights = torch.linalg.solve(noisy, (data.values[0, 0] - offset).unsqueeze(-1))
    found = FieldGaussian(data, fields).posterior(z, torch.tensor([0]), data.points)
    torch.testing.assert_close(found.output_mean[0, 0], offset + (covariance @ weights)[:, 0], rtol=0, atol=1e-6)
    variance = torch.diagonal(covariance - covariance @ torch.linalg.solve(noisy, covariance))
    torch.testing.assert_close(found.output_var[0, 0], variance, rtol=1e-3, atol=1e-6)
    on_grid = torch.cat(
        [GRID.times.repeat_interleave(len(NODES))[:, None], torch.from_numpy(NODES)[:, None].repeat(9, 1)], -1
    )
    force = FieldGaussian(data, fields).posterior(z, torch.tensor([0]), on_grid.unsqueeze(0))
    torch.testing.assert_close(force.force_mean[0, 0], (cross.mT @ weights)[:, 0], rtol=0, atol=1e-5)
    prior = owner.kernels[0].diagonal(owner.hyper(owner.space.unpack(z))[0], on_grid)[0]
    left = prior - (cross * torch.linalg.solve(noisy, cross)).sum(0)
    torch.testing.assert_close(force.force_var[0, 0], left, rtol=1e-3, atol=1e-5)


def test_the_marginal_likelihood_has_the_gradient_of_its_differences() -> None:
    owner = model(initial={"kind": "field"})
    fields = FieldMap(owner, Line(line(NODES, value=0.2), NAMES), GRID, even(5))
    marginal = FieldGaussian(collate([instance(0), instance(1)], ("output",)), fields)
    z = 0.2 * torch.randn(2, owner.space.num_free, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rows = torch.tensor([1, 0])
    torch.autograd.gradcheck(lambda x: marginal.log_marginal(x, rows), z.requires_grad_(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("factors", [True, False], ids=["with factors", "without"])
@pytest.mark.parametrize("form", ["plain", "drift", "slope"])
def test_fewer_inducing_points_bound_the_marginal_likelihood_from_below(form: str, factors: bool) -> None:
    """Also where the force is under a derivative, so that one push moves outputs up and down."""
    drift = form == "drift"
    owner = model(kind="advection_diffusion" if drift else "reaction_diffusion")
    problem = Line(line(NODES, drift=drift, slope=form == "slope"), (*NAMES, "velocity_0") if drift else NAMES)
    data = collate([instance(0)], ("output",))
    z, rows = torch.zeros(1, owner.space.num_free, dtype=torch.float64), torch.tensor([0])

    def marginal(inducing: Inducing) -> FieldGaussian:
        fields = FieldMap(owner, problem, GRID, inducing)
        if not factors:
            fields.separable = None
        assert drift or fields.both_ways == (form == "slope")
        return FieldGaussian(data, fields)

    whole = marginal(Inducing(GRID.times, torch.from_numpy(NODES)[:, None]))
    exact, variance = float(whole.log_marginal(z, rows)), whole.compared(owner.space.unpack(z), rows).columns.square()
    bounds = []
    for count in (3, 4, 5, 6):
        own = marginal(even(count))
        found = own.compared(owner.space.unpack(z), rows)
        left = variance.sum(-1) - found.columns.square().sum(-1)
        assert bool((left <= found.slack + 1e-6).all()), "what is left open is at most the slack"
        bounds.append(float(own.log_marginal(z, rows)))
    assert all(bound <= exact + 1e-6 for bound in bounds)
    assert exact - bounds[-1] < 0.3 * (exact - bounds[0])


def test_a_kernel_without_factors_gives_the_same_as_its_factors_do() -> None:
    owner = model()
    fields = full_rank(owner)
    data = collate([instance(0)], ("output",))
    z, rows = torch.zeros(1, owner.space.num_free, dtype=torch.float64), torch.tensor([0])
    by_factors = FieldGaussian(data, fields).log_marginal(z, rows)
    fields.separable = None
    whole = FieldGaussian(data, fields).log_marginal(z, rows)
    assert float(whole) == pytest.approx(float(by_factors), abs=1e-3)


def test_only_kernels_that_are_products_of_time_and_space_are_taken_apart() -> None:
    product = {"kind": "product", "parts": [{"kind": "matern52", "dims": [0]}, {"kind": "rbf", "dims": [1]}]}
    total = {"kind": "sum", "parts": [{"kind": "rbf", "dims": [0]}, {"kind": "rbf", "dims": [1]}]}
    found = []
    for kernel in ({"kind": "rbf"}, product, {"kind": "matern52"}, total):
        system = build_system({"kind": "reaction_diffusion"})
        owner = Model(system, build(ForceConfig, {"kernel": kernel}), LikelihoodConfig())
        inducing = Inducing(GRID.times, torch.from_numpy(NODES)[:, None])
        found.append(FieldMap(owner, Line(line(NODES), NAMES), GRID, inducing).separable is not None)
    assert found == [True, True, False, False]


def test_an_instance_in_a_batch_has_the_likelihood_it_has_alone() -> None:
    owner = model()
    three = [instance(0), instance(1, 9), instance(2)]
    z = torch.zeros(3, owner.space.num_free, dtype=torch.float64)
    together = FieldGaussian(collate(three, ("output",)), full_rank(owner)).log_marginal(z, torch.arange(3))
    for i, one in enumerate(three):
        alone = FieldGaussian(collate([one], ("output",)), full_rank(owner))
        assert float(alone.log_marginal(z[:1], torch.tensor([0]))) == pytest.approx(float(together[i]), abs=1e-6)


def sparse_rank(owner: Model, count: int = 4) -> FieldMap:
    """Few inducing points, which leave much open."""
    return FieldMap(owner, Line(line(NODES), NAMES), GRID, even(count))


@pytest.mark.parametrize("case", ["all points", "few points", "few points, no factors"])
def test_draws_scatter_as_the_posterior_says(case: str) -> None:
    owner = model()
    fields = full_rank(owner) if case == "all points" else sparse_rank(owner)
    if case.endswith("no factors"):
        fields.separable = None
    marginal = FieldGaussian(collate([instance(0)], ("output",)), fields)
    many = 2000
    rows, z = torch.zeros(many, dtype=torch.long), torch.zeros(many, owner.space.num_free, dtype=torch.float64)
    points = torch.cat([marginal.observations.points[:, :5], torch.tensor([[[1.0, 0.3], [1.6, 0.6]]])], 1)
    force, outputs = marginal.draw(z, rows, points.expand(many, -1, -1), torch.Generator().manual_seed(0))
    told = marginal.posterior(z[:1], rows[:1], points)
    torch.testing.assert_close(outputs.mean(0), told.output_mean[0], rtol=0, atol=0.05)
    torch.testing.assert_close(force.mean(0), told.force_mean[0], rtol=0, atol=0.06)
    torch.testing.assert_close(force.std(0), told.force_var[0].sqrt(), rtol=0.06, atol=0.01)
    assert bool((outputs.std(0) < 1.05 * told.output_var[0].sqrt() + 0.01).all()), "bands are bounds"
    assert bool((outputs.std(0)[0, -2:] > 0.1).all()), "past the data nobody knows"


@pytest.mark.parametrize("initial", ["zero", "field"])
def test_outputs_of_a_draw_are_those_that_its_force_drives(initial: str) -> None:
    owner = model(initial={"kind": initial})
    marginal = FieldGaussian(collate([instance(0)], ("output",)), sparse_rank(owner))
    later = TimeGrid(0.0, 0.1, 14)
    nodes = torch.from_numpy(NODES)[:, None]
    points = torch.cat([later.times.repeat_interleave(len(nodes))[:, None], nodes.repeat(15, 1)], -1)
    z, rows = torch.zeros(1, owner.space.num_free, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    force, outputs = marginal.draw(z, rows, points[None], torch.Generator().manual_seed(1))
    values = owner.space.unpack(z)
    start, pushed = outputs[..., : len(nodes)], force.unflatten(-1, (15, len(nodes)))
    everywhere = torch.eye(len(nodes), dtype=torch.float64)
    solved = solve(marginal.map.engine, marginal.map.theta(values), start, pushed, later, everywhere)
    torch.testing.assert_close(solved.flatten(-2), outputs, rtol=0, atol=1e-3)
    assert float(outputs.std()) > 0.1
    assert (float(start.std()) > 0.1) == (initial == "field")


def test_a_low_rank_density_does_not_depend_on_which_matrix_is_factored() -> None:
    stream = torch.Generator().manual_seed(0)
    columns = torch.randn(2, 7, 4, generator=stream, dtype=torch.float64)
    residual = torch.randn(2, 7, generator=stream, dtype=torch.float64)
    tall = log_low_rank(columns, residual)
    wide = log_low_rank(torch.cat([columns, torch.zeros(2, 7, 5, dtype=torch.float64)], -1), residual)
    covariance = torch.eye(7, dtype=torch.float64) + columns @ columns.mT
    gaussian = torch.distributions.MultivariateNormal(torch.zeros(2, 7, dtype=torch.float64), covariance)
    exact = gaussian.log_prob(residual) + 3.5 * math.log(2 * math.pi)
    torch.testing.assert_close(tall, exact)
    torch.testing.assert_close(wide, exact, rtol=1e-8, atol=1e-8)


def test_a_projected_engine_agrees_with_the_full_one_at_values_between_its_samples() -> None:
    nodes = np.linspace(0, 1, 81)
    full = SparseEngine(split(line(nodes, value=0.3), NAMES))
    grid = TimeGrid(0.0, 0.02, 40)
    x = torch.from_numpy(nodes)
    pulses = torch.stack([torch.exp(-0.5 * ((x - c) / 0.2) ** 2) for c in (0.1, 0.35, 0.6, 0.85)])[None, :, None]
    samples = torch.tensor([[1.0, a, b] for a in (0.1, 1.0) for b in (0.005, 0.02, 0.08)], dtype=torch.float64)
    count = len(samples)
    start = torch.zeros(count, 4, 81, dtype=torch.float64)
    shapes = find_shapes(full, samples, start, pulses.expand(count, -1, -1, -1), grid)
    reduced = ReducedEngine(full, shapes)
    theta = torch.tensor([[1.0, 0.4, 0.03]], dtype=torch.float64, requires_grad=True)
    observe = torch.eye(81, dtype=torch.float64)[::9]
    found = [solve(engine, theta, start[:1], pulses, grid, observe) for engine in (full, reduced)]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5 * float(found[0].detach().abs().max()))
    slopes = [torch.autograd.grad(one.square().sum(), theta)[0] for one in found]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=0)


def test_what_is_left_open_of_a_force_under_a_derivative_is_known_to_the_projected_engine_too() -> None:
    nodes, owner = np.linspace(0, 1, 41), model()
    operators = line(nodes, slope=True)
    problem = Line(operators, NAMES)
    problem.engine = SparseEngine(split(operators, NAMES))
    values = owner.space.unpack(torch.zeros(1, owner.space.num_free, dtype=torch.float64))
    full = FieldMap(owner, problem, GRID, even(4))
    data, rows = collate([instance(0)], ("output",)), torch.tensor([0])
    slack = [FieldGaussian(data, one).compared(values, rows).slack for one in (full, full.reduced(values))]
    torch.testing.assert_close(slack[1], slack[0], rtol=0.02, atol=1e-6)


def test_nodes_of_a_large_mesh_are_taken_in_groups_of_neighbours() -> None:
    nodes = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    groups = groups_of(nodes)
    pulses = pulses_of(groups)
    assert pulses.shape == (MOST_GROUPS, 1, 1000)
    assert bool((pulses.sum(0) == 1).all())
    centres = (pulses[:, 0] @ nodes) / pulses[:, 0].sum(-1, keepdim=True)
    assert float((nodes - centres[groups]).norm(dim=-1).max()) < 0.15
    largest = largest_in(groups, nodes[:, 0])
    assert bool((largest[groups] >= nodes[:, 0]).all())
    assert torch.equal(groups_of(nodes[:50]), torch.arange(50))


def test_held_back_points_are_never_among_those_fitted() -> None:
    whole = instance(0, 40)
    part = whole.sampled(0.3, seed=5)
    assert part.truth is not None
    assert part.truth.scored is not None
    assert len(part.times) == 12
    assert part.truth.scored.sum() == 28
    assert not np.isin(whole.times[part.truth.scored], part.times).any()
    assert part.truth.measured
    other = whole.sampled(0.3, seed=6)
    assert not np.array_equal(other.times, part.times)


def test_points_that_repeat_a_condition_are_no_measurements() -> None:
    """Zeros at the boundary and at the start, where the equation says zero, change neither evidence nor noise."""
    owner = model()
    inner = instance(3)
    random = np.random.default_rng(4)
    times, places = np.append(random.uniform(0.1, 0.8, 6), [0.0, 0.0]), np.array([0.0, 1.0] * 3 + [0.4, 0.75])
    padded = replace(
        inner,
        times=np.append(inner.times, times),
        values=np.append(inner.values, np.zeros((1, 8)), 1),
        mask=np.ones((1, len(inner.times) + 8), bool),
        positions=np.append(inner.positions, places[:, None], 0),
    )
    z = torch.linspace(-1.0, 1.0, owner.space.num_free, dtype=torch.float64)[None]
    rows = torch.zeros(1, dtype=torch.int64)
    bare, given = (
        FieldGaussian(collate([one], ("output",)), full_rank(owner)).log_marginal(z, rows) for one in (inner, padded)
    )
    torch.testing.assert_close(given, bare, rtol=1e-9, atol=1e-9)
    noisy = replace(padded, values=padded.values + 1e-3 * (padded.values == 0))
    measured = FieldGaussian(collate([noisy], ("output",)), full_rank(owner)).log_marginal(z, rows)
    assert abs(float(measured - bare)) > 1.0, "what was measured at the boundary does count"
