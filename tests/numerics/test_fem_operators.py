"""Meshes, operators and interpolation of problems on the real FEniCS, on one rank and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest

from tests.support.fem_programs import answer_of

pytestmark = pytest.mark.slow
CASES = ["interval P1", "interval P2", "rectangle P1", "rectangle P2", "box P1"]
SIDES = {"interval": "left right", "rectangle": "bottom left right top", "box": "back bottom front left right top"}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("meshes")
    write_plate(folder / "plate.msh")
    write_bar(folder / "bar.msh")
    return answer_of("fem_operators_program.py", str(folder))


def write_plate(path: Path) -> None:
    """[0, 2] × [0, 1] as Gmsh writes it: three coordinates, named groups, and a point that only the geometry has."""
    points = [[0, 0, 0.5], [1, 0, 0.5], [2, 0, 0.5], [0, 1, 0.5], [1, 1, 0.5], [2, 1, 0.5], [5, 5, 0.5]]
    triangles = [[0, 1, 4], [0, 4, 3], [1, 2, 5], [1, 5, 4]]
    tags = [np.array([9]), np.array([1, 2, 3, 3]), np.array([4] * 4)]
    mesh = meshio.Mesh(
        np.array(points, dtype=float),
        [("vertex", np.array([[6]])), ("line", np.array([[0, 3], [2, 5], [0, 1], [1, 2]])), ("triangle", triangles)],
        cell_data={"gmsh:physical": tags, "gmsh:geometrical": [np.ones_like(tag) for tag in tags]},
        field_data={name: np.array([tag, dims]) for name, tag, dims in PLATE_GROUPS},
    )
    mesh.write(path, file_format="gmsh22", binary=False)
    flat = [("line", mesh.cells[1].data), ("triangle", mesh.cells[2].data)]
    medit = meshio.Mesh(mesh.points[:6, :2], flat, cell_data={"medit:ref": tags[1:]})
    medit.write(path.with_suffix(".mesh"), file_format="medit")


PLATE_GROUPS = [("inflow", 1, 1), ("outflow", 2, 1), ("wall", 3, 1), ("metal", 4, 2)]


def write_bar(path: Path) -> None:
    """[0, 3] with one named end, and a point beside it that has a name too."""
    points = np.array([[0.0, 1, 2], [0.4, 1, 2], [3.0, 1, 2], [9.0, 1, 2]])
    tags = [np.array([1, 2]), np.array([3, 3])]
    mesh = meshio.Mesh(
        points,
        [("vertex", np.array([[0], [3]])), ("line", np.array([[0, 1], [1, 2]]))],
        cell_data={"gmsh:physical": tags, "gmsh:geometrical": [np.ones_like(tag) for tag in tags]},
        field_data={"end": np.array([1, 0]), "beside": np.array([2, 0]), "steel": np.array([3, 1])},
    )
    mesh.write(path, file_format="gmsh22", binary=False)


@pytest.mark.parametrize("case", CASES)
def test_operators_know_volume_surface_and_the_energy_of_linear_functions(serial: dict[str, Any], case: str) -> None:
    found = serial[case]
    for name in ("volume", "energy", "surface"):
        assert found[name][0] == pytest.approx(found[name][1], rel=1e-10), name
    assert found["constants"] < 1e-10
    assert found["decay_is_minus_mass"] < 1e-14
    assert found["load_is_mass"] < 1e-14
    assert found["names"] == [["", "decay", "diffusion"], ["sensitivity"], [""]]


@pytest.mark.parametrize("case", CASES)
def test_a_named_part_goes_before_the_whole_boundary(serial: dict[str, Any], case: str) -> None:
    found = serial[case]
    assert found["fixed_on_the_left"]
    assert found["all_of_the_left"]
    assert found["fixed_values"] == [2.0]
    assert found["boundaries"] == sorted(["all", *SIDES[case.split()[0]].split()])


@pytest.mark.parametrize("case", CASES)
def test_linear_functions_are_interpolated_exactly_and_vertices_are_themselves(
    serial: dict[str, Any], case: str
) -> None:
    assert serial[case]["interpolation"] < 1e-12
    assert serial[case]["at_vertices"] == [[pytest.approx(1.0, abs=1e-12)]] * 3


@pytest.mark.parametrize("case", CASES)
def test_nodes_are_in_lexicographic_order_and_cells_no_larger_than_asked(serial: dict[str, Any], case: str) -> None:
    found = serial[case]
    assert found["lexicographic"]
    assert found["largest_cell"] <= {"interval": 0.05, "rectangle": 0.2, "box": 0.4}[case.split()[0]] + 1e-12
    assert found["num_cells"][0] == found["num_cells"][1]


def test_two_ranks_give_the_operators_of_one(serial: dict[str, Any]) -> None:
    parallel = answer_of("fem_operators_program.py", ranks=2)
    for case in CASES:
        one, two = serial[case], parallel[case]
        for name in ("digest", "volume", "energy", "surface", "num_cells", "fixed_values"):
            assert two[name] == pytest.approx(one[name], rel=1e-10), (case, name)
        for name in ("names", "fixed_on_the_left", "all_of_the_left", "lexicographic", "boundaries"):
            assert two[name] == one[name], (case, name)
        assert two["interpolation"] < 1e-12


def test_linear_elements_on_an_uneven_interval_have_the_textbook_matrices(serial: dict[str, Any]) -> None:
    assert serial["known"]["nodes"] == [0.0, 0.1, 0.35, 1.0]
    assert serial["known"]["mass"] < 1e-15
    assert serial["known"]["stiffness"] < 1e-14


def test_an_interval_has_all_its_vertices_and_no_cell_above_the_size(serial: dict[str, Any]) -> None:
    found = serial["subdivided"]
    assert found["missing"] == 0.0
    assert found["largest"] <= 0.05 + 1e-12
    assert found["num_nodes"] == 1 + 3 + 2 + 14 + 2


def test_linearity_is_found_in_the_form_itself(serial: dict[str, Any]) -> None:
    assert serial["linearity"]["advection_diffusion"] == [True, True, ""]
    assert serial["linearity"]["fisher_kpp"] == [False, False, "The form is not linear in the state y."]


def test_no_operator_is_lost_where_lengths_have_another_unit(serial: dict[str, Any]) -> None:
    names = [["", "decay", "diffusion"], ["sensitivity"], [""]]
    assert serial["units"] == {"ones": names, "ten-millionths": names}


def test_meshes_come_from_xml_xdmf_and_gmsh(serial: dict[str, Any]) -> None:
    files = serial["files"]
    box = ["all", "bottom", "left", "right", "top"]
    square = {"num_nodes": 25, "dims": 2, "volume": pytest.approx(1.0), "boundaries": box}
    assert files["square.xml"] == square
    assert files["square.xdmf"] == square
    assert files["marked.xml"] == files["marked.xdmf"] == {**square, "boundaries": ["7", *box]}
    assert files["inside.xml"] == {**square, "boundaries": ["5", *box]}
    plate = {"num_nodes": 6, "dims": 2, "volume": pytest.approx(2.0)}
    assert files["plate.msh"] == {**plate, "boundaries": sorted([*box, "inflow", "outflow", "wall"])}
    assert files["plate.mesh"] == {**plate, "boundaries": sorted([*box, "1", "2", "3"])}
    assert files["bar.msh"] == {
        "num_nodes": 3,
        "dims": 1,
        "volume": pytest.approx(3.0),
        "boundaries": ["all", "end", "left", "right"],
    }


def test_names_of_boundaries_in_files_carry_conditions(serial: dict[str, Any]) -> None:
    plate = serial["files"]["plate conditions"]
    assert plate["inflow"] == pytest.approx(3.0)
    assert plate["where"] == [0.0]
    assert plate["fixed"] == [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    for name in ("marked.xml", "marked.xdmf", "inside.xml"):
        assert serial["files"][f"{name} fixed"] == [[0.25 * i, 1.0] for i in range(5)]
    assert serial["files"]["plate.mesh fixed"] == [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    assert serial["files"]["bar.msh fixed"] == [[0.0]]
