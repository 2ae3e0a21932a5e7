"""Fields under Ray: small meshes in plain workers, larger ones divided among MPI ranks whose CPUs are reserved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.cluster.machine import usable_cpus
from distlfm.config import build
from distlfm.data import write_npz
from distlfm.inference.field.settings import PARTITIONED
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.store import Store
from tests.support.fleet_runs import all_gone, descendants, driving, numbers, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FIELDS, BATCH, NODES = 3, 1, 21
MODEL: dict[str, Any] = {
    "mechanism": {
        "kind": "reaction_diffusion",
        "mesh": {"kind": "interval", "lower": [0.0], "upper": [1.0], "size": 1 / (NODES - 1)},
        "boundary": {"all": {"kind": "dirichlet"}},
        "fixed": {"sensitivity": 1.0, "decay": 0.5},
        "priors": {"diffusion": {"kind": "lognormal", "median": 0.02, "spread": 0.5}},
    },
    "force": {"priors": {"lengthscale": {"kind": "lognormal", "median": 0.5, "spread": 0.2}}},
    "likelihood": {"prior": {"kind": "lognormal", "median": 0.02, "spread": 0.3}},
}
QUICK = {
    "optimiser": {"rounds": 0, "iterations": 3},
    "posterior": {"method": "laplace", "draws": 4},
    "field": {"refinements": 0, "num_times": 3, "num_places": 3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three fields, and a config on each side of the mesh limit."""
    folder = tmp_path_factory.mktemp("fields")
    content = {**MODEL, "instances": FIELDS, "stop": 1.0, "points": 6, "places": 6, "seed": 1}
    write_npz(folder / "data.npz", simulate_from(build(SimulateConfig, content)))
    for side, limit in (("below", NODES), ("above", NODES - 1)):
        mechanism = {**MODEL["mechanism"], "mesh_limit": limit}
        run = {"batch": BATCH, "keep": "none"}
        config = {**MODEL, "mechanism": mechanism, "inference": QUICK, "run": run}
        (folder / f"{side}.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder


def command(folder: Path, side: str, out: Path, *more: str) -> list[str]:
    data = ["--data", str(folder / "data.npz"), "--out", str(out)]
    return [sys.executable, "-m", "distlfm", "fit", str(folder / f"{side}.yaml"), *data, *more]


def ranks_below(pid: int) -> set[int]:
    """Processes of helper groups below this one."""
    found = set()
    for child in descendants(pid):
        try:
            text = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"distlfm.solvers.fem" in text:
            found.add(child)
    return found


@pytest.fixture(scope="module")
def calm(folder: Path) -> Callable[[str], Path]:
    """The undisturbed run in one process, of either side."""

    @cache
    def run(side: str) -> Path:
        out = folder / f"{side}-serial"
        subprocess.run(command(folder, side, out, "--executor", "serial"), check=True, capture_output=True)
        return out

    return run


def assert_close(out: Path, reference: Path) -> None:
    found, wanted = numbers(out), numbers(reference)
    assert sorted(found["id"]) == sorted(wanted["id"])
    for name, array in wanted.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(found[name], array, rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("side", ["below", "above"])
def test_a_ray_fit_of_fields_equals_the_serial_one_on_both_sides_of_the_mesh_limit(
    folder: Path, calm: Callable[[str], Path], tmp_path: Path, side: str
) -> None:
    most = 0
    with driving(command(folder, side, tmp_path / "ray", "--executor", "ray"), tmp_path / "log") as driver:
        while driver.process.poll() is None:
            most = max(most, len(ranks_below(driver.process.pid)))
            time.sleep(0.2)
        assert driver.wait() == 0, driver.text
    assert most > 0, "no helper group was seen"
    assert_close(tmp_path / "ray", calm(side))
    workers = min(FIELDS, usable_cpus()) if side == "below" else max(1, min(FIELDS, usable_cpus() // PARTITIONED))
    assert f"Ray: {workers} workers" in driver.text
    store = Store.open(tmp_path / "ray")
    assert store.dataset()["force_mean"].dims == ("instance", "force", "time", "x")


def test_a_killed_owner_leaves_no_rank_behind_and_its_field_is_fitted_again(
    folder: Path, calm: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with driving(command(folder, "above", out, "--executor", "ray"), tmp_path / "log") as driver:
        wait_for(out, "block_done", 1, driver)
        (owner,) = {int(event["worker"].rpartition(":")[2]) for event in wait_for(out, "block_started", 2, driver)}
        ranks = ranks_below(owner)
        assert len(ranks) >= 2, "the owner has no group of ranks"
        os.kill(owner, signal.SIGKILL)
        assert all_gone({owner, *ranks}), "a rank outlives its owner"
        wait_for(out, "worker_lost", 1, driver)
        assert driver.wait() == 0, driver.text
        assert all_gone(driver.family), "a process outlives the run"
    assert Store.open(out).missing() == []
    assert_close(out, calm("above"))


def test_a_killed_rank_is_started_anew_and_all_fields_are_fitted(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with driving(command(folder, "above", out, "--executor", "serial"), tmp_path / "log") as driver:
        wait_for(out, "block_done", 1, driver, 300.0)
        before = ranks_below(driver.process.pid)
        ranks = [pid for pid in before if b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]
        assert len(ranks) == 2, "the mesh is not divided"
        os.kill(max(ranks), signal.SIGKILL)
        assert driver.wait(300.0) == 0, driver.text
        assert all_gone(driver.family), "a process outlives the run"
    assert "is started anew" in driver.text
    store = Store.open(out)
    assert store.missing() == []
    assert not {row["status"] for row in store.rows()} & {"failed", "diverged"}
