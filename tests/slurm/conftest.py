"""One virtual Slurm for all tests of this folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from distlfm.cli import main
from tests.support.fleet_runs import command, write_fleet
from tests.support.slurm_cluster import Cluster, lacking, running
from tests.support.slurm_jobs import BLOCKS, FLEET, QUICK, Queue


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Two nodes of two CPUs."""
    missing = lacking()
    if missing and not os.environ.get("CI"):
        pytest.skip(f"a real Slurm needs {', '.join(missing)}; launch/bootstrap.sh --tests installs it")
    assert not missing, f"a real Slurm needs {', '.join(missing)}"
    with running(num_nodes=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet, a `slow.yaml` for blocks that take their time, and in `calm` its run in one
    process."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, FLEET)
    config = json.loads((folder / "config.yaml").read_text())
    config |= {"inference": QUICK, "run": config["run"] | {"batch": FLEET // BLOCKS}}
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "slow.yaml").write_text(json.dumps(config | {"plugins": ["tests.support.slowly"]}))
    assert main(["-q", *command(folder, folder / "calm", "--executor", "serial")[3:]]) == 0
    return folder


@pytest.fixture
def queue(slurm: Cluster, tmp_path: Path) -> Iterator[Queue]:
    """A queue without jobs, before and after; every process that a job has started is gone in the end."""
    slurm.wait_idle()
    yield Queue(slurm, tmp_path)
    slurm.run("scancel", "-u", "root", "--full", check=False)
    for name in slurm.dead:
        slurm.start_node(name)
    slurm.wait_quiet()
