"""Fields of nonlinear equations: linearised trajectories, and fits of simulated populations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from distlfm.config import build, read_yaml
from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec
from distlfm.errors import UsageError
from distlfm.fleets.fit_job import model_of
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.collapsed import Starts
from distlfm.inference.field.linearised import LinearisedField, Point, shown_by, solve_at
from distlfm.inference.field.search import find_point
from distlfm.inference.field.settings import build_map, settle
from distlfm.inference.field.slopes import match_slopes
from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.inference.observations import collate
from distlfm.inference.optimise import OptimiserConfig, Status
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.runtime.reporting import watched
from distlfm.simulation.instances import simulate_from
from distlfm.solvers.field.engine import TimeGrid, solve
from distlfm.solvers.field.meshed import Meshed, meshed
from distlfm.solvers.field.tangent import ObservedSteps, Tangent, trajectory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUICK = {"posterior": {"stages": [10, 20], "draws": 24}, "field": {"refinements": 0}}


@pytest.fixture(scope="module")
def populations() -> list[Instance]:
    content = read_yaml(ROOT / "configs/simulate/fisher_kpp.yaml") | {"instances": 3}
    return simulate_from(build(SimulateConfig, content))


def fisher(instances: list[Instance], **fixed: float) -> Model:
    content = read_yaml(ROOT / "configs/fit/fisher_kpp.yaml")
    content["mechanism"]["fixed"] |= fixed
    return model_of(build(FitConfig, content), instances)


def field(name: str = "FisherKpp", module: str = "fisher_kpp", size: float = 0.1) -> Meshed:
    spec = ProblemSpec(
        equation=EquationRef(module=f"distlfm.equations.{module}", name=name),
        mesh=MeshConfig(lower=(0.0,), upper=(1.0,), size=size),
        boundary={"left": BoundaryConfig(kind="dirichlet", value=0.1), "right": BoundaryConfig(kind="robin", rate=0.3)},
    )
    return meshed(spec.model_dump_json(), "taped", 1, "auto")


def test_sweeps_of_the_linearised_trajectory_are_those_of_the_tape() -> None:
    problem, grid, stream = field(), TimeGrid(0.0, 0.1, 8), np.random.default_rng(0)
    nodes, count = len(problem.nodes), 7
    theta = torch.tensor([0.9, 1.3, 1.1, 0.05], dtype=torch.float64)
    initial = torch.full((nodes,), 0.4, dtype=torch.float64)
    force = torch.from_numpy(stream.normal(size=(grid.steps + 1, nodes)))
    states = trajectory(problem, theta, initial, force, grid)
    assert states is not None
    tangent = Tangent(problem, theta, force, states, grid)
    rows = stream.uniform(size=(count, nodes))
    watched = ObservedSteps(stream.integers(0, grid.steps, count), stream.uniform(size=count), sp.csr_array(rows))
    found = tangent.backward(watched)
    wanted = [x.clone().requires_grad_() for x in (theta[None], initial[None, None], force[None, None])]
    seen = solve(problem.engine, wanted[0], wanted[1], wanted[2], grid, torch.eye(nodes, dtype=torch.float64))[0, 0]
    for i in range(count):
        n, share = int(watched.before[i]), float(watched.share[i])
        value = ((1 - share) * seen[n] + share * seen[n + 1]) @ torch.from_numpy(rows[i])
        by_theta, by_initial, by_force = torch.autograd.grad(value, wanted, retain_graph=True)
        np.testing.assert_allclose(found.theta[i], by_theta[0], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.initial[i], by_initial[0, 0], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.force[i], by_force[0, 0], rtol=1e-8, atol=1e-12)
    change, start = stream.normal(size=(grid.steps + 1, nodes, 2)), stream.normal(size=(nodes, 2))
    start[problem.fixed] = 0.0
    moved = tangent.forward(change, start)
    later = watched.share[:, None, None]
    pushed = (1 - later) * moved[watched.before] + later * moved[watched.before + 1]
    expected = np.einsum("snj,njc->sc", found.force, change) + found.initial @ start
    np.testing.assert_allclose(np.einsum("sj,sjc->sc", rows, pushed), expected, rtol=1e-9, atol=1e-11)


def test_a_population_with_known_rates_gives_its_force(populations: list[Instance], tmp_path: Path) -> None:
    model = fisher(populations, growth=float(populations[0].truth.parameters["growth"][0]))  # type: ignore[union-attr]
    heard: set[str] = set()
    with watched(lambda step: heard.update(one.stage for one in (step, *step.within))):
        (result,) = fit_instances(model, populations[:1], build(InferenceConfig, QUICK))
    assert heard >= {"mesh", "matching slopes", "linearisation", "search step", "gradients", "draw"}
    assert (result.method, result.status) == ("laplace", "converged")
    scores = figures(result)
    assert scores["latent_q2"] > 0.97
    assert scores["output_q2"] > 0.999
    assert 0.5 < scores["latent_coverage_68"] < 0.95

    save_fit(result, tmp_path / "one.npz")
    again = load_fit(tmp_path / "one.npz")
    times, places = [0.3, 1.1, 2.2], np.array([0.2, 0.55, 0.9])
    first, second = result.predict(times, places), again.predict(times, places)
    np.testing.assert_allclose(second.force.mean, first.force.mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(second.outputs.upper95, first.outputs.upper95, rtol=1e-6, atol=1e-9)

    end = float(result.grid.times[-1])
    times = [1.1, end + 1.5]
    told, drawn = result.predict(times, places[1:]), result.draws(300, times, positions=places[1:])
    np.testing.assert_allclose(drawn.force.std(0), told.force.sd, rtol=0.2)
    assert (drawn.outputs.std(0) < 1.2 * told.outputs.sd).all()
    assert drawn.outputs.std(0)[0, 1] > 0.3 * told.outputs.sd[0, 1]


def test_a_learned_growth_rate_has_an_interval_that_knows_the_force(populations: list[Instance]) -> None:
    """The volume of forces that explain the data depends on growth; without it the interval is shifted and narrow."""
    model = fisher(populations)
    (result,) = fit_instances(model, populations[1:2], build(InferenceConfig, QUICK))
    (growth,) = [one for one in result.estimates if one.parameter == "growth"]
    truth = float(populations[1].truth.parameters["growth"][0])  # type: ignore[union-attr]
    assert growth.lower95 < truth < growth.upper95
    assert figures(result)["latent_q2"] > 0.9
    # The bound agrees with one whose growth rate is known, found by a search of its own.
    known = fisher(populations, growth=growth.mean)
    settings = settle(known, populations[1:2], InferenceConfig().field)
    data = collate([populations[1].blind()], known.system.outputs)
    search = find_point(data, build_map(known, settings), None, 0, OptimiserConfig(), Starts())
    away = result.posterior.marginal.log_joint(  # type: ignore[attr-defined]
        _at_growth(model, search.best.z, growth.mean), torch.zeros(1, dtype=torch.long)
    )
    prior = model.space["growth"].prior
    assert float(away) == pytest.approx(-float(search.best.value) - 0.5 * _standard(prior, growth.mean) ** 2, abs=0.3)


def test_matched_slopes_save_linearisations(populations: list[Instance]) -> None:
    model = fisher(populations)
    settings = settle(model, populations, InferenceConfig().field)
    field_map, options = build_map(model, settings), OptimiserConfig()
    data = collate([populations[2].blind()], model.system.outputs)
    start = match_slopes(data, field_map, 0, options, Starts()).point()
    near, far = (find_point(data, field_map, one, 0, options, Starts()) for one in (start, None))
    assert near.status == far.status == Status.CONVERGED
    assert near.linearisations < far.linearisations
    assert float(near.best.value) == pytest.approx(float(far.best.value), abs=0.1)


def test_a_linear_equation_on_a_tape_is_answered_as_without(populations: list[Instance]) -> None:
    mechanism = {
        "kind": "reaction_diffusion",
        "fixed": {"sensitivity": 1.0, "decay": 0.5, "diffusion": 0.02},
        "mesh": {"lower": [0.0], "upper": [1.0], "size": 0.1},
        "initial": {"kind": "field"},
        "start": 0.0,
        "step": 0.1,
    }
    found = []
    for solver in ("taped", "dense"):
        config = build(FitConfig, {"mechanism": mechanism | {"solver": solver}})
        (result,) = fit_instances(model_of(config, populations[:1]), populations[:1], build(InferenceConfig, QUICK))
        found.append(result)
    taped, dense = found
    assert (taped.method, dense.method) == ("laplace", "collapsed")
    scale = np.abs(dense.grid.force.mean).max()
    assert np.abs(taped.grid.force.mean - dense.grid.force.mean).max() < 1e-3 * scale
    assert np.abs(taped.grid.outputs.mean - dense.grid.outputs.mean).max() < 1e-3


def test_an_equation_that_cannot_be_solved_is_a_status_with_advice(populations: list[Instance]) -> None:
    content = read_yaml(ROOT / "configs/fit/fisher_kpp.yaml")
    content["mechanism"]["initial"] = {"kind": "given", "values": [-60.0]}
    model = model_of(build(FitConfig, content), populations)
    options = build(InferenceConfig, QUICK | {"preestimate": {"enabled": False}})
    (result,) = fit_instances(model, populations[:1], options)
    assert result.status == "diverged"
    assert not result.ok
    assert "mechanism.step" in result.advice
    assert np.isfinite(result.grid.force.mean).all()


def test_methods_that_do_not_suit_are_refused(populations: list[Instance]) -> None:
    model = fisher(populations)
    with pytest.raises(UsageError, match="not linear in the state"):
        fit_instances(model, populations[:1], InferenceConfig(method="collapsed"))
    with pytest.raises(UsageError, match="not fitted by the method 'variational'"):
        fit_instances(model, populations[:1], InferenceConfig(method="variational"))


def test_a_point_that_is_its_own_linearisation_is_reproduced(populations: list[Instance]) -> None:
    model = fisher(populations)
    settings = settle(model, populations, InferenceConfig().field)
    field_map = build_map(model, settings)
    times, places = field_map.inducing.counts
    stream = torch.Generator().manual_seed(0)
    w = 0.3 * torch.randn(1, times * places, generator=stream, dtype=torch.float64)
    point = Point(torch.zeros(1, model.space.num_free, dtype=torch.float64), w)
    own = LinearisedField(collate([populations[0].blind()], model.system.outputs), field_map, point)
    rows = torch.zeros(1, dtype=torch.long)
    values = model.space.unpack(point.z)
    found = own.compared(values, rows)
    linear = own.observations.values[:, 0] - found.residual + (found.columns @ w.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(linear, own.reached, rtol=1e-9, atol=1e-10)
    asked = own.query_map(values, rows, own.observations.points)
    assert asked.columns is not None
    shown = asked.offset + (asked.columns @ w.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(shown, own.reached, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(asked.columns, found.columns, rtol=1e-8, atol=1e-10)


def test_with_two_unknown_coefficients_the_model_passes_through_its_own_points(populations: list[Instance]) -> None:
    content = read_yaml(ROOT / "configs/fit/fisher_kpp.yaml")
    content["mechanism"]["fixed"].pop("diffusion")
    content["mechanism"]["priors"]["diffusion"] = {"kind": "lognormal", "median": 0.02, "spread": 0.5}
    content["mechanism"]["mesh"] = {"kind": "interval", "lower": [0.0], "upper": [1.0], "size": 0.1}
    model = model_of(build(FitConfig, content), populations)
    settings = settle(model, populations, InferenceConfig().field)
    field_map = build_map(model, settings)
    data = collate([populations[0].observed().blind()], model.system.outputs)
    found = find_point(data, field_map, None, 0, OptimiserConfig(), Starts())
    own = found.marginal
    assert isinstance(own, LinearisedField)
    assert own.sides is not None
    assert len(own.sides.z) == 4
    noise = model.space.unpack(own.point.z)["noise"].squeeze()
    for i in range(4):
        point = Point(own.sides.z[i : i + 1], own.sides.w[i : i + 1])
        solved = shown_by(own.places, solve_at(field_map, point))
        asked = own.query_map(model.space.unpack(point.z), torch.zeros(1, dtype=torch.long), own.observations.points)
        assert asked.columns is not None
        told = asked.offset + (asked.columns @ point.w.unsqueeze(-1)).squeeze(-1)
        assert float(((told - solved).abs() / noise).max()) < 0.05


def _standard(prior: object, value: float) -> float:
    """The number of standard normal deviations that a log-normal value is from its median."""
    return float(np.log(value / prior.median) / prior.spread)  # type: ignore[attr-defined]


def _at_growth(model: Model, others: torch.Tensor, growth: float) -> torch.Tensor:
    """z of a model with growth, from that of one without."""
    place = model.space.slice_of("growth").start
    number = torch.tensor([[_standard(model.space["growth"].prior, growth)]], dtype=torch.float64)
    return torch.cat([others[:, :place], number, others[:, place:]], -1)
