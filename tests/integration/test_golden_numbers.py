"""The verbs give the numbers that were recorded; see `tests/support/golden.py` for how to record them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import golden


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scratch of all cases: an operator is trained once, and asked by several."""
    return tmp_path_factory.mktemp("golden")


def test_every_case_has_numbers_and_all_of_them_are_small() -> None:
    cases, about = golden.read(golden.RECORDED)
    assert list(cases) == list(golden.CASES)
    assert all(told["version"] and told["reason"] for told in about.values())
    assert golden.RECORDED.stat().st_size <= 200_000


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.CASES)
def test_numbers_are_those_recorded(name: str, folder: Path) -> None:
    """To what another processor may change; `python -m tests.support.golden compare --exact` knows no tolerance."""
    known, _ = golden.read(golden.RECORDED)
    worst, where = golden.compared(golden.numbers_of(name, folder), known[name])
    allowed = golden.CASES[name]
    assert worst <= allowed.relative, f"{where} differs by {worst:.1e}; {allowed.relative:g} because {allowed.why}"
