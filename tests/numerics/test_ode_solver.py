"""Trajectories: exact solutions, order of convergence, gradients, and neighbours that diverge."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torchdiffeq import odeint

from distlfm.errors import UsageError
from distlfm.mechanisms import Mechanism, ParameterSpace, build_mechanism
from distlfm.solvers.base import FixedMethod, OdeProblem, SolverConfig, reads_state
from distlfm.solvers.linear import extract, panels, probe, propagate, response
from distlfm.solvers.ode import MIN_STEPS, RULES, check_step, choose_steps, solve

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


def test_a_mechanism_without_named_outputs_has_its_own() -> None:
    assert glucose().outputs == ("glucose",)


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
    assert choose_steps(times).tolist() == [80]
    assert choose_steps(times, torch.tensor([[True, False, False, True, True, True]])).tolist() == [MIN_STEPS]
    assert choose_steps(torch.cat([times, 3 * times])).tolist() == [80, 80]


def test_step_doubling_finds_the_instance_that_needs_more() -> None:
    values, times = glucose_values([0.3, 30.0]), torch.linspace(0, 10, 11, dtype=torch.float64).expand(2, 11)
    change = check_step(glucose(), unit_sines(3, 2), values, times, SolverConfig(steps=120))
    assert change.shape == (2,)
    assert change[0] < 1e-7
    assert change[1] > 1e-5


def some_values(mechanism: Mechanism, num_instances: int, seed: int = 0) -> dict[str, Tensor]:
    space = ParameterSpace(mechanism.settled())
    generator = torch.Generator().manual_seed(seed)
    return space.unpack(0.5 * torch.randn(num_instances, space.num_free, generator=generator, dtype=torch.float64))


def test_each_instance_is_answered_as_if_alone() -> None:
    mechanism = build_mechanism({"kind": "transcription", "outputs": ("a", "b"), "forces": ("f", "g")})
    values, times = some_values(mechanism, 2), uneven_times()[:, ::50]
    weight = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = solve(mechanism, Sines(weight), values, times, SolverConfig(steps=50)).states
    assert together.shape == (3, 2, times.shape[1], 2)
    for b in range(2):
        for s in range(3):
            own = {name: value[b : b + 1] for name, value in values.items()}
            force = Sines(weight[s : s + 1, b : b + 1])
            alone = solve(mechanism, force, own, times[b : b + 1], SolverConfig(steps=50)).states
            torch.testing.assert_close(together[s, b], alone[0, 0], rtol=1e-13, atol=1e-13)


def test_padding_repeats_the_last_state() -> None:
    values, times = glucose_values([0.5]), torch.tensor([[0.0, 1.0, 2.5, 4.0]], dtype=torch.float64)
    padded = torch.cat([times, times[:, -1:].expand(1, 3)], -1)
    config = SolverConfig(steps=40)
    plain = solve(glucose(), unit_sines(1, 1), values, times, config).states
    longer = solve(glucose(), unit_sines(1, 1), values, padded, config).states
    assert torch.equal(longer[:, :, :4], plain)
    assert torch.equal(longer[:, :, 4:], plain[:, :, -1:].expand(1, 1, 3, 1))


def test_an_instance_without_extent_stays_at_its_start() -> None:
    values, times = glucose_values([0.5]), torch.full((1, 3), 2.0, dtype=torch.float64)
    found = solve(glucose(), unit_sines(1, 1), values, times, SolverConfig(steps=10))
    assert torch.equal(found.states[0, 0, :, 0], values["initial"].expand(1, 3)[0])


def test_samples_may_have_their_own_values() -> None:
    per_sample = {name: value.unsqueeze(1) for name, value in glucose_values([0.5, 1.1, 2.0]).items()}
    times = torch.linspace(0, 5, 9, dtype=torch.float64).unsqueeze(0)
    found = solve(glucose(), unit_sines(1, 1), per_sample, times, SolverConfig(steps=200)).states
    expected = exact_glucose(glucose_values([0.5, 1.1, 2.0]), times)
    torch.testing.assert_close(found[:, 0, :, 0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", RULES)
def test_a_tabulated_force_gives_the_same_numbers(method: FixedMethod) -> None:
    """A steep force: a stage that read it at a wrong time would be far off."""
    values, times = glucose_values([0.5, 1.1]), uneven_times()
    problem = OdeProblem.of(glucose(), Sines(torch.ones(2, 2, 1, dtype=torch.float64), 50.0), values, times)
    steps = 30
    parts = {"rk4": 3, "heun3": 3, "midpoint": 2}.get(method, 1) * steps
    looked_up = problem.tabulated(problem.tabulate(parts))
    y = torch.randn(2, 2, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for row in ((0.0,), *RULES[method][:-1]):
        tau = (17 + sum(row)) / steps
        torch.testing.assert_close(looked_up(tau, y), problem.direct(tau, y), rtol=1e-12, atol=1e-12)


def test_the_force_is_read_at_the_time_of_each_stage() -> None:
    """ẏ = f with f = t³: exact for a rule of order 4, and for no other choice of the four times."""
    mechanism = build_mechanism({"kind": "linear_ode", "order": 1})
    values = {"coefficient": torch.zeros(1, 1, dtype=torch.float64), "sensitivity": torch.ones(1, 1).double()}
    times = torch.linspace(-1, 3, 5, dtype=torch.float64).unsqueeze(0)
    found = solve(mechanism, lambda x: (x**3).mT, values, times, SolverConfig(steps=4)).states
    torch.testing.assert_close(found[0, 0, :, 0], (times[0] ** 4 - 1) / 4, rtol=1e-13, atol=1e-13)


def test_a_force_that_reads_the_state_is_the_flow_itself() -> None:
    mechanism = build_mechanism({"kind": "nonparametric", "outputs": ("a", "b")})
    assert reads_state(mechanism)
    flow = torch.tensor([[-0.3, 1.0], [-1.0, -0.1]], dtype=torch.float64)
    start = torch.tensor([[1.0, 0.5], [-1.0, 2.0]], dtype=torch.float64)
    times = uneven_times()
    elapsed = (times - times[:, :1])[..., None, None]
    expected = (torch.linalg.matrix_exp(flow * elapsed) @ start[:, None, :, None]).squeeze(-1)
    for config in (SolverConfig(steps=200), SolverConfig(method="dopri5", steps=200)):
        found = solve(mechanism, lambda x: flow @ x.mT, {"initial": start}, times, config).states
        torch.testing.assert_close(found[0], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["transcription", "lotka_volterra", "nonparametric"])
def test_gradients_equal_finite_differences(kind: str) -> None:
    mechanism = build_mechanism({"kind": kind, "outputs": ("a",)})
    values = some_values(mechanism, 2)
    times = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.7, 0.7]], dtype=torch.float64)

    def states(weight: Tensor, *given: Tensor) -> Tensor:
        named = dict(zip(values, given, strict=True))
        return solve(mechanism, Sines(weight), named, times, SolverConfig(steps=4)).states

    inputs = [torch.ones(2, 2, 1, dtype=torch.float64), *values.values()]
    assert torch.autograd.gradcheck(states, [tensor.detach().requires_grad_() for tensor in inputs])


class Network(torch.nn.Module):
    """A force with parameters of its own, of time or of the state."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(num_inputs, 1, dtype=torch.float64)
        torch.nn.init.constant_(self.layer.weight, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.tanh(self.layer(x)).mT
        return result


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("kind", ["lotka_volterra", "nonparametric"])
@pytest.mark.parametrize("made_as", ["dataclass", "module"])
def test_adjoint_gradients_equal_those_through_the_steps(kind: str, method: str, made_as: str) -> None:
    mechanism = build_mechanism({"kind": kind, "outputs": ("a",)})
    times = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.7, 2.0]], dtype=torch.float64)
    raw = torch.full((2, 2, 1), 0.5, dtype=torch.float64, requires_grad=True)
    network = Network(1)
    # The force's weights depend on a value that the problem holds too: that path must be counted once.
    values = {name: value * raw[0].mean() for name, value in some_values(mechanism, 2).items()}
    force = Sines(raw * values["initial"].mean()) if made_as == "dataclass" else network
    inputs = [raw] if made_as == "dataclass" else [raw, *network.parameters()]

    def gradients(config: SolverConfig) -> tuple[Tensor, ...]:
        states = solve(mechanism, force, values, times, config).states
        return torch.autograd.grad(states.square().sum(), inputs, retain_graph=True)

    config = SolverConfig(method=method, steps=40, rtol=1e-8, atol=1e-10)
    through, adjoint = gradients(config), gradients(config.model_copy(update={"gradient": "adjoint"}))
    for one, other in zip(through, adjoint, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=1e-6)


