"""The page of the architecture is what the repository is."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from benchmarks.house import HOPS, SINCE, traced
from tests.support.importing import ROOT


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_architecture", ROOT / "docs" / "make_architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rooms_layers_and_roads_are_up_to_date(program: ModuleType) -> None:
    page = program.PAGE.read_text(encoding="utf-8")
    assert page == program.written(page), "run: python docs/make_architecture.py"


def test_a_page_that_names_a_file_that_is_gone_is_refused(program: ModuleType) -> None:
    page = program.PAGE.read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="distlfm/pipeline/fit"):
        program.written(f"{page}\nSee `distlfm/pipeline/fit.py`.\n")


@pytest.fixture(scope="module")
def passed() -> dict[str, list[str]]:
    return traced()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_stop_of_a_road_is_passed(program: ModuleType, passed: dict[str, list[str]]) -> None:
    assert set(program.ROADS) == set(passed)
    assert {road: [path for path in stops if path not in passed[road]] for road, stops in program.ROADS.items()} == {
        road: [] for road in passed
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("road", HOPS)
def test_a_road_stays_within_its_number_of_modules(road: str, passed: dict[str, list[str]]) -> None:
    """Without the modules of capabilities that came after version 0.1."""
    counted = set(passed[road]) - SINCE.keys()
    assert len(counted) <= HOPS[road], "\n".join(sorted(counted))
