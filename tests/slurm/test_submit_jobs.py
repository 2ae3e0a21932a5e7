"""`distlfm submit` on a real Slurm: sbatch reads what it writes, and `distlfm status` tells what became of it.

A job of several nodes is submitted in the same way in `test_ray_jobs.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fleet_runs import assert_same
from tests.support.slurm_jobs import FLEET, Queue
from tests.support.slurm_login import LAST_JOB, distlfm, odd_folder, submit_call, submitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_an_array_and_a_job_that_waits_for_it_fit_what_was_asked_and_status_follows_them(
    queue: Queue, fleet: Path, tmp_path: Path
) -> None:
    folder = odd_folder(fleet, tmp_path)
    first = submit_call(queue, "config.yaml", "data.npz", "first", "--array", "2", "--sbatch=--hold")
    second = submit_call(queue, "config.yaml", "first", "second", "--array", "1", "--dependency", LAST_JOB)
    sent, again, behind = distlfm(queue, folder, first, first, second)
    array, after = submitted(queue, sent), submitted(queue, behind)
    assert again.code == 2
    assert f"--dependency afterany:{array.name}" in again.err
    after.wait_for_reason("Dependency")
    [waiting] = distlfm(queue, folder, ["status", "second"])
    assert waiting.code == 0, waiting.err
    assert f"second: fit, queued\njob {after.name} (fit): pending (Dependency)" in waiting.out

    queue.cluster.run("scontrol", "release", array.name)
    assert after.wait() == "COMPLETED", after.text
    assert_same(folder / "first", fleet / "calm", FLEET)
    told, shown = distlfm(queue, folder, ["status", "first"], ["status", "second", "--json"])
    assert told.code == 0, told.err
    assert "complete" in told.out
    assert f"job {array.name} (fit): 2 tasks: 2 completed" in told.out
    assert sorted(one.name for one in array.log.parent.glob(array.log.name)) == [
        f"distlfm-fit-{array.name}_{task}.log" for task in (0, 1)
    ]
    found = json.loads(shown.out)
    assert (found["state"], found["done"]) == ("complete", FLEET)
    assert list(found["jobs"][0]["states"].values()) == ["COMPLETED"]
    assert [job["job"] for job in found["jobs"]] == [after.name], "what is noted already is not noted again"
    assert after.log.parent == folder / "second.jobs"
    assert after.facts["WorkDir"] == str(folder).split()[0]  # Slurm shows what follows the space as words of their own
    queue.cluster.wait_quiet()
