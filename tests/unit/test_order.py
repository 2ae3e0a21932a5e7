"""Tests run in an order that a seed decides, and that can be had again."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
FILES = [str(TESTS / "unit" / name) for name in ("test_dimension.py", "test_optional.py", "test_job_fields.py")]


def collected(seed: str, *options: str, files: list[str] = FILES) -> tuple[str, list[str]]:
    """The line that tells the seed, and the tests in their order."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *options]
    found = subprocess.run([*command, f"--order-seed={seed}", *files], capture_output=True, text=True, cwd=TESTS.parent)
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    told = next((line for line in lines if line.startswith("[order]")), "")
    return told, [line for line in lines if "::" in line]


def test_an_order_is_drawn_told_and_had_again() -> None:
    told, first = collected("random")
    seed = told.split()[2]
    assert collected(seed) == (told, first)
    plain, others = collected("")[1], collected("1")[1]
    assert len({*map(tuple, (first, others, plain))}) == 3
    assert sorted(first) == sorted(others) == sorted(plain)
    for tests in (first, others):
        files = [test.partition("::")[0] for test in tests]
        assert sum(a != b for a, b in itertools.pairwise(files)) == len({*files}) - 1, "files stay whole"
    part = collected(seed, files=FILES[:2])[1]
    assert part == [test for test in first if test in part], "a part is in the order of the whole"


def test_workers_share_the_order_that_was_drawn() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    found = subprocess.run(
        [*command, "--order-seed", "random", *FILES[:2]], capture_output=True, text=True, cwd=TESTS.parent
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("[order]") == 1
