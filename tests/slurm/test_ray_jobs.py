"""Fleets fitted by Ray over the nodes of a Slurm job: whatever happens to it, the numbers are those of one process."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from fleet_runs import assert_same, command, events, write_fleet
from jobs import Job, Queue

from distlfm.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INSTANCES = 40


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet, and in `calm` its run in one process."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, INSTANCES)
    config = json.loads((folder / "config.yaml").read_text()) | {"plugins": ["slowly"]}
    (folder / "slow.yaml").write_text(json.dumps(config))
    subprocess.run(command(folder, folder / "calm", "--executor", "serial"), check=True, capture_output=True)
    return folder


def verb(fleet: Path, out: Path) -> list[str]:
    """The arguments of a job script."""
    return command(fleet, out)[4:]


def slow(fleet: Path, out: Path) -> list[str]:
    """The same with blocks that take their time."""
    return [str(fleet / "slow.yaml"), *verb(fleet, out)[1:]]


def wait_for_blocks(out: Path, job: Job, count: int, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while len([event for event in events(out) if event["event"] == "block_done"]) < count:
        assert time.monotonic() < until, f"no {count} blocks within {seconds:g} s:\n{job.text}"
        time.sleep(0.05)


def hosts(out: Path, kind: str = "block_done") -> set[str]:
    return {event["worker"].partition(":")[0] for event in events(out) if event["event"] == kind}


def assert_once(out: Path) -> None:
    """Of a driver that dies, workers may store a block that it never tells of; none is told of twice."""
    done = [event["block"] for event in events(out) if event["event"] == "block_done"]
    assert sorted(done) == sorted(set(done)), "a block was done twice"


def test_a_fit_over_two_nodes_is_alone_goes_on_after_a_warning_and_has_the_numbers_of_one_process(
    queue: Queue, fleet: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    queue.settle(slowly=4.0)
    job = queue.submit("fit", *slow(fleet, out))
    wait_for_blocks(out, job, 1)
    [second] = queue.array("fit_array", 1, *slow(fleet, out))
    assert (second.wait(), second.code) == ("FAILED", 2), second.text
    assert f"is in use: fit on n1, job {job.name}, process" in second.text
    queue.settle()
    queue.cluster.run("scancel", "--batch", "--signal=USR1", job.name)
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 1
    assert "on 2 nodes (n1,n2), begun for the 2. time" in job.text
    assert "instances are there already" in job.text
    assert hosts(out) == {"n1", "n2"}
    assert_same(out, fleet / "calm", INSTANCES)
    assert_once(out)


def test_a_node_that_dies_costs_no_result(queue: Queue, fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    queue.settle(slowly=4.0)
    job = queue.submit("fit", *slow(fleet, out))
    wait_for_blocks(out, job, 1)
    queue.cluster.kill_node("n2")
    queue.settle()
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 0
    assert "n2 is lost" in job.text
    assert_same(out, fleet / "calm", INSTANCES)
    done = sorted(event["block"] for event in events(out) if event["event"] == "block_done")
    assert done == list(range(Store.open(out).spec.num_blocks)), "its driver lives on, and tells of every block once"


def test_without_its_first_node_a_job_is_queued_again_and_goes_on(queue: Queue, fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    queue.settle(slowly=4.0)
    job = queue.submit("fit", *slow(fleet, out))
    wait_for_blocks(out, job, 1)
    queue.cluster.kill_node("n1")
    queue.settle()
    assert Store.open(out).missing(), "it was killed too late to prove anything"
    job.wait_for({"PENDING"})
    queue.cluster.start_node("n1")
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 1
    assert_same(out, fleet / "calm", INSTANCES)
    assert_once(out)
