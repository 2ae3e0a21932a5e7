"""Trajectories of real problems against exact solutions, plain numpy and Taylor remainders, as one line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from mpi4py import MPI
from plain_stepper import PlainStepper

from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec
from distlfm.errors import WorkError
from distlfm.solvers.fem.forms.discretise import Discretisation, discretise
from distlfm.solvers.fem.forms.evaluate import interpolation
from distlfm.solvers.fem.forms.operators import assemble_operators
from distlfm.solvers.fem.forms.steppers import CachedStepper, Stepper
from distlfm.solvers.fem.forms.taped import TapedTrajectory
from distlfm.solvers.fem.spec import Csr

COMM = MPI.COMM_WORLD
DECAY, DIFFUSION, SENSITIVITY = 0.4, 0.1, 1.5
THETA = {"sensitivity": SENSITIVITY, "decay": DECAY, "diffusion": DIFFUSION}
OBSERVED = 5


def problem(name: str, size: float, boundary: dict[str, BoundaryConfig], vertices: Any = ()) -> Discretisation:
    module = {"ReactionDiffusion": "reaction_diffusion", "FisherKpp": "fisher_kpp"}[name]
    equation = EquationRef(module=f"distlfm.equations.{module}", name=name)
    mesh = MeshConfig(lower=(0.0,), upper=(1.0,), size=size, vertices=vertices)
    return discretise(ProblemSpec(equation=equation, mesh=mesh, boundary=boundary), COMM)


def dense(found: Csr) -> Any:
    matrix = np.zeros(found.shape)
    rows = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
    np.add.at(matrix, (rows, found.indices), found.data)
    return matrix


def stepped(d: Discretisation, theta: dict[str, float], initial: Any, force: Any, dt: float) -> Any:
    """Crank–Nicolson in numpy with the assembled operators: [N + 1, J]."""
    operators = assemble_operators(d)
    at = {**theta, "": 1.0}
    mass = dense(operators.mass)
    stiffness = sum(at[name] * dense(part) for name, part in operators.stiffness.items())
    load = sum(at[name] * dense(part) for name, part in operators.load.items())
    source = sum((at[name] * part for name, part in operators.source.items()), np.zeros(d.num_nodes))
    left = mass - dt / 2 * stiffness
    left[operators.fixed] = np.eye(d.num_nodes)[operators.fixed]
    inverse = np.linalg.inv(left)
    y = np.array(initial)
    y[operators.fixed] = operators.fixed_values
    states = [y]
    for before, after in pairwise(force):
        right = (mass + dt / 2 * stiffness) @ y + dt / 2 * load @ (before + after) + dt * source
        right[operators.fixed] = operators.fixed_values
        y = inverse @ right
        states.append(y)
    return np.stack(states)


def growing(t: Any) -> Any:
    return 1.0 + np.sin(3.0 * t)


class Fixed:
    """y = a(t) sin(πx) + 0.3, held at both ends."""

    boundary = {"all": BoundaryConfig(kind="dirichlet", value=0.3)}  # noqa: RUF012

    @staticmethod
    def shape(x: Any) -> tuple[Any, Any]:
        return np.sin(np.pi * x), -(np.pi**2) * np.sin(np.pi * x)

    @staticmethod
    def rest(x: Any) -> tuple[Any, Any]:
        return 0.3 + 0.0 * x, 0.0 * x


class Flux:
    """y = a(t) x²(1 − x)² + 0.5 x² + 0.2 x + 0.4: a constant flux on the right, an exchange on the left."""

    boundary = {  # noqa: RUF012
        "right": BoundaryConfig(kind="neumann", value=DIFFUSION * 1.2),
        "left": BoundaryConfig(kind="robin", rate=0.7, value=0.4 - DIFFUSION * 0.2 / 0.7),
    }

    @staticmethod
    def shape(x: Any) -> tuple[Any, Any]:
        return 16 * x**2 * (1 - x) ** 2, 16 * (2 - 12 * x + 12 * x**2)

    @staticmethod
    def rest(x: Any) -> tuple[Any, Any]:
        return 0.5 * x**2 + 0.2 * x + 0.4, 1.0 + 0.0 * x


def solved(case: Any, num_cells: int, num_steps: int) -> tuple[Any, Any]:
    """The state at time 1, and the manufactured solution there."""
    d = problem("ReactionDiffusion", 1 / num_cells, case.boundary)
    x, t = d.nodes[:, 0], np.linspace(0, 1, num_steps + 1)[:, None]
    shape, bent = case.shape(x)
    rest, rest_bent = case.rest(x)
    y = growing(t) * shape + rest
    change = 3.0 * np.cos(3.0 * t) * shape
    force = (change + DECAY * y - DIFFUSION * (growing(t) * bent + rest_bent)) / SENSITIVITY
    return stepped(d, THETA, y[0], force, 1 / num_steps)[-1], y[-1]


def distance(one: Any, other: Any) -> float:
    return float(np.abs(one - other).max())


def orders(found: list[float]) -> list[float]:
    return [float(np.log2(coarse / fine)) for coarse, fine in pairwise(found)]


def convergence(case: Any) -> dict[str, list[float]]:
    limit, _ = solved(case, 32, 1280)
    return {
        "space": orders([distance(*solved(case, cells, 800)) for cells in (8, 16, 32)]),
        "time": orders([distance(solved(case, 32, steps)[0], limit) for steps in (10, 20, 40)]),
        "both": orders([distance(*solved(case, cells, cells)) for cells in (8, 16, 32)]),
    }


def setting(name: str, seed: int = 0) -> dict[str, Any]:
    boundary = {
        "left": BoundaryConfig(kind="dirichlet", value=0.2),
        "right": BoundaryConfig(kind="robin", rate=0.5, value=0.3),
    }
    d = problem(name, 0.07, boundary, vertices=(0.31, 0.32))
    generator = np.random.default_rng(seed)
    steps = 6
    return {
        "d": d,
        "theta": generator.uniform(0.3, 1.0, len(d.coefficients)),
        "initial": generator.uniform(0.1, 0.5, d.num_nodes),
        "force": generator.normal(size=(steps - 1, d.num_nodes)),  # zero at the last two times
        "steps": steps,
        "weights": generator.normal(size=(steps + 1, OBSERVED)),
        "observe": interpolation(d, generator.uniform(size=(OBSERVED, 1))),
    }


def run(at: dict[str, Any], trajectory: TapedTrajectory, **changed: Any) -> Any:
    now = {**at, **changed}
    theta = dict(zip(at["d"].coefficients, now["theta"], strict=True))
    return trajectory.forward(theta, now["initial"], now["force"], 0.1, at["steps"], at["observe"])


def taylor(name: str, make: Callable[[Discretisation], Stepper]) -> dict[str, Any]:
    """Orders at which the remainder of a first-order expansion vanishes: 2 if the gradient is right."""
    at = setting(name)
    trajectory = TapedTrajectory(make(at["d"]))
    base = float((run(at, trajectory) * at["weights"]).sum())
    gradients = dict(zip(("theta", "initial", "force"), trajectory.adjoint(at["weights"]), strict=True))
    generator = np.random.default_rng(5)
    answer: dict[str, Any] = {}
    for part, gradient in gradients.items():
        direction = generator.normal(size=gradient.shape)
        slope = float((gradient * direction).sum())
        remainders = []
        for h in (0.08, 0.04, 0.02):
            moved = float((run(at, trajectory, **{part: at[part] + h * direction}) * at["weights"]).sum())
            remainders.append(abs(moved - base - h * slope))
        answer[part] = {"slope": slope, "orders": orders(remainders), "remainders": remainders}
    fixed = trajectory.stepper.fixed
    answer["initial_at_fixed"] = float(np.abs(gradients["initial"][fixed]).max())
    return answer


def same_gradients(name: str) -> dict[str, float]:
    """The cached adjoint forms against dolfin-adjoint's own."""
    at = setting(name, 1)
    results, blocks = [], []
    for make in (CachedStepper, PlainStepper):
        trajectory = TapedTrajectory(make(at["d"]))
        results.append([run(at, trajectory), *trajectory.adjoint(at["weights"])])
        blocks.append(sorted({type(block).__name__ for block in trajectory._tape.get_blocks()}))
    assert blocks == [["StepBlock"], ["DirichletBCBlock", "FunctionAssignBlock", "SolveVarFormBlock"]], blocks
    names = ("observed", "theta", "initial", "force")
    return {
        name: float(np.abs(one - other).max() / np.abs(other).max())
        for name, one, other in zip(names, *results, strict=True)
    }


