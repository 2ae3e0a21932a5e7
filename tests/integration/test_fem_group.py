"""Helper groups under the real mpirun, and the partitioned path against dense stepping in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec
from distlfm.errors import MissingExtra, UsageError
from distlfm.solvers.fem.group.client import LinearSolverConfig, PartitionedSolver
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.fem.spec import Csr, Operators, unpack_csr, unpack_operators
from tests.support.importing import import_environment

pytestmark = pytest.mark.slow

ENVIRONMENT = import_environment()
SERVICE = "tests.support.fem_test_service"
DT, NUM_STEPS, NUM_RIGHT, NUM_FORCED = 0.05, 7, 3, 5
RATES = {"sensitivity": 0.8, "decay": 0.3, "diffusion": 0.05, "velocity_0": 0.4, "velocity_1": -0.2}


def problem(equation: str, size: float = 0.125) -> ProblemSpec:
    """Held at 0.7 on one side, a flux that depends on the state on another."""
    name = "".join(word.capitalize() for word in equation.split("_"))
    return ProblemSpec(
        equation=EquationRef(module=f"distlfm.equations.{equation}", name=name),
        mesh=MeshConfig(kind="rectangle", lower=(0, 0), upper=(1, 1), size=size),
        boundary={
            "left": BoundaryConfig(kind="dirichlet", value=0.7),
            "top": BoundaryConfig(kind="robin", value=0.3, rate=0.5),
        },
    )


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[int, Group]]:
    started = {ranks: Group.start(ranks, service=SERVICE, environment=ENVIRONMENT) for ranks in (1, 2, 3)}
    yield started
    for group in started.values():
        group.close()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_answers_with_the_arrays_it_was_sent(groups: dict[int, Group], ranks: int) -> None:
    arrays = [{"x": np.arange(4.0) + rank, "mask": np.array([True, False])} for rank in range(ranks)]
    replies = groups[ranks].call("ping", {"a": [1, None]}, arrays)
    assert [reply.rank for reply in replies] == list(range(ranks))
    for reply, sent in zip(replies, arrays, strict=True):
        assert reply.header == {"a": [1, None]}
        for name, array in sent.items():
            np.testing.assert_array_equal(reply.arrays[name], array)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_are_one_mpi_world_and_keep_a_session(groups: dict[int, Group], ranks: int) -> None:
    first = [reply.header for reply in groups[ranks].call("where")]
    second = [reply.header for reply in groups[ranks].call("where")]
    assert [(one["rank"], one["size"]) for one in first] == [(rank, ranks) for rank in range(ranks)]
    assert [one["asked"] - other["asked"] for one, other in zip(second, first, strict=True)] == [1] * ranks


def test_idle_ranks_use_no_processor(groups: dict[int, Group]) -> None:
    def ticks() -> list[int]:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in groups[3].pids]
        return [int(stat[11]) + int(stat[12]) for stat in stats]

    groups[3].call("where")  # MPI is up: this is when waiting ranks would spin
    before = ticks()
    time.sleep(1.0)
    assert max(after - start for after, start in zip(ticks(), before, strict=True)) <= 2  # hundredths of a second


def test_secret_is_in_no_argument_no_environment_and_no_file(groups: dict[int, Group]) -> None:
    for ranks in (1, 2):
        running = groups[ranks]._running
        assert running is not None
        assert not (running.job.directory / "secret").exists()
        assert (running.job.directory.stat().st_mode & 0o777) == 0o700
        for pid in (running.job.process.pid, *groups[ranks].pids):
            words = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert not [word for word in words.replace(b"=", b"\0").split(b"\0") if _is_secret(word)]


def _is_secret(word: bytes) -> bool:
    return len(word) == 64 and all(letter in b"0123456789abcdef" for letter in word)


def test_group_over_tcp_answers() -> None:
    with Group.start(2, transport="tcp", service=SERVICE, environment=ENVIRONMENT) as group:
        array = np.random.default_rng(0).normal(size=300_000)
        for reply in group.call("ping", arrays={"x": array}):
            np.testing.assert_array_equal(reply.arrays["x"], array)
        start = time.monotonic()
        for _ in range(20):
            group.call("ping")
        assert time.monotonic() - start < 1.0  # without TCP_NODELAY each would wait 40 ms


def test_requests_to_be_remembered_are_asked_again_after_a_restart() -> None:
    with Group.start(1, service=SERVICE, environment=ENVIRONMENT) as group:
        for what in ("a", "b", "c"):
            group.call("keep", {"what": what, "key": what}, remember=what != "b")
        group.forget("c")
        group.restart()
        assert group.call("kept")[0].header == {"kept": ["a"]}


def test_closed_group_says_so() -> None:
    group = Group.start(1, service=SERVICE, environment=ENVIRONMENT)
    group.close()
    assert not group.alive
    with pytest.raises(RuntimeError, match="has ended"):
        group.call("ping")


def test_missing_mpirun_names_the_install_line(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match="apt-get install"):
        Group.start(2, environment={**os.environ, "PATH": str(tmp_path)})


@pytest.mark.parametrize("missing", ["mpi4py", "dolfin"])
def test_a_machine_without_fenics_is_told_the_install_line(tmp_path: Path, missing: str) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module', name={missing!r})\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with Group.start(1, environment={**os.environ, "PYTHONPATH": path}) as group:
        with pytest.raises(MissingExtra, match=rf"{missing} is not installed.*apt-get install python3-dolfin"):
            group.call("open", {"key": "a", "spec": problem("reaction_diffusion").model_dump(mode="json")})
        assert group.alive


def test_srun_outside_a_job_is_refused() -> None:
    outside = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    with pytest.raises(UsageError, match="inside a Slurm job"):
        Group.start(2, "srun", environment=outside)


def test_group_without_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="0 ranks"):
        Group.start(0)


class Case:
    """A problem with inputs, and its exact answers by dense stepping and torch's derivatives."""

    def __init__(self, group: Group, equation: str, driven: bool) -> None:
        self.spec = problem(equation)
        random = np.random.default_rng(3)
        points = random.uniform(0.05, 0.95, (6, 2))
        arrays = group.call("operators", {"spec": self.spec.model_dump(mode="json")}, {"points": points})[0].arrays
        operators, self.observe = unpack_operators(arrays), unpack_csr("observe", arrays)
        num_nodes = len(operators.nodes)
        names = [name for name in RATES if name in {*operators.stiffness, *operators.load}]
        self.theta = {name: RATES[name] for name in names}
        self.driven = driven
        self.initial = random.normal(size=(NUM_RIGHT, num_nodes))
        self.force = random.normal(size=(NUM_RIGHT, NUM_FORCED, num_nodes))
        self.weights = random.normal(size=(NUM_RIGHT, NUM_STEPS + 1, len(points)))
        theta, initial, force = (
            torch.tensor(value, dtype=torch.float64, requires_grad=True)
            for value in (list(self.theta.values()), self.initial, self.force)
        )
        observed = dense_steps(operators, names, theta, initial, force, driven) @ dense(self.observe).T
        (observed * torch.as_tensor(self.weights)).sum().backward()
        self.answers = [observed.detach().numpy()]
        for leaf in (theta, initial, force):
            assert leaf.grad is not None
            self.answers.append(leaf.grad.numpy())

    def agree(self, solver: PartitionedSolver, tolerance: float) -> None:
        observed, run = solver.forward(
            self.theta, self.initial, self.force, DT, NUM_STEPS, self.observe, driven=self.driven
        )
        found = solver.adjoint(run, self.weights)
        solver.drop(run)
        theta = np.array([found.theta[name] for name in self.theta])
        for mine, exact in zip((observed, theta, found.initial, found.force), self.answers, strict=True):
            np.testing.assert_allclose(mine, exact, atol=tolerance * np.abs(exact).max(), rtol=0)


