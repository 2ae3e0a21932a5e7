"""What every scheme of time stepping has to pass, in every engine: those shipped, and those of `--plugin FILE`.

The last tests add one as a user does: a file, and two lines of a config.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from distlfm.config import build
from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec
from distlfm.errors import OtherWork, UsageError
from distlfm.fleets.fit_job import model_of
from distlfm.inference.field.points import kicks_of, pulse_of, take_apart
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.instance import Instance
from distlfm.mechanisms.build import import_plugins
from distlfm.runs.folder import identity, same_settings
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.solvers.fem.spec import AssembledSystem, split
from distlfm.solvers.field.dense import ByEngine, DenseEngine, Modal, OneByOne
from distlfm.solvers.field.engine import Engine, Inputs, TimeGrid, solve
from distlfm.solvers.field.meshed import Meshed, meshed
from distlfm.solvers.field.scheme import SCHEMES, Scheme, register, scheme_named
from distlfm.solvers.field.sparse import ReducedEngine, SparseEngine
from distlfm.solvers.field.tangent import ObservedSteps, Tangent, trajectory
from tests.support.field_problems import Line, line

NAMES = ("sensitivity", "decay", "diffusion", "velocity_0")
EVERY = [
    *SCHEMES.values(),
    Scheme("implicit", old=0.0, new=1.0, order=1),
    Scheme("damped", old=0.4, new=0.6, order=1),
]
NODES = np.array([0.0, 0.2, 0.5, 0.65, 1.0])

every_scheme = pytest.mark.parametrize("scheme", EVERY, ids=[one.name for one in EVERY])


def problem() -> AssembledSystem:
    return split(line(NODES, value=0.3, drift=True), NAMES)


def engines() -> dict[str, Engine]:
    """On as many shapes as there are free nodes, the reduced engine has nothing left out."""
    sparse = SparseEngine(problem())
    shapes = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    return {"dense": DenseEngine(problem()), "sparse": sparse, "reduced": ReducedEngine(sparse, shapes)}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(leading: int) -> list[Tensor]:
    """theta, initial state, force."""
    return [0.2 + normal(2, 4).abs(), normal(2, 3, 5, seed=1), normal(2, 3, leading, 5, seed=2)]


OBSERVE = normal(4, 5, seed=3)


def step_error(scheme: Scheme, steps: int) -> float:
    """Largest error where y = sin(3t) · shape solves the equations of the nodes, so that only steps have an error."""
    names = NAMES[:3]
    engine = DenseEngine(split(line(NODES), names))
    theta, grid = torch.tensor([[1.0, 0.4, 0.1]], dtype=torch.float64), TimeGrid(0.0, 1 / steps, steps, scheme)
    shape, free = torch.sin(math.pi * torch.from_numpy(NODES)), engine.free
    stiffness = torch.einsum("k,kij->ij", theta[0], engine.stiffness[1:])
    force = torch.zeros(steps + 1, len(NODES), dtype=torch.float64)
    pulled = torch.linalg.solve(engine.mass, stiffness @ shape[free])
    force[:, free] = 3 * torch.cos(3 * grid.times)[:, None] * shape[free] - torch.sin(3 * grid.times)[:, None] * pulled
    start = torch.zeros(1, 1, len(NODES), dtype=torch.float64)
    found = solve(engine, theta, start, force[None, None], grid, torch.eye(len(NODES), dtype=torch.float64))
    return float((found[0, 0] - torch.sin(3 * grid.times)[:, None] * shape).abs().max())


@every_scheme
def test_an_exact_solution_is_approached_at_the_order_that_the_scheme_states(scheme: Scheme) -> None:
    errors = [step_error(scheme, steps) for steps in (80, 160, 320)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders == pytest.approx([scheme.order] * 2, abs=0.15)


@every_scheme
@pytest.mark.parametrize("leading", [1, 2, 7])
def test_what_steps_take_of_values_has_its_adjoint(scheme: Scheme, leading: int) -> None:
    values = normal(2, leading, 3)
    mixed = scheme.mix(values, 6)
    weights = normal(*mixed.shape, seed=1)
    back = scheme.mix_transposed(weights, torch.zeros_like(values))
    assert float((mixed * weights).sum()) == pytest.approx(float((values * back).sum()), rel=1e-12, abs=1e-14)
    for before, after, one in zip(values[:, :-1].unbind(1), values[:, 1:].unbind(1), mixed.unbind(1), strict=False):
        torch.testing.assert_close(one, scheme.between(before, after), rtol=0, atol=1e-15)


@every_scheme
@pytest.mark.parametrize("leading", [1, 3, 7])
@pytest.mark.parametrize("name", ["dense", "sparse", "reduced"])
def test_the_linear_part_and_its_adjoint_are_transposes(name: str, leading: int, scheme: Scheme) -> None:
    engine, grid = engines()[name], TimeGrid(0.0, 0.07, 6, scheme)
    theta, initial, force = inputs(leading)
    observed, saved = engine.forward(Inputs(theta, initial, force), grid, OBSERVE, driven=False, keep=True)
    weights = normal(*observed.shape, seed=4)
    found = engine.adjoint(saved, weights)
    forward, backward = (observed * weights).sum(), (initial * found.initial).sum() + (force * found.force).sum()
    assert float(forward) == pytest.approx(float(backward), rel=1e-11)


@every_scheme
@pytest.mark.parametrize("driven", [True, False])
@pytest.mark.parametrize("leading", [1, 3, 7])
@pytest.mark.parametrize("name", ["dense", "sparse", "reduced"])
def test_gradients_match_finite_differences(name: str, leading: int, driven: bool, scheme: Scheme) -> None:
    """Of each parameter, and of start and force in a direction: in these it is linear, and has its transpose."""
    engine, grid = engines()[name], TimeGrid(0.0, 0.07, 6, scheme)
    theta, initial, force = wanted = [one.requires_grad_() for one in inputs(leading)]

    def answer(*given: Tensor) -> Tensor:
        return solve(engine, *given, grid, OBSERVE, driven=driven)

    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.autograd.gradcheck(lambda one: answer(one, initial.detach(), force.detach()), [theta], **close)
    torch.autograd.gradcheck(answer, wanted, **close, fast_mode=True)


@every_scheme
@pytest.mark.parametrize("leading", [1, 7])
def test_engines_agree_to_rounding(leading: int, scheme: Scheme) -> None:
    grid, given = TimeGrid(0.0, 0.07, 6, scheme), inputs(leading)
    for driven in (True, False):
        first, *others = (solve(one, *given, grid, OBSERVE, driven=driven) for one in engines().values())
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-12, atol=1e-12)


@every_scheme
def test_a_value_of_a_batch_is_solved_as_if_alone(scheme: Scheme) -> None:
    grid, given = TimeGrid(0.0, 0.07, 6, scheme), inputs(7)
    for engine in engines().values():
        together = solve(engine, *given, grid, OBSERVE)
        alone = [solve(engine, *(part[a : a + 1] for part in given), grid, OBSERVE) for a in range(2)]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)


@every_scheme
@pytest.mark.parametrize("drift", [False, True], ids=["every mode on its own", "one by one"])
def test_faster_ways_of_one_force_each_agree_with_the_engine(drift: bool, scheme: Scheme) -> None:
    names = NAMES if drift else NAMES[:3]
    field, grid = Line(line(NODES, held=(0,), value=0.3, drift=drift), names), TimeGrid(0.0, 0.07, 6, scheme)
    theta, start, force = 0.2 + normal(3, len(names)).abs(), normal(3, 5, seed=1), normal(3, 7, 5, seed=2)
    observe = field.observe(np.linspace(0, 1, 4)[:, None])
    stepper = OneByOne(field.engine) if drift else Modal.of(field.engine)
    assert stepper is not None
    expected = ByEngine(field.engine)(theta, start, force, grid, observe)
    torch.testing.assert_close(stepper(theta, start, force, grid, observe), expected, rtol=0, atol=1e-12)


@every_scheme
def test_answers_to_a_pulse_add_up_to_the_answer_to_a_force(scheme: Scheme) -> None:
    field, grid = Line(line(NODES), NAMES[:3]), TimeGrid(0.0, 0.1, 6, scheme)
    theta, shape, time = 0.2 + normal(1, 3).abs(), normal(1, 1, 1, 5, seed=1), normal(1, 7, 1, seed=2)
    points = torch.tensor([[[0.1, 0.5], [0.35, 0.2], [0.6, 0.65]]], dtype=torch.float64)
    places = take_apart(points, grid, field)
    none = torch.zeros(1, 1, 5, dtype=torch.float64)
    answers = solve(field.engine, theta, none, pulse_of(shape, grid), grid, places.observe, driven=False)[:, 0, 1:]
    found = torch.einsum("aujr,ajo->auo", kicks_of(time, places, grid), answers)
    whole = solve(field.engine, theta, none, time.unsqueeze(1) * shape, grid, places.observe, driven=False)[:, 0]
    later = whole[:, (places.before + 1).clamp_max(6)]
    expected = (1 - places.share[:, None]) * whole[:, places.before] + places.share[:, None] * later
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def on_a_mesh(name: str, module: str, solver: str) -> Meshed:
    spec = ProblemSpec(
        equation=EquationRef(module=f"distlfm.equations.{module}", name=name),
        mesh=MeshConfig(lower=(0.0,), upper=(1.0,), size=0.2),
        boundary={"left": BoundaryConfig(kind="dirichlet", value=0.1), "right": BoundaryConfig(kind="robin", rate=0.3)},
    )
    return meshed(spec.model_dump_json(), solver, 1, "auto")  # type: ignore[arg-type]


@pytest.mark.slow
@every_scheme
def test_trajectories_and_gradients_of_every_engine_are_those_of_the_tape(scheme: Scheme) -> None:
    grid = TimeGrid(0.0, 0.1, 5, scheme)
    found = {}
    for solver in ("taped", "dense", "sparse", "petsc"):
        field = on_a_mesh("ReactionDiffusion", "reaction_diffusion", solver)
        nodes, names = len(field.nodes), field.engine.names
        given = [0.2 + normal(1, len(names)).abs(), normal(1, 2, nodes, seed=1), normal(1, 2, 6, nodes, seed=2)]
        wanted = [one.requires_grad_() for one in given]
        observed = solve(field.engine, *wanted, grid, torch.eye(nodes, dtype=torch.float64))
        gradients = torch.autograd.grad((observed * normal(*observed.shape, seed=3)).sum(), wanted)
        found[solver] = [observed.detach(), *gradients]
    for solver in ("dense", "sparse", "petsc"):
        for one, other in zip(found[solver], found["taped"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@every_scheme
def test_sweeps_of_a_linearised_trajectory_are_those_of_the_tape(scheme: Scheme) -> None:
    field, grid = on_a_mesh("FisherKpp", "fisher_kpp", "taped"), TimeGrid(0.0, 0.1, 5, scheme)
    nodes = len(field.nodes)
    theta = torch.tensor([0.9, 1.3, 1.1, 0.05], dtype=torch.float64)
    initial, force = torch.full((nodes,), 0.4, dtype=torch.float64), normal(6, nodes, seed=1)
    states = trajectory(field, theta, initial, force, grid)
    assert states is not None
    tangent, rows = Tangent(field, theta, force, states, grid), normal(2, nodes, seed=2)
    watched = ObservedSteps(np.array([4, 2]), np.array([1.0, 0.3]), sp.csr_array(rows.numpy()))
    found = tangent.backward(watched)
    wanted = [one.clone().requires_grad_() for one in (theta[None], initial[None, None], force[None, None])]
    seen = solve(field.engine, *wanted, grid, torch.eye(nodes, dtype=torch.float64))[0, 0]
    for i, value in enumerate((seen[5] @ rows[0], (0.7 * seen[2] + 0.3 * seen[3]) @ rows[1])):
        by_theta, by_initial, by_force = torch.autograd.grad(value, wanted, retain_graph=True)
        np.testing.assert_allclose(found.theta[i], by_theta[0], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.initial[i], by_initial[0, 0], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.force[i], by_force[0, 0], rtol=1e-8, atol=1e-12)
    change, start = normal(6, nodes, 2, seed=3).numpy(), normal(nodes, 2, seed=4).numpy()
    start[field.fixed] = 0.0
    moved = tangent.forward(change, start)[5]
    expected = np.einsum("nj,njc->c", found.force[0], change) + found.initial[0] @ start
    np.testing.assert_allclose(rows[0].numpy() @ moved, expected, rtol=1e-9, atol=1e-11)


# ---- a scheme of the user's own --------------------------------------------------------------------------------------

PLUGIN = """
from distlfm.solvers.field.scheme import Scheme, register

