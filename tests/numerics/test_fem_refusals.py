"""What cannot be used is refused with a sentence, on all ranks at once, and nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fem_programs import answer_of

pytestmark = pytest.mark.slow

SENTENCES = {
    "NoForce": "The form of NoForce does not use the force f.",
    "NoState": "The form of NoState does not use the state y.",
    "NoTest": "The form of NoTest does not use the test function v.",
    "TestSquared": "The form of TestSquared is not linear in the test function v.",
    "NoMeasure": "The form of NoMeasure is not a UFL form but Product.",
    "Misspelt": "The form uses the coefficient 'difusion', which it does not name. Did you mean 'diffusion'?",
    "Unused": "The form of Unused does not use its coefficient 'diffusion'.",
    "Broken": "The form of Broken cannot be built: ZeroDivisionError: division by zero.",
    "Unmakeable": "cannot be used: RuntimeError: no licence.",
    "Number": "Number of own_equations is not an Equation.",
    "Nix": "own_equations has no class Nix.",
    "plugin fails": "cannot be used: ModuleNotFoundError: No module named 'nothing_of_that_name'.",
    "plugin missing": "There is no plugin file",
    "bounds": "mesh.lower [0.0, 1.0] is not below mesh.upper [1.0, 1.0].",
    "bounds missing": "mesh.lower has 0 numbers, and the mesh is an interval.",
    "axes": "mesh.lower has 2 numbers, and the mesh is a box.",
    "vertex outside": "The vertex 1.5 is outside the domain, 0 to 1.",
    "too fine": "A mesh of size 1e-12 would have 1e+12 cells.",
    "boundary": "The mesh has no boundary named 'lefft'. Did you mean 'left'?",
    "overlap": "The boundaries 'wall' and 'bottom' overlap, and both have a condition.",
    "outside": "Point 1 at (1.3) is outside the domain, which lies in [0, 1]; 2 of 3 are.",
    "point shape": "Points have the shape (1, 2), not [O, 1].",
    "no operators": "FisherKpp has no operators to assemble. The form is not linear in the state y.",
    "not open": "The helper group holds no problem 'toy'.",
    "nix.msh": "There is no mesh file",
    "garbage.msh": "garbage.msh cannot be read: meshio does not understand it.",
    "garbage.xml": "garbage.xml cannot be read: Not a DOLFIN XML file.",
    "garbage.xdmf": "garbage.xdmf cannot be read:",
    "dangling.xml": "dangling.xml cannot be read: Vertex index (9) out of range",
    "quads.msh": "quads.msh is made of quad cells.",
    "empty.msh": "empty.msh is empty: it has no cells.",
    "empty.xml": "empty.xml is empty: it has no cells.",
    "flat.msh": "flat.msh has degenerate cells: 1 without volume, the first at (1, 0).",
    "shared.msh": "shared.msh is not a manifold: the facet at (0.5, 0) belongs to 3 cells.",
    "twice.msh": "twice.msh is not a manifold: it has a cell twice.",
    "loose.msh": "loose.msh is not a manifold: 1 vertices belong to no cell, the first at (1, 1).",
    "merged.msh": "merged.msh has two vertices at",
    "pinched.msh": "pinched.msh is not a manifold: at (0, 0) cells share a corner and no facet joins them.",
    "hinged.msh": "hinged.msh is not a manifold: at (0, 0, 0) cells share a corner and no facet joins them.",
    "bent.msh": "bend out of the plane of its first axes.",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answer_of("fem_refusals_program.py", str(tmp_path_factory.mktemp("refused")))


def test_every_refusal_of_the_program_is_expected(told: dict[str, Any]) -> None:
    assert sorted(told) == sorted([*SENTENCES, "reasons"])


@pytest.mark.parametrize("case", SENTENCES)
def test_what_cannot_be_used_is_refused_with_a_sentence(told: dict[str, Any], case: str) -> None:
    assert SENTENCES[case] in told[case]


def test_a_form_that_is_not_affine_says_why(told: dict[str, Any]) -> None:
    assert told["reasons"] == {
        "Divides": "The form is not affine in its coefficients.",
        "Multiplies": "The form multiplies the state y by the force f.",
        "Upwind": "The form is not affine in its coefficients.",
        "OneSided": "The form is not affine in its coefficients.",
        "Stepped": "The form is not affine in its coefficients.",
        "Divided": "",  # any function of the place, and coefficients inside of derivatives, do no harm
    }


def test_all_ranks_refuse_together(tmp_path_factory: pytest.TempPathFactory) -> None:
    told = answer_of("fem_refusals_program.py", str(tmp_path_factory.mktemp("refused")), ranks=3)
    assert told["few cells"].startswith("The mesh is too small for 3 ranks: it has 5 cells")
    for case in ("garbage.msh", "shared.msh", "boundary", "outside", "NoForce"):
        assert SENTENCES[case] in told[case]
