"""The tasks of an array share one run; one that fails is reported, keeps nobody, and is made up for."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from distlfm.cli import main
from distlfm.errors import UsageError
from distlfm.store import Store, driver_lock
from distlfm.verbs.status import status
from tests.support.fleet_runs import assert_same, command
from tests.support.slurm_jobs import BLOCKS, FLEET, Job, Queue

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CALM, KILLED, CANCELLED, WARNED = range(4)
TASKS = 4
HELD, SOON = 600.0, 3.0
"""Seconds of a block that nobody waits for, and of one that ends before it is broken off."""


def process_of(queue: Queue, part: str, seconds: float = 240.0) -> int:
    """The verb of a task."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for node in queue.cluster.nodes:
            for pid, line in queue.cluster.processes(node).items():
                if f"--part {part}" in line and "-m distlfm fit" in line:
                    return pid
        time.sleep(0.05)
    raise AssertionError(f"no process has part {part}:\n{queue.cluster.describe()}")


def wait_for(path: Path, job: Job, words: str, times: int = 1, seconds: float = 240.0) -> None:
    """Until a file has these words so often."""
    until = time.monotonic() + seconds
    while not path.exists() or path.read_text(errors="replace").count(words) < times:
        assert time.monotonic() < until, f"no {words} within {seconds:g} s:\n{job.text}"
        time.sleep(0.02)


def soon(job: Job) -> int:
    """A time limit in minutes that is 30 to 90 seconds from now: Slurm looks twice a minute whom to warn."""
    hours, minutes, seconds = map(int, job.facts["RunTime"].split(":"))
    return (3600 * hours + 60 * minutes + seconds + 30) // 60 + 1


def test_of_an_array_one_task_fails_one_is_cancelled_one_outlasts_its_walltime_and_the_rest_is_made_up_for(
    queue: Queue, fleet: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    verb = [fleet / "slow.yaml", *command(fleet, out)[5:]]
    for task in (KILLED, CANCELLED, WARNED):
        queue.pace(HELD, task)
    jobs = queue.array("fit_array", TASKS, *verb, options=("--time=30", "--signal=B:USR1@60"))
    for task in (WARNED, KILLED, CANCELLED):  # each has done a block, and has the next one in hand
        wait_for(out / f"events-{task + 1}-of-{TASKS}.jsonl", jobs[task], '"block_started"', 2)
        if task == WARNED:
            limit = f"timelimit={soon(jobs[task])}"
            queue.cluster.run("scontrol", "update", f"jobid={jobs[task].name}", limit)
    with (
        pytest.raises(UsageError, match=rf"is in use: fit, part ./{TASKS} on n., job {jobs[0].name[:-2]}_"),
        driver_lock(out),
    ):
        raise AssertionError("two drivers")

    os.kill(process_of(queue, f"{KILLED + 1}/{TASKS}"), signal.SIGKILL)
    queue.cluster.run("scancel", jobs[CANCELLED].name)
    queue.pace(SOON, CANCELLED)
    states = [jobs[task].wait() for task in (CALM, KILLED, CANCELLED)]
    assert states == ["COMPLETED", "FAILED", "CANCELLED"], [job.text for job in jobs]
    assert jobs[KILLED].code == 128 + signal.SIGKILL
    assert "ended with exit code 137" in jobs[KILLED].text
    wait_for(jobs[CANCELLED].log, jobs[CANCELLED], "ended with exit code 143", seconds=60.0)
    assert re.search(rf"Stopped by SIGTERM after \d+ of {FLEET // TASKS} ", jobs[CANCELLED].text)
    assert jobs[CANCELLED].restarts == 0

    warned = jobs[WARNED]
    warned.wait_for({"PENDING"})
    queue.cluster.run("scontrol", "update", f"jobid={warned.name}", "timelimit=30")
    for task in (KILLED, CANCELLED, WARNED):
        queue.pace(0.0, task)
    assert warned.wait() == "COMPLETED", warned.text
    assert warned.restarts == 1
    assert "instances are there already" in warned.text
    assert "Stopped by SIGUSR1 after" in warned.text

    missing = sorted(block % TASKS for block in Store.open(out).missing())
    assert missing == [KILLED, KILLED, CANCELLED], "a killed task loses its block in hand, one that was asked does not"
    assert status(out).state == "stopped"
    assert not (out / "report.html").exists()
    again = queue.array("fit_array", 2, *verb)
    assert [job.wait() for job in again] == ["COMPLETED", "COMPLETED"], [job.text for job in again]
    assert (out / "report.html").exists()
    assert main(["-q", "status", str(out)]) == 0
    assert_same(out, fleet / "calm", FLEET)
    lines = [line for file in out.glob("events-*.jsonl") for line in file.read_text().splitlines()]
    done = [event["block"] for event in map(json.loads, lines) if event["event"] == "block_done"]
    assert sorted(done) == list(range(BLOCKS)), "a block was lost or done twice"
    told = status(out).jobs
    assert [job.note.job for job in told] == [jobs[0].name[:-2], again[0].name[:-2]], "they have noted themselves"
