"""Meshes, operators and interpolation of real problems, as one line of JSON. Argument: a folder to write meshes to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dolfin
import numpy as np
from mpi4py import MPI
from scipy.sparse import csr_array

from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec
from distlfm.solvers.fem.forms.discretise import Discretisation, discretise
from distlfm.solvers.fem.forms.evaluate import interpolation
from distlfm.solvers.fem.forms.operators import assemble_operators
from distlfm.solvers.fem.spec import Csr, pack_operators, unpack_operators

COMM = MPI.COMM_WORLD
EQUATION = EquationRef(module="distlfm.equations.reaction_diffusion", name="ReactionDiffusion")
DIRICHLET = BoundaryConfig(kind="dirichlet", value=2.0)


def problem(mesh: MeshConfig, degree: int = 1, **boundary: BoundaryConfig) -> Discretisation:
    return discretise(ProblemSpec(equation=EQUATION, mesh=mesh, boundary=boundary, degree=degree), COMM)


def matrix(found: Csr) -> Any:
    return csr_array((found.data, found.indices, found.indptr), shape=found.shape)


def in_dims(kind: str, dims: int, degree: int) -> dict[str, Any]:
    size = {1: 0.05, 2: 0.2, 3: 0.4}[dims]
    lower, upper = (0.0,) * dims, tuple(1.0 + 0.5 * i for i in range(dims))
    d = problem(
        MeshConfig(kind=kind, lower=lower, upper=upper, size=size),
        degree,
        left=DIRICHLET,
        all=BoundaryConfig(kind="robin", rate=0.5, value=3.0),
    )
    operators = unpack_operators(pack_operators(assemble_operators(d)))
    nodes = operators.nodes
    slope = np.arange(1.0, dims + 1.0)
    linear = 1.0 + nodes @ slope
    diffusion = matrix(operators.stiffness["diffusion"])
    points = np.random.default_rng(0).uniform(lower, upper, (40, dims))
    points = np.concatenate([points, nodes[[0, 3, -1]]])
    weights = matrix(interpolation(d, points))
    return {
        "volume": [float(matrix(operators.mass).sum()), float(np.prod(upper))],
        "energy": [float(linear @ (diffusion @ linear)), -float(slope @ slope * np.prod(upper))],
        "constants": float(np.abs(diffusion @ np.ones(len(nodes))).max()),
        "decay_is_minus_mass": float(abs(matrix(operators.stiffness["decay"]) + matrix(operators.mass)).max()),
        "load_is_mass": float(abs(matrix(operators.load["sensitivity"]) - matrix(operators.mass)).max()),
        "surface": [float(operators.source[""].sum()), 1.5 * _surface(np.array(upper))],
        "names": [sorted(operators.stiffness), sorted(operators.load), sorted(operators.source)],
        "fixed_on_the_left": bool((nodes[operators.fixed][:, 0] == 0).all() and len(operators.fixed) > 0),
        "all_of_the_left": len(operators.fixed) == int((nodes[:, 0] == 0).sum()),
        "fixed_values": sorted(set(operators.fixed_values.tolist())),
        "lexicographic": bool((np.lexsort(np.round(nodes, 9).T[::-1]) == np.arange(len(nodes))).all()),
        "interpolation": float(np.abs(weights @ linear - (1.0 + points @ slope)).max()),
        "at_vertices": [weights[[row]].data.tolist() for row in range(40, 43)],
        "largest_cell": float(_longest_side(operators.nodes, operators.cells)),
        "num_cells": [len(operators.cells), d.domain.num_cells],
        "boundaries": sorted(d.domain.boundaries),
        "digest": [float(np.abs(diffusion.data).sum()), float(diffusion.data @ np.cos(np.arange(diffusion.nnz)))],
    }


def _surface(sides: Any) -> float:
    """Of the sides other than the left one, which has a Dirichlet condition."""
    faces = [np.prod(sides) / side for side in sides]
    return float(2 * sum(faces) - faces[0])


def _longest_side(nodes: Any, cells: Any) -> float:
    corners = nodes[cells]
    return float(np.ptp(corners, axis=1).max())


def known_interval() -> dict[str, Any]:
    """P1 on an uneven interval: mass and stiffness as in textbooks."""
    vertices = (0.0, 0.1, 0.35, 1.0)
    d = problem(MeshConfig(vertices=vertices))
    operators = assemble_operators(d)
    mass, stiffness = np.zeros((4, 4)), np.zeros((4, 4))
    for i, h in enumerate(np.diff(vertices)):
        mass[i : i + 2, i : i + 2] += h / 6 * np.array([[2, 1], [1, 2]])
        stiffness[i : i + 2, i : i + 2] += 1 / h * np.array([[1, -1], [-1, 1]])
    return {
        "mass": float(np.abs(matrix(operators.mass).toarray() - mass).max()),
        "stiffness": float(np.abs(matrix(operators.stiffness["diffusion"]).toarray() + stiffness).max()),
        "nodes": operators.nodes.ravel().tolist(),
    }


def subdivided() -> dict[str, Any]:
    vertices = (0.13, 0.2, 0.9)
    d = problem(MeshConfig(lower=(0.0,), upper=(1.0,), vertices=vertices, size=0.05))
    nodes = d.nodes.ravel()
    return {
        "missing": float(max(np.abs(nodes - vertex).min() for vertex in (*vertices, 0.0, 1.0))),
        "largest": float(np.diff(nodes).max()),
        "num_nodes": len(nodes),
    }


def in_other_units() -> dict[str, Any]:
    """The names of the operators of one problem, with lengths of about one and of a ten-millionth."""

    def names(length: float) -> list[list[str]]:
        mesh = MeshConfig(lower=(0.0,), upper=(length,), size=0.05 * length)
        found = assemble_operators(problem(mesh, all=BoundaryConfig(kind="robin", rate=0.5, value=3.0)))
        return [sorted(found.stiffness), sorted(found.load), sorted(found.source)]

    return {"ones": names(1.0), "ten-millionths": names(1e-7)}


def from_files(folder: Path) -> dict[str, Any]:
    mesh = dolfin.UnitSquareMesh(COMM, 4, 4)
    dolfin.File(str(folder / "square.xml")) << mesh
    with dolfin.XDMFFile(COMM, str(folder / "square.xdmf")) as file:
        file.write(mesh)
    marks = dolfin.MeshFunction("size_t", mesh, 1, 0)
    dolfin.CompiledSubDomain("near(x[1], 1) && on_boundary").mark(marks, 7)
    dolfin.File(str(folder / "marked.xml")) << mesh
    dolfin.File(str(folder / "marked_facet_region.xml")) << marks
    for name, written in (("marked", mesh), ("marked_facet_region", marks)):
        with dolfin.XDMFFile(COMM, str(folder / f"{name}.xdmf")) as file:
            file.write(written)
    mesh.domains().init(2)
    for facet in np.flatnonzero(marks.array() == 7):
        mesh.domains().set_marker((int(facet), 5), 1)
    dolfin.File(str(folder / "inside.xml")) << mesh
    found = {}
    for name in FILES:
        d = problem(MeshConfig(kind="file", path=folder / name))
        operators = assemble_operators(d)
        found[name] = {
            "num_nodes": d.num_nodes,
            "dims": d.dims,
            "volume": float(matrix(operators.mass).sum()),
            "boundaries": sorted(d.domain.boundaries),
        }
    inflow = BoundaryConfig(kind="neumann", value=3.0)
    d = problem(MeshConfig(kind="file", path=folder / "plate.msh"), inflow=inflow, wall=DIRICHLET)
    operators = assemble_operators(d)
    fed = np.flatnonzero(operators.source[""])
    found["plate conditions"] = {
        "inflow": float(operators.source[""].sum()),
        "where": sorted(set(operators.nodes[fed][:, 0].tolist())),
        "fixed": sorted(map(tuple, operators.nodes[operators.fixed].tolist())),
    }
    for name, part in (("marked.xml", "7"), ("marked.xdmf", "7"), ("inside.xml", "5"), ("plate.mesh", "3")):
        d = problem(MeshConfig(kind="file", path=folder / name), **{part: DIRICHLET})
        found[f"{name} fixed"] = d.nodes[assemble_operators(d).fixed].tolist()
    d = problem(MeshConfig(kind="file", path=folder / "bar.msh"), end=DIRICHLET)
    found["bar.msh fixed"] = d.nodes[assemble_operators(d).fixed].tolist()
    return found


FILES = (
    *("square.xml", "square.xdmf", "marked.xml", "marked.xdmf", "inside.xml"),
    *("plate.msh", "plate.mesh", "bar.msh"),
)


def linearity() -> dict[str, Any]:
    def ask(module: str, name: str) -> list[Any]:
        ref = EquationRef(module=f"distlfm.equations.{module}", name=name)
        d = discretise(ProblemSpec(equation=ref, mesh=MeshConfig(lower=(0.0,), upper=(1.0,))), COMM)
        return [d.linear, d.affine, d.reason]

    return {
        "advection_diffusion": ask("advection_diffusion", "AdvectionDiffusion"),
        "fisher_kpp": ask("fisher_kpp", "FisherKpp"),
    }


def main() -> None:
    cases = [("interval", 1, 1), ("interval", 1, 2), ("rectangle", 2, 1), ("rectangle", 2, 2), ("box", 3, 1)]
    answer: dict[str, Any] = {f"{kind} P{degree}": in_dims(kind, dims, degree) for kind, dims, degree in cases}
    if COMM.size == 1:
        answer |= {"known": known_interval(), "subdivided": subdivided(), "linearity": linearity()}
        answer["units"] = in_other_units()
        answer["files"] = from_files(Path(sys.argv[1]))
    if COMM.rank == 0:
        sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
