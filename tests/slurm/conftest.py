"""One virtual Slurm for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, lacking, running
from jobs import Queue


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Two nodes of two CPUs."""
    missing = lacking()
    if missing and not os.environ.get("CI"):
        pytest.skip(f"a real Slurm needs {', '.join(missing)}; launch/bootstrap.sh --tests installs it")
    assert not missing, f"a real Slurm needs {', '.join(missing)}"
    with running(num_nodes=2) as cluster:
        yield cluster


@pytest.fixture
def queue(slurm: Cluster, tmp_path: Path) -> Iterator[Queue]:
    """A queue without jobs, before and after; every process that a job has started is gone in the end."""
    slurm.wait_idle()
    yield Queue(slurm, tmp_path)
    slurm.run("scancel", "-u", "root", "--full", check=False)
    for name in slurm.dead:
        slurm.start_node(name)
    slurm.wait_quiet()
