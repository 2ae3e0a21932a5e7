"""Tests run in an order that a seed decides, and that can be had again."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, seed: str, *options: str) -> str:
    """What pytest prints of the tests in a folder, with nothing but the plugin."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.order", "-p", "no:cacheprovider", *options]
    around = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    found = subprocess.run(
        [*command, "-c", "/dev/null", f"--order-seed={seed}"], capture_output=True, text=True, cwd=folder, env=around
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def collected(folder: Path, seed: str, *options: str) -> tuple[str, list[str]]:
    """The line that tells the seed, and the tests in their order."""
    lines = run(folder, seed, "--collect-only", *options).splitlines()
    told = next((line for line in lines if line.startswith("[order]")), "")
    return told, [line for line in lines if "::" in line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("".join(f"def test_{i}(): pass\n" for i in range(5)))
    return tmp_path


def test_an_order_is_drawn_told_and_had_again(folder: Path) -> None:
    told, first = collected(folder, "random")
    seed = told.split()[2]
    assert collected(folder, seed) == (told, first)
    plain, others = collected(folder, "")[1], collected(folder, "1")[1]
    assert len({*map(tuple, (first, others, plain))}) == 3
    assert sorted(first) == sorted(others) == sorted(plain)
    for tests in (first, others):
        files = [test.partition("::")[0] for test in tests]
        assert sum(a != b for a, b in itertools.pairwise(files)) == len({*files}) - 1, "files stay whole"
    part = collected(folder, seed, "test_a.py", "test_c.py")[1]
    assert part == [test for test in first if test in part], "a part is in the order of the whole"


def test_workers_share_the_order_that_was_drawn(folder: Path) -> None:
    assert run(folder, "random", "-p", "xdist.plugin", "-n", "2", "--dist", "loadfile").count("[order]") == 1
