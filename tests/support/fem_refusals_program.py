"""Problems that cannot be used, each with what is said about it, as one line of JSON. Argument: a folder for files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshio
import numpy as np
from mpi4py import MPI

from distlfm.equations.base import EquationRef, ProblemSpec
from distlfm.errors import UsageError
from distlfm.solvers.fem.forms.discretise import discretise
from distlfm.solvers.fem.forms.evaluate import interpolation
from distlfm.solvers.fem.forms.operators import petsc_operators
from distlfm.solvers.fem.group.service import VERBS

COMM = MPI.COMM_WORLD
XML = (
    '<?xml version="1.0"?><dolfin><mesh celltype="interval" dim="1">'
    '<vertices size="{num_vertices}">{vertices}</vertices>'
    '<cells size="{num_cells}">{cells}</cells></mesh></dolfin>'
)
LINE = {"kind": "interval", "lower": [0.0], "upper": [1.0]}
PLUGIN = """
from ufl import SpatialCoordinate, conditional, dx, grad, gt, inner, max_value
from distlfm.equations import Equation, positive, real

class Named(Equation):
    coefficients = {"decay": positive(1.0), "diffusion": positive(1.0)}

class NoForce(Named):
    def form(self, y, v, f, p):
        return -p["decay"] * y * v * dx - p["diffusion"] * inner(grad(y), grad(v)) * dx

class NoState(Named):
    def form(self, y, v, f, p):
        return p["decay"] * p["diffusion"] * f * v * dx

class NoTest(Named):
    def form(self, y, v, f, p):
        return p["decay"] * p["diffusion"] * f * y * dx

class TestSquared(Named):
    def form(self, y, v, f, p):
        return (f * v * v - p["decay"] * p["diffusion"] * y * v) * dx

class NoMeasure(Named):
    def form(self, y, v, f, p):
        return (f - p["decay"] * y) * v

class Misspelt(Named):
    def form(self, y, v, f, p):
        return (f - p["decay"] * y) * v * dx - p["difusion"] * inner(grad(y), grad(v)) * dx

class Unused(Named):
    def form(self, y, v, f, p):
        return (f - p["decay"] * y) * v * dx

class Broken(Named):
    def form(self, y, v, f, p):
        return 1 / 0

class Divides(Named):
    def form(self, y, v, f, p):
        return (f - y / p["decay"]) * v * dx - p["diffusion"] * inner(grad(y), grad(v)) * dx

class Multiplies(Named):
    def form(self, y, v, f, p):
        return (f * y - p["decay"] * y) * v * dx - p["diffusion"] * inner(grad(y), grad(v)) * dx

class Upwind(Named):
    def form(self, y, v, f, p):
        spread = p["diffusion"] + 0.01 * abs(p["decay"])
        return (f - p["decay"] * y.dx(0)) * v * dx - spread * inner(grad(y), grad(v)) * dx

class OneSided(Named):
    coefficients = {"decay": real(1.0, 1.0), "diffusion": positive(1.0)}
    def form(self, y, v, f, p):
        kept = max_value(p["decay"], 0) * y
        return (f - kept) * v * dx - p["diffusion"] * inner(grad(y), grad(v)) * dx

class Stepped(Named):
    def form(self, y, v, f, p):
        fast = conditional(gt(p["decay"], 50.0), 2.0, 1.0)
        return (f - fast * y) * v * dx - p["diffusion"] * inner(grad(y), grad(v)) * dx

class Divided(Named):
    def form(self, y, v, f, p):
        x = SpatialCoordinate(y.ufl_domain())[0]
        lost = p["decay"] * y / (2 + x) * conditional(gt(x, 0.5), x**2, abs(x))
        return (f - lost) * v * dx - inner(grad(p["diffusion"] * y), grad(v)) * dx

class Unmakeable(Named):
    def __init__(self):
        raise RuntimeError("no licence")
    form = NoForce.form