register(Scheme("backward_euler", old=0.0, new=1.0, order=1))
"""

MECHANISM = {
    "kind": "reaction_diffusion",
    "fixed": {"sensitivity": 1.0, "decay": 0.5, "diffusion": 0.05},
    "mesh": {"kind": "interval", "lower": [0.0], "upper": [1.0], "size": 0.1},
    "boundary": {"all": {"kind": "dirichlet", "value": 0.0}},
    "start": 0.0,
}
FORCE = {"priors": {"lengthscale": {"kind": "lognormal", "median": 0.4, "spread": 0.2}}}
SIMULATED = {"instances": 1, "start": 0.0, "stop": 1.0, "points": 9, "places": 7, "force": FORCE}
QUICK = {"posterior": {"stages": [8], "draws": 8}, "field": {"refinements": 0, "num_times": 6, "num_places": 6}}


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "own_scheme.py"
    path.write_text(PLUGIN)
    before = dict(SCHEMES)
    yield str(path)
    SCHEMES.clear()
    SCHEMES.update(before)
    sys.modules.pop("own_scheme", None)


def simulated(mechanism: dict[str, object], **more: object) -> Instance:
    (found,) = simulate_from(build(SimulateConfig, {"mechanism": mechanism, **SIMULATED, **more}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["auto", "taped"])
def test_a_scheme_of_the_users_own_simulates(plugin: str, solver: str) -> None:
    """The processes of a helper group, which a taped field is solved in, have not read the plugin."""
    known = simulated({**MECHANISM, "solver": solver})
    own = simulated({**MECHANISM, "solver": solver, "scheme": "backward_euler"}, plugins=[plugin])
    assert known.truth is not None
    assert own.truth is not None
    assert own.truth.outputs is not None
    np.testing.assert_array_equal(own.truth.force, known.truth.force)
    size = np.abs(known.truth.outputs).max()
    moved = np.abs(own.truth.outputs - known.truth.outputs).max() / size
    assert 1e-5 < moved < 0.05


@pytest.mark.slow
def test_a_scheme_of_the_users_own_fits(plugin: str) -> None:
    data, found = simulated(MECHANISM), {}
    for scheme in ("crank_nicolson", "backward_euler"):
        content = {"plugins": [plugin], "mechanism": {**MECHANISM, "scheme": scheme}, "force": FORCE}
        model = model_of(build(FitConfig, content), [data])
        (result,) = fit_instances(model, [data], build(InferenceConfig, QUICK))
        assert result.status == "converged"
        found[scheme] = result
    means = {name: one.grid.force.mean for name, one in found.items()}
    assert not np.array_equal(*means.values())
    assert np.corrcoef(*(one.ravel() for one in means.values()))[0, 1] > 0.98
    assert found["backward_euler"].posterior.marginal.map.grid.scheme is scheme_named("backward_euler")


def test_a_scheme_that_nobody_registered_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no time scheme 'leapfrog'.*crank_nicolson"):
        scheme_named("leapfrog")


def test_a_scheme_does_not_take_the_name_of_another(plugin: str) -> None:
    with pytest.raises(UsageError, match=r"There is a time scheme 'crank_nicolson' already\. Register it by another"):
        register(Scheme("crank_nicolson", old=0.4, new=0.6, order=1))
    assert scheme_named("crank_nicolson").old == 0.5
    import_plugins([plugin])
    assert register(Scheme("backward_euler", old=0.0, new=1.0, order=1)) is scheme_named("backward_euler")


def test_a_run_knows_the_weights_of_ones_own_scheme(plugin: str) -> None:
    content = {"plugins": [plugin], "mechanism": MECHANISM, "force": FORCE}
    assert "scheme" not in identity(build(FitConfig, content))
    config = build(FitConfig, {**content, "mechanism": {**MECHANISM, "scheme": "backward_euler"}})
    begun: Any = SimpleNamespace(path="run", spec=SimpleNamespace(attributes=identity(config), block=1))
    same_settings(begun, config, 1)
    SCHEMES["backward_euler"] = Scheme("backward_euler", old=0.1, new=0.9, order=1)
    with pytest.raises(OtherWork, match="another backward_euler: the file of that scheme has changed since"):
        same_settings(begun, config, 1)


def test_a_scheme_that_misses_a_part_of_the_rate_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.5 and 0\.4 .* do not sum to 1"):
        Scheme("leaky", old=0.5, new=0.4, order=1)