def against_numpy() -> dict[str, float]:
    at = setting("ReactionDiffusion", 2)
    d = at["d"]
    force = np.concatenate([at["force"], np.zeros((2, d.num_nodes))])
    theta = dict(zip(d.coefficients, at["theta"].tolist(), strict=True))
    expected = stepped(d, theta, at["initial"], force, 0.1)
    trajectory = TapedTrajectory(CachedStepper(d))
    observed = run(at, trajectory)
    whole = trajectory.forward(theta, at["initial"], at["force"], 0.1, at["steps"])
    return {
        "observed": float(np.abs(observed - expected @ dense(at["observe"]).T).max()),
        "whole": float(np.abs(whole - expected).max()),
    }


def several_tapes() -> dict[str, Any]:
    """Two trajectories of one stepper, and a failure between them: each keeps its own gradients."""
    at = setting("FisherKpp", 3)
    stepper = CachedStepper(at["d"])
    alone = TapedTrajectory(stepper)
    run(at, alone)
    expected = alone.adjoint(at["weights"])
    first, other, failed = (TapedTrajectory(stepper) for _ in range(3))
    run(at, first)
    run(at, other, theta=at["theta"] * 1.7, force=at["force"] * -2.0)
    said = ""
    try:
        run(at, failed, force=at["force"] * 0.0 - 1e9)
    except WorkError as error:
        said = str(error)
    found, doubled = first.adjoint(at["weights"]), first.adjoint(2.0 * at["weights"])
    return {
        "same": max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)),
        "doubled": max(float(np.abs(2.0 * a - b).max()) for a, b in zip(found, doubled, strict=True)),
        "said": said,
        "recorded": failed._tape is not None,
    }


def main() -> None:
    answer: dict[str, Any] = {
        "fixed": convergence(Fixed),
        "flux": convergence(Flux),
        "taylor cached": taylor("FisherKpp", CachedStepper),
        "taylor linear": taylor("ReactionDiffusion", CachedStepper),
        "same FisherKpp": same_gradients("FisherKpp"),
        "same ReactionDiffusion": same_gradients("ReactionDiffusion"),
        "numpy": against_numpy(),
        "tapes": several_tapes(),
    }
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
