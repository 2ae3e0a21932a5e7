"""Fleets fitted by Ray over the nodes of a Slurm job: whatever happens to it, the numbers are those of one process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_runs import assert_same, command, events, write_fleet
from jobs import Job, Queue

from distlfm.cli import main
from distlfm.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INSTANCES = 32
HELD = 600.0
"""Seconds of a block that nobody waits for: each of the two workers does one block, and has the next one in hand."""

SLOW = 8.0
"""Those in hand are done soon, and no others before the warning is heard."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet, and in `calm` its run in one process."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, INSTANCES)
    config = json.loads((folder / "config.yaml").read_text()) | {"plugins": ["slowly"]}
    (folder / "slow.yaml").write_text(json.dumps(config))
    assert main(["-q", *command(folder, folder / "calm", "--executor", "serial")[3:]]) == 0
    return folder


def verb(fleet: Path, out: Path) -> list[str]:
    """The arguments of a job script."""
    return command(fleet, out)[4:]


def slow(fleet: Path, out: Path) -> list[str]:
    """The same with blocks that take their time."""
    return [str(fleet / "slow.yaml"), *verb(fleet, out)[1:]]


def hosts(out: Path, life: int = 1) -> set[str]:
    """Those that have done a block since a driver began, for the first time or the second."""
    told = events(out)
    began = [place for place, event in enumerate(told) if event["event"] == "started"]
    since = told[began[life - 1] :] if len(began) >= life else []
    return {event["worker"].partition(":")[0] for event in since if event["event"] == "block_done"}


def wait_until(reached: Callable[[], bool], what: str, job: Job, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, f"no {what} within {seconds:g} s:\n{job.text}"
        time.sleep(0.05)


def assert_once(out: Path) -> None:
    """Of a driver that dies, workers may store a block that it never tells of; none is told of twice."""
    done = [event["block"] for event in events(out) if event["event"] == "block_done"]
    assert sorted(done) == sorted(set(done)), "a block was done twice"


def test_a_fit_over_two_nodes_is_alone_outlives_its_first_node_and_a_warning_and_has_the_numbers_of_one_process(
    queue: Queue, fleet: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    queue.pace(HELD)
    job = queue.submit("fit", *slow(fleet, out))
    wait_until(lambda: hosts(out) == {"n1", "n2"}, "block of each node", job)
    [second] = queue.array("fit_array", 1, *slow(fleet, out))
    assert (second.wait(), second.code) == ("FAILED", 2), second.text
    assert f"is in use: fit on n1, job {job.name}, process" in second.text

    queue.cluster.kill_node("n1")
    job.wait_for({"PENDING"})
    assert job.restarts == 1
    queue.cluster.start_node("n1")
    wait_until(lambda: hosts(out, life=2) == {"n1", "n2"}, "block of each node after the crash", job)
    assert "on 2 nodes (n1,n2), begun for the 2. time" in job.text
    assert "8 of 32 instances are there already" in job.text, "blocks in hand are lost with the node, and no others"

    queue.cluster.run("scancel", "--batch", "--signal=USR1", job.name)
    queue.pace(SLOW)
    job.wait_for({"PENDING"})
    queue.pace(0.0)
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 2
    assert re.search(r"Stopped by SIGUSR1 after \d+ of 32.*begun for the 3. time", job.text, re.DOTALL)
    assert_same(out, fleet / "calm", INSTANCES)
    assert_once(out)


def test_a_node_that_dies_costs_no_result(queue: Queue, fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    queue.pace(HELD)
    job = queue.submit("fit", *slow(fleet, out))
    wait_until(lambda: hosts(out) == {"n1", "n2"}, "block of each node", job)
    queue.cluster.kill_node("n2")
    wait_until(lambda: "n2 is lost; 1 of 2 nodes are left" in job.text, "word of the lost node", job)
    queue.pace(0.0)
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 0
    assert_same(out, fleet / "calm", INSTANCES)
    done = sorted(event["block"] for event in events(out) if event["event"] == "block_done")
    assert done == list(range(Store.open(out).spec.num_blocks)), "its driver lives on, and tells of every block once"