def dense(matrix: Csr) -> torch.Tensor:
    values = torch.zeros(matrix.shape, dtype=torch.float64)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    values[torch.as_tensor(rows), torch.as_tensor(matrix.indices)] = torch.as_tensor(matrix.data)
    return values


def dense_steps(
    operators: Operators,
    names: list[str],
    theta: torch.Tensor,
    initial: torch.Tensor,
    force: torch.Tensor,
    driven: bool,
) -> torch.Tensor:
    """All states [S, N + 1, J] of Crank–Nicolson, by solves of the free nodes' rows."""

    def total(parts: Mapping[str, Any], make: Any, zero: torch.Tensor) -> torch.Tensor:
        values = {"": torch.ones((), dtype=torch.float64), **dict(zip(names, theta, strict=True))}
        return sum((values[name] * make(part) for name, part in parts.items()), zero)

    mass = dense(operators.mass)
    stiffness = total(operators.stiffness, dense, torch.zeros_like(mass))
    load = total(operators.load, dense, torch.zeros_like(mass))
    source = total(operators.source, torch.as_tensor, torch.zeros(len(mass), dtype=torch.float64))
    held = torch.as_tensor(operators.fixed_values)
    if not driven:
        source, held = torch.zeros_like(source), torch.zeros_like(held)
    free = torch.ones(len(mass), dtype=torch.bool)
    free[torch.as_tensor(operators.fixed)] = False
    full = torch.zeros(len(mass), dtype=torch.float64)
    full[torch.as_tensor(operators.fixed)] = held
    left, right = mass - DT / 2 * stiffness, mass + DT / 2 * stiffness
    padded = torch.nn.functional.pad(force, (0, 0, 0, NUM_STEPS + 1 - NUM_FORCED))
    state = torch.where(free, initial, full)
    states = [state]
    for step in range(NUM_STEPS):
        forced = (padded[:, step] + padded[:, step + 1]) @ load.T
        known = state @ right.T + DT / 2 * forced + DT * source - left @ full
        state = full.expand_as(state).clone()
        state[:, free] = torch.linalg.solve(left[free][:, free], known[:, free].T).T
        states.append(state)
    return torch.stack(states, dim=1)