def test_adjoint_refuses_a_force_it_cannot_see_into() -> None:
    values, times = glucose_values([0.5]), torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    config = SolverConfig(method="dopri5", gradient="adjoint")
    with pytest.raises(UsageError, match="dataclass"):
        solve(glucose(), lambda x: x.mT, values, times, config)


@pytest.mark.parametrize("method", ["rk4", "midpoint", "dopri5"])
@pytest.mark.parametrize("gradient", ["backprop", "adjoint"])
def test_a_diverging_instance_is_flagged_and_changes_nothing(method: str, gradient: str) -> None:
    mechanism = build_mechanism({"kind": "lotka_volterra"})
    times = torch.linspace(0, 5, 7, dtype=torch.float64).expand(3, 7)
    config = SolverConfig(method=method, gradient=gradient, steps=40)

    def run(growth: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        rates = torch.tensor([[0.5], [growth], [0.7]], dtype=torch.float64)
        one = torch.ones(3, 1, dtype=torch.float64)
        values = {"growth": rates, "mortality": 0.4 * one, "initial": one}
        inputs = [*values.values(), torch.ones(2, 3, 1, dtype=torch.float64)]
        inputs = [tensor.clone().requires_grad_() for tensor in inputs]
        named = dict(zip(values, inputs[:-1], strict=True))
        found = solve(mechanism, Sines(inputs[-1]), named, times, config)
        return found.ok, found.states.detach(), list(torch.autograd.grad(found.states.square().sum(), inputs))

    all_ok, calm, calm_gradients = run(0.6)
    ok, states, gradients = run(1e5)
    assert all_ok.all()
    assert torch.equal(ok, torch.tensor([[True, False, True]] * 2))
    assert states.isfinite().all()
    tolerance = 0.0 if method != "dopri5" else 1e-5
    torch.testing.assert_close(states[:, ::2], calm[:, ::2], rtol=tolerance, atol=tolerance)
    for gradient_then, gradient_now in zip(calm_gradients, gradients, strict=True):
        instance = -2  # values are [B, K], the weights [S, B, L]
        assert not gradient_now.select(instance, 1).any()
        for b in (0, 2):
            torch.testing.assert_close(
                gradient_now.select(instance, b), gradient_then.select(instance, b), rtol=tolerance, atol=tolerance
            )


def test_one_diverging_sample_leaves_the_gradient_of_its_instance_to_the_others() -> None:
    mechanism = build_mechanism({"kind": "lotka_volterra", "response": {"kind": "exp"}})
    values = {name: value.requires_grad_() for name, value in some_values(mechanism, 1).items()}
    times = torch.linspace(0, 5, 7, dtype=torch.float64).unsqueeze(0)
    weight = torch.tensor([0.5, 2000.0], dtype=torch.float64)[:, None, None]
    both = solve(mechanism, Sines(weight), values, times, SolverConfig(steps=40))
    alone = solve(mechanism, Sines(weight[:1]), values, times, SolverConfig(steps=40))
    assert both.ok.flatten().tolist() == [True, False]
    inputs = list(values.values())
    for one, other in zip(
        torch.autograd.grad(both.states.sum(), inputs), torch.autograd.grad(alone.states.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=0)


def test_a_start_that_is_not_finite_is_flagged() -> None:
    values, times = glucose_values([0.5, 1.1]), torch.tensor([[0.0, 1.0]] * 2, dtype=torch.float64)
    values["initial"] = torch.tensor([[math.nan], [1.0]], dtype=torch.float64)
    for method in ("rk4", "dopri5"):
        found = solve(glucose(), unit_sines(1, 2), values, times, SolverConfig(method=method, steps=10))
        assert found.ok.tolist() == [[False, True]]
        assert found.states.isfinite().all()


LINEAR: dict[str, dict[str, object]] = {
    "transcription": {"kind": "transcription", "outputs": ("a", "b")},
    "two_factors": {"kind": "transcription", "outputs": ("a", "b", "c"), "forces": ("f", "g")},
    "glucose": {"kind": "glucose"},
    "first_order": {"kind": "linear_ode", "order": 1},
    "third_order": {"kind": "linear_ode", "order": 3, "free_start": True},
    "cascade": {"kind": "cascade", "outputs": ("a", "b")},
}


@pytest.mark.parametrize("name", LINEAR)
def test_stepping_agrees_with_the_response_of_linear_mechanisms(name: str) -> None:
    """The times asked for are some of the breaks, and leave the first out."""
    mechanism = build_mechanism(LINEAR[name])
    linearity = probe(mechanism, ParameterSpace(mechanism.settled()))
    assert linearity.affine
    assert linearity.diagonal == (name not in ("third_order", "cascade"))
    values = some_values(mechanism, 2)
    breaks = torch.tensor([[0.0, 0.4, 1.0, 2.0, 2.5, 4.0], [1.0, 1.5, 3.0, 3.5, 3.5, 3.5]], dtype=torch.float64)
    times = breaks[:, [1, 2, 4, 5]]
    weight = torch.randn(1, 2, len(mechanism.force_names), generator=torch.Generator().manual_seed(1)).double()
    force = Sines(weight)
    grid = panels(breaks, substeps=2, order=5)
    at_nodes = force(grid.nodes.unsqueeze(-1))[0]
    states = solve(mechanism, force, values, breaks, SolverConfig(steps=600)).states[0]
    rows = {key: value.unsqueeze(-2) for key, value in values.items()}
    expected = mechanism.observe(states, rows)[:, [1, 2, 4, 5]].mT
    for diagonal in {linearity.diagonal, False}:
        offset, map_ = response(extract(mechanism, values), times, grid, diagonal=diagonal)
        found = offset + torch.einsum("blptg,blg->bpt", map_, at_nodes)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
        stepped = propagate(extract(mechanism, values), grid, at_nodes, diagonal=diagonal)[..., [1, 2, 4, 5]]
        torch.testing.assert_close(stepped, found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_quadrature_converges_with_twice_its_nodes(order: int) -> None:
    mechanism = build_mechanism(LINEAR["cascade"])
    values, times = some_values(mechanism, 1), torch.linspace(0, 6, 4, dtype=torch.float64).unsqueeze(0)
    force = unit_sines(1, 1)

    def outputs(substeps: int, nodes: int) -> Tensor:
        grid = panels(times, substeps, nodes)
        offset, map_ = response(extract(mechanism, values), times, grid, diagonal=False)
        return offset + torch.einsum("blptg,blg->bpt", map_, force(grid.nodes.unsqueeze(-1))[0])

    exact = outputs(8, 8)
    errors = [float((outputs(substeps, order) - exact).abs().max()) for substeps in (2, 4, 8)]
    rates = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
    assert all(abs(rate - 2 * order) < 0.3 for rate in rates), (errors, rates)
