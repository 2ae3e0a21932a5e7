"""Fields whose helper group dies, is closed, or has nobody to work for any more."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import meshio
import numpy as np
import pytest
import torch

from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec
from distlfm.errors import UsageError, WorkError
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.field.engine import TimeGrid, solve
from distlfm.solvers.field.meshed import Meshed, Solver, close_helper_groups, helper_group, meshed

pytestmark = pytest.mark.slow

SPEC = ProblemSpec(
    equation=EquationRef(module="distlfm.equations.reaction_diffusion", name="ReactionDiffusion"),
    mesh=MeshConfig(lower=(0.0,), upper=(1.0,), size=0.05),
    boundary={"all": BoundaryConfig(kind="dirichlet")},
)
GRID = TimeGrid(0.0, 0.1, 4)
PLACES = np.array([[0.31], [0.62]])


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_helper_groups()


def opened(solver: Solver) -> Meshed:
    return meshed(SPEC.model_dump_json(), solver, 1, "auto")


def solved(field: Meshed, force: torch.Tensor) -> torch.Tensor:
    """What is observed of a trajectory."""
    theta = torch.tensor([[1.0, 0.3, 0.05]], dtype=torch.float64)
    start = torch.zeros(1, 1, len(field.nodes), dtype=torch.float64)
    observe = torch.zeros(1, len(field.nodes), dtype=torch.float64)
    observe[0, 7] = 1.0
    return solve(field.engine, theta, start, force, GRID, observe)


@pytest.mark.parametrize("solver", ["petsc", "taped"])
def test_a_field_is_solved_again_after_its_group_has_died(solver: Solver) -> None:
    field = opened(solver)
    force = torch.ones(1, 1, GRID.steps + 1, len(field.nodes), dtype=torch.float64, requires_grad=True)
    first = solved(field, force)
    (gradient,) = torch.autograd.grad(first.sum(), force, retain_graph=True)
    os.kill(field.group.pids[0], signal.SIGKILL)
    with pytest.raises(WorkError, match=r"signal 9|forward again"):
        torch.autograd.grad(first.sum(), force, retain_graph=True)
    again = solved(field, force)
    # The new group counts its runs from one too: what it holds is not taken for what the old one did.
    with pytest.raises(WorkError, match="forward again"):
        torch.autograd.grad(first.sum(), force)
    torch.testing.assert_close(again, first, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), force)[0], gradient, rtol=1e-10, atol=1e-14)


def test_a_field_that_somebody_holds_comes_back_after_all_groups_were_closed() -> None:
    field = opened("dense")
    before = field.weights(PLACES)
    close_helper_groups()
    after = field.weights(PLACES + 0.01)
    assert after.shape == before.shape


@pytest.mark.parametrize("solver", ["petsc", "taped"])
def test_a_group_forgets_a_field_that_nobody_holds(solver: Solver) -> None:
    group = helper_group(1)
    meshed.cache_clear()
    gc.collect()
    others = group.holds  # errors that tests before this one have caught may hold fields of theirs
    field = opened(solver)
    force = torch.ones(1, 1, GRID.steps + 1, len(field.nodes), dtype=torch.float64)
    solved(field, force)
    keys = {"open": field.key}
    if solver == "petsc":
        keys["petsc"] = field.engine.solver._key  # type: ignore[attr-defined]
    assert group.holds == others + 1
    del field
    meshed.cache_clear()
    gc.collect()
    assert group.holds == others
    with pytest.raises(UsageError, match="holds no problem"):
        group.call("interpolate", {"key": keys["open"]}, {"points": PLACES})
    if solver == "petsc":
        with pytest.raises(UsageError, match="holds no problem"):
            group.call("petsc_adjoint", {"key": keys["petsc"], "run": 1})


def meshed_from(path: Path, solver: Solver) -> Meshed:
    """A field on a line, from a mesh file."""
    points = np.stack([np.linspace(0.0, 1.0, 21), np.zeros(21), np.zeros(21)], 1)
    cells = [("line", np.stack([np.arange(20), np.arange(1, 21)], 1))]
    meshio.Mesh(points, cells).write(path)
    spec = SPEC.model_copy(update={"mesh": MeshConfig(kind="file", path=path)})
    return meshed(spec.model_dump_json(), solver, 1, "auto")


def ended(group: Group) -> None:
    """Kill the group's process, and wait until it is seen to be gone."""
    os.kill(group.pids[0], signal.SIGKILL)
    with pytest.raises(WorkError, match="signal 9"):
        group.call("count", {"mesh": {"path": "none"}, "degree": 1})


@pytest.mark.parametrize("solver", ["petsc", "taped"])
def test_a_field_whose_mesh_file_is_gone_fails_alone_until_the_file_is_back(solver: Solver, tmp_path: Path) -> None:
    path, aside = tmp_path / "line.vtu", tmp_path / "aside.vtu"
    other, field = meshed_from(path, solver), opened(solver)
    force = torch.ones(1, 1, GRID.steps + 1, len(field.nodes), dtype=torch.float64)
    first, others = solved(field, force), solved(other, force)
    weights = other.weights(PLACES)
    path.rename(aside)
    ended(field.group)
    torch.testing.assert_close(solved(field, force), first, rtol=1e-12, atol=1e-14)
    with pytest.raises(UsageError, match=r"line\.vtu"):
        solved(other, force)
    with pytest.raises(UsageError, match=r"started anew and cannot open this problem again: .*line\.vtu") as told:
        other.weights(PLACES + 0.01)
    assert told.value.fix
    torch.testing.assert_close(solved(field, force), first, rtol=1e-12, atol=1e-14)
    aside.rename(path)
    torch.testing.assert_close(solved(other, force), others, rtol=1e-12, atol=1e-14)
    assert other.weights(PLACES + 0.01).shape == weights.shape


def test_a_field_that_nobody_holds_is_not_opened_again(tmp_path: Path) -> None:
    field = opened("taped")
    other = meshed_from(tmp_path / "line.vtu", "taped")
    group, key = field.group, other.key
    del other  # the cache still has it
    gc.collect()
    ended(group)
    assert field.group is group
    held = group.holds
    assert opened("taped") is field, "one that somebody holds is not opened twice"
    assert group.holds == held
    assert field.weights(PLACES).shape[0] == len(PLACES)
    with pytest.raises(UsageError, match="holds no problem"):
        group.call("interpolate", {"key": key}, {"points": PLACES})