@pytest.fixture(scope="module", params=["reaction_diffusion", "advection_diffusion"])
def equation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def case(groups: dict[int, Group], equation: str) -> Case:
    return Case(groups[1], equation, driven=True)


@pytest.mark.parametrize(
    ("ranks", "kind", "tolerance"),
    [
        (1, "petsc_lu", 1e-10),
        (1, "mumps", 1e-10),
        (2, "mumps", 1e-10),
        (3, "mumps", 1e-10),
        (1, "cg_amg", 1e-7),
        (2, "cg_amg", 1e-7),
    ],
)
def test_partitioned_solve_and_gradients_are_those_of_dense_stepping(
    groups: dict[int, Group], case: Case, ranks: int, kind: Any, tolerance: float
) -> None:
    solver = PartitionedSolver(groups[ranks], case.spec, LinearSolverConfig(kind=kind, tolerance=1e-12))
    case.agree(solver, tolerance)
    solver.close()


def test_part_without_sources_is_that_of_dense_stepping(groups: dict[int, Group]) -> None:
    case = Case(groups[1], "reaction_diffusion", driven=False)
    case.agree(PartitionedSolver(groups[2], case.spec), 1e-10)


def test_another_value_of_the_coefficients_is_not_solved_with_the_old_factor(groups: dict[int, Group]) -> None:
    case = Case(groups[1], "reaction_diffusion", driven=True)
    solver = PartitionedSolver(groups[2], case.spec)
    arguments = case.initial, case.force, DT, NUM_STEPS, case.observe
    for decay in (3.0, 0.3, 5.0, 7.0):
        solver.drop(solver.forward({**case.theta, "decay": decay}, *arguments)[1])
    case.agree(solver, 1e-10)


def test_problem_is_put_on_a_restarted_group_again() -> None:
    with Group.start(2, service=SERVICE, environment=ENVIRONMENT) as group:
        case = Case(group, "reaction_diffusion", driven=True)
        solver = PartitionedSolver(group, case.spec)
        case.agree(solver, 1e-10)
        _, run = solver.forward(case.theta, None, case.force, DT, NUM_STEPS, case.observe)
        group.restart()
        with pytest.raises(RuntimeError, match="started anew"):
            solver.adjoint(run, case.weights)
        case.agree(solver, 1e-10)


def test_wrong_arguments_of_a_solve_are_told_and_the_group_goes_on(groups: dict[int, Group]) -> None:
    solver = PartitionedSolver(groups[2], problem("reaction_diffusion"), LinearSolverConfig(kind="petsc_lu"))
    num_nodes = solver.num_nodes
    theta = {name: RATES[name] for name in solver.names}
    force, observe = np.zeros((1, 2, num_nodes)), torch.eye(num_nodes).numpy()
    with pytest.raises(UsageError, match="petsc_lu works on one rank"):
        solver.forward(theta, None, force, DT, 2, observe)
    with pytest.raises(UsageError, match="Give a finite number for each of"):
        solver.forward({**theta, "decay": np.nan}, None, force, DT, 2, observe)
    with pytest.raises(UsageError, match="The force has the shape"):
        solver.forward(theta, None, force[:, :, 1:], DT, 2, observe)
    with pytest.raises(UsageError, match="cannot be made"):
        solver.forward(theta, None, force, -DT, 2, observe)
    assert len(groups[2].call("where")) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"boundary": {"lft": {"kind": "dirichlet"}}}, "no boundary named 'lft'"),
        ({"mesh": {"kind": "rectangle", "lower": (0, 0), "upper": (-1, 1), "size": 0.1}}, "."),
        ({"mesh": {"kind": "rectangle", "lower": (0, 0), "upper": (1, 1), "size": 1.0}}, "rank"),
    ],
    ids=["unknown boundary", "negative mesh", "mesh too small for the ranks"],
)
def test_problem_that_cannot_be_posed_is_a_sentence_and_the_group_goes_on(
    groups: dict[int, Group], change: dict[str, Any], sentence: str
) -> None:
    spec = ProblemSpec.model_validate({**problem("reaction_diffusion").model_dump(), **change})
    with pytest.raises(UsageError, match=sentence):
        PartitionedSolver(groups[3], spec)
    assert [reply.header["rank"] for reply in groups[3].call("where")] == [0, 1, 2]
