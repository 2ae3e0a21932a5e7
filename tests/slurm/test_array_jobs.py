"""The tasks of an array share one run; one that fails is reported, keeps nobody, and is made up for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
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

INSTANCES, TASKS, KILLED = 24, 3, 1


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


def wait_for(path: Path, job: Job, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists() or '"block_started"' not in path.read_text():
        assert time.monotonic() < until, f"no block within {seconds:g} s:\n{job.text}"
        time.sleep(0.02)


def test_a_failed_task_is_reported_the_others_finish_and_its_blocks_are_made_up_for(
    queue: Queue, tmp_path: Path
) -> None:
    write_fleet(tmp_path, INSTANCES)
    config = json.loads((tmp_path / "config.yaml").read_text()) | {"plugins": ["slowly"]}
    (tmp_path / "slow.yaml").write_text(json.dumps(config))
    queue.settle(slowly=2.0)
    out, verb = tmp_path / "run", command(tmp_path, tmp_path / "run")[5:]
    jobs = queue.array("fit_array", TASKS, tmp_path / "slow.yaml", *verb)
    wait_for(out / f"events-{KILLED + 1}-of-{TASKS}.jsonl", jobs[KILLED])
    with (
        pytest.raises(UsageError, match=rf"is in use: fit, part ./{TASKS} on n., job {jobs[0].name[:-2]}_"),
        driver_lock(out),
    ):
        raise AssertionError("two drivers")
    os.kill(process_of(queue, f"{KILLED + 1}/{TASKS}"), signal.SIGKILL)
    subprocess.run(command(tmp_path, tmp_path / "calm", "--executor", "serial"), check=True, capture_output=True)
    states = [job.wait() for job in jobs]
    assert states == ["FAILED" if task == KILLED else "COMPLETED" for task in range(TASKS)], jobs[KILLED].text
    assert jobs[KILLED].code == 128 + signal.SIGKILL
    assert "ended with exit code 137" in jobs[KILLED].text
    missing = Store.open(out).missing()
    assert {block % TASKS for block in missing} == {KILLED}
    assert status(out).state == "stopped"
    assert not (out / "report.html").exists()
    queue.settle()
    again = queue.array("fit_array", 2, tmp_path / "slow.yaml", *verb)
    assert [job.wait() for job in again] == ["COMPLETED", "COMPLETED"], [job.text for job in again]
    assert (out / "report.html").exists()
    assert main(["-q", "status", str(out)]) == 0
    assert_same(out, tmp_path / "calm", INSTANCES)


def test_a_job_at_the_end_of_its_walltime_is_queued_again_and_ends_with_every_block(
    queue: Queue, tmp_path: Path
) -> None:
    write_fleet(tmp_path, INSTANCES)
    config = json.loads((tmp_path / "config.yaml").read_text()) | {"plugins": ["slowly"]}
    (tmp_path / "slow.yaml").write_text(json.dumps(config))
    queue.settle(slowly=8.0)
    out = tmp_path / "run"
    verb = command(tmp_path, out)[5:]
    [job] = queue.array("fit_array", 1, tmp_path / "slow.yaml", *verb, options=("--time=1", "--signal=B:USR1@50"))
    wait_for(out / "events-1-of-1.jsonl", job)
    queue.settle()
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts >= 1
    assert "Stopped by SIGUSR1 after" in job.text
    done = [
        event["block"]
        for event in map(json.loads, (out / "events-1-of-1.jsonl").read_text().splitlines())
        if event["event"] == "block_done"
    ]
    assert sorted(done) == list(range(Store.open(out).spec.num_blocks)), "a block was lost or done twice"
    assert (out / "report.html").exists()