Number = 3
"""


def main() -> None:
    folder = Path(sys.argv[1])
    if COMM.rank == 0:
        write_files(folder)
    COMM.barrier()
    cases: dict[str, Callable[[], Any]] = {
        **{name: lambda name=name: opened(equation=plugin(folder, name)) for name in OWN},
        "plugin fails": lambda: opened(equation=EquationRef(module="bad", name="X", file=folder / "bad.py")),
        "plugin missing": lambda: opened(equation=EquationRef(module="nix", name="X", file=folder / "nix.py")),
        "bounds": lambda: opened({"kind": "rectangle", "lower": [0, 1], "upper": [1, 1]}),
        "bounds missing": lambda: opened({"kind": "interval"}),
        "axes": lambda: opened({"kind": "box", "lower": [0, 0], "upper": [1, 1]}),
        "vertex outside": lambda: opened({**LINE, "vertices": [0.5, 1.5]}),
        "too fine": lambda: opened({**LINE, "size": 1e-12}),
        "boundary": lambda: opened(LINE, boundary={"lefft": {"kind": "neumann"}}),
        "overlap": lambda: opened(
            {"kind": "file", "path": str(folder / "named.msh")},
            boundary={"wall": {"kind": "dirichlet"}, "bottom": {"kind": "neumann", "value": 1.0}},
        ),
        "outside": lambda: interpolation(opened(LINE), np.array([[0.2], [1.3], [7.0]])),
        "point shape": lambda: interpolation(opened(LINE), np.array([[0.2, 0.3]])),
        "no operators": lambda: petsc_operators(
            opened(LINE, equation=EquationRef(module="distlfm.equations.fisher_kpp", name="FisherKpp"))
        ),
        "not open": lambda: VERBS["assemble"]({}, {"key": "toy"}, {}),
        **{
            name: lambda name=name: opened({"kind": "file", "path": str(folder / name)})
            for name in (
                "nix.msh",
                "garbage.msh",
                "garbage.xml",
                "garbage.xdmf",
                "quads.msh",
                "empty.msh",
                "empty.xml",
                "dangling.xml",
                "flat.msh",
                "shared.msh",
                "twice.msh",
                "loose.msh",
                "merged.msh",
                "bent.msh",
                "pinched.msh",
                "hinged.msh",
            )
        },
    }
    if COMM.size > 1:
        cases = {name: cases[name] for name in ("garbage.msh", "shared.msh", "boundary", "outside", "NoForce")}
        cases["few cells"] = lambda: opened({**LINE, "size": 0.2})
    answer = {name: told(case) for name, case in cases.items()}
    answer["reasons"] = {
        name: discretise(ProblemSpec(equation=plugin(folder, name), mesh=LINE), COMM).reason
        for name in ("Divides", "Multiplies", "Upwind", "OneSided", "Stepped", "Divided")
    }
    if COMM.rank == 0:
        sys.stdout.write("\n" + json.dumps(answer) + "\n")


OWN = (
    "NoForce",
    "NoState",
    "NoTest",
    "TestSquared",
    "NoMeasure",
    "Misspelt",
    "Unused",
    "Broken",
    "Unmakeable",
    "Number",
    "Nix",
)


def plugin(folder: Path, name: str) -> EquationRef:
    return EquationRef(module="own_equations", name=name, file=folder / "own_equations.py")


def opened(mesh: Any = None, equation: EquationRef | None = None, boundary: Any = None) -> Any:
    equation = equation or EquationRef(module="distlfm.equations.reaction_diffusion", name="ReactionDiffusion")
    content = {"equation": equation, "mesh": mesh or LINE, "boundary": boundary or {}}
    return discretise(ProblemSpec.model_validate(content), COMM)


def told(case: Callable[[], Any]) -> str:
    try:
        case()
    except UsageError as error:
        return str(error)
    return "nothing was said"


def write_files(folder: Path) -> None:
    (folder / "own_equations.py").write_text(PLUGIN)
    (folder / "bad.py").write_text("import nothing_of_that_name\n")
    for kind in ("msh", "xml", "xdmf"):
        (folder / f"garbage.{kind}").write_text("this is no mesh\n")
    (folder / "empty.xml").write_text(XML.format(vertices="", num_vertices=0, cells="", num_cells=0))
    (folder / "dangling.xml").write_text(
        XML.format(
            vertices='<vertex index="0" x="0"/><vertex index="1" x="1"/>',
            num_vertices=2,
            cells='<interval index="0" v0="0" v1="9"/>',
            num_cells=1,
        )
    )
    corners = [[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 2]]
    write(folder / "quads.msh", corners[:4], quad=[[0, 1, 3, 2]])
    write(folder / "empty.msh", corners[:1], vertex=[[0]])
    write(folder / "flat.msh", [[0, 0], [1, 0], [2, 0], [0, 1]], triangle=[[0, 1, 2], [0, 1, 3]])
    write(folder / "shared.msh", corners, triangle=[[0, 1, 2], [0, 1, 3], [0, 1, 4]])
    write(folder / "twice.msh", corners[:3], triangle=[[0, 1, 2], [2, 0, 1]])
    write(folder / "loose.msh", corners[:4], triangle=[[0, 1, 2]])
    write(folder / "merged.msh", [*corners[:3], [1, 0], [1, 1], [0, 1]], triangle=[[0, 1, 2], [3, 4, 5]])
    write(folder / "pinched.msh", [*corners[:3], [-1, 0], [0, -1]], triangle=[[0, 1, 2], [0, 3, 4]])
    meshio.Mesh(
        np.array([[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0], [-1, 0, 0], [-1, -1, 0.0]]),
        [("tetra", [[0, 1, 2, 3], [0, 1, 4, 5]])],
    ).write(folder / "hinged.msh", file_format="gmsh22", binary=False)
    meshio.Mesh(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 1.0]]), [("triangle", [[0, 1, 2], [1, 2, 3]])]).write(
        folder / "bent.msh", file_format="gmsh22", binary=False
    )
    tags = [np.array([1]), np.array([2])]
    named = meshio.Mesh(
        np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0.0]]),
        [("line", np.array([[0, 1]])), ("triangle", np.array([[0, 1, 2]]))],
        cell_data={"gmsh:physical": tags, "gmsh:geometrical": tags},
        field_data={"wall": np.array([1, 1])},
    )
    named.write(folder / "named.msh", file_format="gmsh22", binary=False)


def write(path: Path, points: Any, **cells: Any) -> None:
    flat = np.zeros((len(points), 3))
    flat[:, :2] = points
    mesh = meshio.Mesh(flat, [(kind, np.array(block)) for kind, block in cells.items()])
    mesh.write(path, file_format="gmsh22", binary=False)


if __name__ == "__main__":
    main()
