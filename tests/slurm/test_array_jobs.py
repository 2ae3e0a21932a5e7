"""The tasks of an array share one run; one that fails is reported, keeps nobody, and is made up for."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from fleet_runs import assert_same, command, write_fleet
from jobs import Job, Queue

from distlfm.cli import main
from distlfm.errors import UsageError
from distlfm.pipeline.status import status
from distlfm.store import Store, driver_lock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INSTANCES, TASKS, KILLED = 32, 3, 1
HELD, SLOW = 600.0, 8.0
"""Seconds of a block that nobody waits for, and of blocks that outlast the half minute in which Slurm warns."""


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


def wait_for(path: Path, job: Job, event: str = '"block_started"', times: int = 1, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists() or path.read_text().count(event) < times:
        assert time.monotonic() < until, f"no {event} within {seconds:g} s:\n{job.text}"
        time.sleep(0.02)


def soon(job: Job) -> int:
    """A time limit in minutes that is 30 to 90 seconds from now: Slurm looks twice a minute whom to warn."""
    hours, minutes, seconds = map(int, job.facts["RunTime"].split(":"))
    return (3600 * hours + 60 * minutes + seconds + 30) // 60 + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a fleet, and a config that takes its time."""
    write_fleet(tmp_path, INSTANCES)
    config = json.loads((tmp_path / "config.yaml").read_text()) | {"plugins": ["slowly"]}
    (tmp_path / "slow.yaml").write_text(json.dumps(config))
    return tmp_path


def test_a_failed_task_is_reported_the_others_finish_and_its_blocks_are_made_up_for(queue: Queue, folder: Path) -> None:
    queue.pace(HELD)
    out, verb = folder / "run", [folder / "slow.yaml", *command(folder, folder / "run")[5:]]
    jobs = queue.array("fit_array", TASKS, *verb)
    wait_for(out / f"events-{KILLED + 1}-of-{TASKS}.jsonl", jobs[KILLED])
    with (
        pytest.raises(UsageError, match=rf"is in use: fit, part ./{TASKS} on n., job {jobs[0].name[:-2]}_"),
        driver_lock(out),
    ):
        raise AssertionError("two drivers")
    os.kill(process_of(queue, f"{KILLED + 1}/{TASKS}"), signal.SIGKILL)
    queue.pace(0.0)
    assert main(["-q", *command(folder, folder / "calm", "--executor", "serial")[3:]]) == 0
    states = [job.wait() for job in jobs]
    assert states == ["FAILED" if task == KILLED else "COMPLETED" for task in range(TASKS)], jobs[KILLED].text
    assert jobs[KILLED].code == 128 + signal.SIGKILL
    assert "ended with exit code 137" in jobs[KILLED].text
    missing = Store.open(out).missing()
    assert {block % TASKS for block in missing} == {KILLED}
    assert status(out).state == "stopped"
    assert not (out / "report.html").exists()
    again = queue.array("fit_array", 2, *verb)
    assert [job.wait() for job in again] == ["COMPLETED", "COMPLETED"], [job.text for job in again]
    assert (out / "report.html").exists()
    assert main(["-q", "status", str(out)]) == 0
    assert_same(out, folder / "calm", INSTANCES)


def test_a_cancelled_job_keeps_what_it_has_and_one_at_the_end_of_its_walltime_is_queued_again(
    queue: Queue, folder: Path
) -> None:
    out = folder / "run"
    verb, told = [folder / "slow.yaml", *command(folder, out)[5:]], out / "events-1-of-1.jsonl"
    queue.pace(HELD)
    [cancelled] = queue.array("fit_array", 1, *verb)
    wait_for(told, cancelled, '"block_done"')
    queue.cluster.run("scancel", cancelled.name)
    queue.pace(3.0)
    assert cancelled.wait() == "CANCELLED"
    queue.cluster.wait_quiet(60.0)
    assert re.search(r"Stopped by SIGTERM after \d+ of 32 .*ended with exit code 143", cancelled.text, re.DOTALL)
    assert cancelled.restarts == 0
    begun = told.read_text().count('"block_started"')

    queue.pace(HELD)
    [job] = queue.array("fit_array", 1, *verb, options=("--time=30", "--signal=B:USR1@60"))
    wait_for(told, job, '"block_started"', begun + 1)
    queue.cluster.run("scontrol", "update", f"jobid={job.name}", f"timelimit={soon(job)}")
    queue.pace(SLOW)
    job.wait_for({"PENDING"})
    queue.cluster.run("scontrol", "update", f"jobid={job.name}", "timelimit=30")
    queue.pace(0.0)
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 1
    assert "instances are there already" in job.text
    assert "Stopped by SIGUSR1 after" in job.text
    events = map(json.loads, told.read_text().splitlines())
    done = [event["block"] for event in events if event["event"] == "block_done"]
    assert sorted(done) == list(range(Store.open(out).spec.num_blocks)), "a block was lost or done twice"
    assert (out / "report.html").exists()
