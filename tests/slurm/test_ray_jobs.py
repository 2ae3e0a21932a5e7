"""Fleets fitted by Ray over the nodes of a Slurm job: whatever happens to it, the numbers are those of one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from distlfm.store import Store
from tests.support.fleet_runs import assert_same, command, events
from tests.support.slurm_jobs import BLOCKS, FLEET, Queue, wait_until
from tests.support.slurm_login import distlfm, odd_folder, submit_call, submitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HELD = 600.0
"""Seconds of a block that nobody waits for: each of the two workers does one block, and has the next one in hand."""

SLOW = 8.0
"""Those in hand are done soon, and no others before the warning is heard."""


def since(out: Path, life: int) -> list[dict[str, Any]]:
    """What was told since a driver began, for the first time or a later one."""
    told = events(out)
    began = [place for place, event in enumerate(told) if event["event"] == "started"]
    return told[began[life - 1] :] if len(began) >= life else []


def hosts(out: Path, life: int = 1) -> set[str]:
    """Those that have done a block since then."""
    return {event["worker"].partition(":")[0] for event in since(out, life) if event["event"] == "block_done"}


def blocks_done(out: Path, life: int = 1) -> list[int]:
    """The blocks that drivers have told of, since the first one began or a later one."""
    return [event["block"] for event in since(out, life) if event["event"] == "block_done"]


def test_a_fit_over_two_nodes_is_alone_outlives_each_node_and_a_warning_and_has_the_numbers_of_one_process(
    queue: Queue, fleet: Path, tmp_path: Path
) -> None:
    folder = odd_folder(fleet, tmp_path)
    out = folder / "run"
    queue.pace(HELD)
    call = submit_call(queue, "slow.yaml", "data.npz", "run", "--nodes", "2", "--cpus", "1")
    job = submitted(queue, *distlfm(queue, folder, call))
    assert job.log.parent == folder / "run.jobs"
    wait_until(lambda: hosts(out) == {"n1", "n2"}, "block of each node", job)
    [second] = queue.array("fit_array", 1, *command(fleet, out)[4:])
    assert (second.wait(), second.code) == ("FAILED", 2), second.text
    assert f"is in use: fit on n1, job {job.name}, process" in second.text

    queue.cluster.kill_node("n1")
    job.wait_for_restart(1)
    queue.cluster.start_node("n1")  # else the other one tries for long to tell it of its end
    wait_until(lambda: hosts(out, life=2) == {"n1", "n2"}, "block of each node after the crash", job)
    assert "on 2 nodes (n1,n2), begun for the 2. time" in job.text
    lost = "blocks in hand are lost with the first node, and no others"
    assert f"{2 * FLEET // BLOCKS} of {FLEET} instances are there already" in job.text, lost

    queue.cluster.run("scancel", "--batch", "--signal=USR1", job.name)
    queue.pace(SLOW)
    job.wait_for({"PENDING"})
    queue.pace(HELD)
    assert re.search(rf"Stopped by SIGUSR1 after \d+ of {FLEET}", job.text)
    there = FLEET // BLOCKS * (BLOCKS - len(Store.open(out).missing()))

    wait_until(lambda: hosts(out, life=3) == {"n1", "n2"}, "block of each node after the warning", job)
    assert "begun for the 3. time" in job.text
    assert f"{there} of {FLEET} instances are there already" in job.text
    queue.cluster.kill_node("n2")
    wait_until(lambda: "n2 is lost; 1 of 2 nodes are left" in job.text, "word of the lost node", job)
    queue.pace(0.0)
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 2, "a node that is not the first one costs no restart"
    assert_same(out, fleet / "calm", FLEET)
    # Of a driver that dies, workers may store a block that it never tells of.
    assert len(blocks_done(out)) == len(set(blocks_done(out))), "a block was done twice"
    lives_on = "the driver of the last life lives on, and tells of every block once"
    assert len(blocks_done(out, life=3)) == BLOCKS - there * BLOCKS // FLEET, lives_on
