"""How a field's mesh is opened: divided or whole, from a file too, by which linear solver, and for any form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
import torch

from distlfm.config import build
from distlfm.equations.base import EquationRef, MeshConfig, ProblemSpec
from distlfm.fleets.fit_job import model_with
from distlfm.inference.field.settings import Extent, FieldOptions, num_ranks, open_field, settle_extent
from distlfm.inference.model import Model
from distlfm.runs.settings import FitConfig
from distlfm.solvers.fem.group.client import LinearSolverConfig
from distlfm.solvers.field.meshed import close_helper_groups, meshed
from distlfm.solvers.field.remote import PetscEngine
from distlfm.solvers.field.tangent import form_at

pytestmark = pytest.mark.slow

SIDE = 6
EXTENT = Extent(np.linspace(0.0, 1.0, 5), np.array([[0.1, 0.2], [0.8, 0.9]]))
PENALISED = """
from distlfm.equations import Equation, positive

class Penalised(Equation):
    coefficients = {"decay": positive(1.0), "penalty": positive(0.1)}

    def form(self, y, v, f, p):
        from ufl import FacetNormal, dS, dx, grad, jump

        n = FacetNormal(y.ufl_domain())
        return (f - p["decay"] * y) * v * dx - p["penalty"] * jump(grad(y), n) * jump(grad(v), n) * dS
"""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_helper_groups()


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unit square with SIDE × SIDE vertices, as a file of Gmsh."""
    axis = np.linspace(0.0, 1.0, SIDE)
    points = np.stack([*(part.ravel() for part in np.meshgrid(axis, axis, indexing="ij")), np.zeros(SIDE**2)], 1)
    corner = np.arange(SIDE * (SIDE - 1)).reshape(SIDE - 1, SIDE)[:, :-1].ravel()
    cells = np.concatenate([corner[:, None] + [0, 1, SIDE + 1], corner[:, None] + [0, SIDE, SIDE + 1]])
    path = tmp_path_factory.mktemp("meshes") / "square.msh"
    meshio.Mesh(points, [("triangle", cells)]).write(path, file_format="gmsh22", binary=False)
    return path


def model(path: Path, kind: str = "reaction_diffusion", **more: Any) -> Model:
    mechanism = {"kind": kind, "mesh": {"kind": "file", "path": str(path)}, "dims": 2, **more}
    return model_with(build(FitConfig, {"mechanism": mechanism}), ["output"])


def test_a_mesh_from_a_file_is_divided_above_the_limit(square: Path) -> None:
    for limit, ranks in ((SIDE**2, 1), (SIDE**2 - 1, 2)):
        chosen = model(square, mesh_limit=limit)
        settings = settle_extent(chosen, EXTENT, FieldOptions())
        assert settings.file_nodes == SIDE**2
        assert num_ranks(chosen, settings) == ranks
        opened = open_field(chosen, settings)
        assert (opened.ranks, len(opened.nodes)) == (ranks, SIDE**2)
    quadratic = settle_extent(model(square, degree=2), EXTENT, FieldOptions())
    assert quadratic.file_nodes == (2 * SIDE - 1) ** 2


def test_an_equation_that_is_not_divided_reserves_one_rank(square: Path) -> None:
    chosen = model(square, "fisher_kpp", mesh_limit=SIDE**2 - 1)
    settings = settle_extent(chosen, EXTENT, FieldOptions())
    assert num_ranks(chosen, settings) == open_field(chosen, settings).ranks == 1


def test_the_tolerance_of_the_linear_solver_is_that_of_the_config(square: Path) -> None:
    chosen = model(square, solver="petsc", linear_solver="cg_amg", linear_tolerance=1e-6)
    engine = open_field(chosen, settle_extent(chosen, EXTENT, FieldOptions())).engine
    assert isinstance(engine, PetscEngine)
    assert engine.solver.linear == LinearSolverConfig(kind="cg_amg", tolerance=1e-6)


def test_a_form_over_interior_facets_is_linearised(tmp_path: Path) -> None:
    (tmp_path / "penalised.py").write_text(PENALISED)
    spec = ProblemSpec(
        equation=EquationRef(module="penalised", name="Penalised", file=tmp_path / "penalised.py"),
        mesh=MeshConfig(lower=(0.0,), upper=(1.0,), size=0.1),
    )
    field = meshed(spec.model_dump_json(), "taped", 1, "auto")
    states, force = np.random.default_rng(0).normal(size=(2, 3, len(field.nodes)))
    form = form_at(field, torch.tensor([0.7, 0.2], dtype=torch.float64), states, force)
    for n in range(3):  # the form is linear, so that its derivatives tell all of it
        np.testing.assert_allclose(
            form.by_state[n] @ states[n] + form.by_force[n] @ force[n], form.value[n], atol=1e-12
        )
    np.testing.assert_allclose(form.by_force[0].toarray(), form.mass.toarray(), atol=1e-15)
