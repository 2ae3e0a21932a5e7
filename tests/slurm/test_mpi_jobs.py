"""A field whose mesh is divided among ranks on two nodes has the answer of one process, even if a node crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.config import build
from distlfm.data import write_npz
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.store import Store
from tests.support.divided import MECHANISM, judged
from tests.support.fleet_runs import numbers
from tests.support.slurm_jobs import Queue, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL: dict[str, Any] = {
    "mechanism": {**MECHANISM, "solver": "petsc"},
    "force": {"priors": {"lengthscale": {"kind": "lognormal", "median": 0.5, "spread": 0.2}}},
    "likelihood": {"prior": {"kind": "lognormal", "median": 0.02, "spread": 0.3}},
}
QUICK = {
    "optimiser": {"rounds": 0, "iterations": 2},
    "posterior": {"method": "laplace", "draws": 4},
    "field": {"refinements": 0, "num_times": 3, "num_places": 3},
}
HELD = 600.0
"""Seconds of a block that nobody waits for."""

CLOSE = 1e-10
"""Of objective and gradient, relative to the largest."""


def test_a_mesh_divided_between_two_nodes_outlives_one_of_them_and_gives_the_answer_of_one_process(
    queue: Queue, tmp_path: Path
) -> None:
    content = {**MODEL, "instances": 1, "stop": 1.0, "points": 4, "places": 5, "seed": 1}
    content["mechanism"] = MECHANISM
    write_npz(tmp_path / "data.npz", simulate_from(build(SimulateConfig, content)))
    config, slow = tmp_path / "config.yaml", tmp_path / "slow.yaml"
    asked = {**MODEL, "inference": QUICK, "run": {"keep": "none"}}
    config.write_text(json.dumps(asked))
    slow.write_text(json.dumps({**asked, "plugins": ["tests.support.slowly", "tests.support.divided"]}))
    words = ["--data", str(tmp_path / "data.npz"), "--out"]
    out = tmp_path / "divided"
    queue.pace(HELD)
    job = queue.submit("fit_mpi", slow, *words, out, options=("--ntasks-per-node=1",))
    wait_until(queue.divided.exists, "field", job)
    for node in queue.cluster.nodes:
        assert any("solvers.fem.group.rank" in line for line in queue.cluster.processes(node).values()), node
    assert "a group of 2 ranks, started by srun" in job.text

    queue.cluster.cut_power("n2")
    queue.pace(0.0)
    job.wait_for_restart(1)
    assert "The helper group of 2 ranks did not start" in job.text
    assert "a node of this job does not answer; the fit goes on with what is not stored yet" in job.text
    assert Store.open(out).missing() == [0], "nothing is wrong with the instance that was in hand"
    queue.cluster.start_node("n2")
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 1

    found, wanted = np.load(queue.divided), judged(ranks=1)
    for name, array in wanted.items():  # the same sums in another order
        np.testing.assert_allclose(found[name], array, rtol=0, atol=CLOSE * np.abs(array).max(), err_msg=name)
    assert main(["-q", "fit", str(config), *words, str(tmp_path / "whole"), "--executor", "serial"]) == 0
    fitted, whole = numbers(out), numbers(tmp_path / "whole")
    for name in ("params_mean", "force_mean", "solution_mean"):  # an optimiser in between, which stops early
        np.testing.assert_allclose(fitted[name], whole[name], rtol=1e-4, atol=1e-4, err_msg=name)
