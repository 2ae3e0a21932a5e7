"""A field whose mesh is divided among ranks on two nodes has the answer of one process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divided import MECHANISM, judged
from fleet_runs import numbers
from jobs import ENDED, Queue

from distlfm.cli import main
from distlfm.config import build
from distlfm.data import write_npz
from distlfm.pipeline.settings import SimulateConfig
from distlfm.pipeline.simulate import simulate_from

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
CLOSE = 1e-10
"""Of objective and gradient, relative to the largest."""


def test_a_mesh_divided_between_two_nodes_gives_the_answer_of_one_process(queue: Queue, tmp_path: Path) -> None:
    content = {**MODEL, "instances": 1, "stop": 1.0, "points": 4, "places": 5, "seed": 1}
    content["mechanism"] = MECHANISM
    write_npz(tmp_path / "data.npz", simulate_from(build(SimulateConfig, content)))
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**MODEL, "inference": QUICK, "run": {"keep": "none"}, "plugins": ["divided"]}))
    words = [str(config), "--data", str(tmp_path / "data.npz"), "--out"]
    job = queue.submit("fit_mpi", *words, tmp_path / "divided", options=("--ntasks-per-node=1",))
    seen: set[str] = set()
    while job.state not in ENDED:
        for node in queue.cluster.nodes:
            if any("solvers.fem.rank" in line for line in queue.cluster.processes(node).values()):
                seen.add(node)
        time.sleep(0.3)
    assert job.state == "COMPLETED", job.text
    assert seen == {"n1", "n2"}
    assert "a group of 2 ranks, started by srun" in job.text
    found, wanted = np.load(queue.divided), judged(ranks=1)
    for name, array in wanted.items():  # the same sums in another order
        np.testing.assert_allclose(found[name], array, rtol=0, atol=CLOSE * np.abs(array).max(), err_msg=name)
    assert main(["-q", "fit", *words, str(tmp_path / "whole"), "--executor", "serial"]) == 0
    fitted, whole = numbers(tmp_path / "divided"), numbers(tmp_path / "whole")
    for name in ("params_mean", "force_mean", "solution_mean"):  # an optimiser in between, which stops early
        np.testing.assert_allclose(fitted[name], whole[name], rtol=1e-4, atol=1e-4, err_msg=name)
