"""`distlfm submit` on a real Slurm: sbatch reads what it writes, and `distlfm status` tells what became of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_runs import assert_same, command, write_fleet
from jobs import Job, Queue

from distlfm.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INSTANCES = 8
ODD = "it's 50% of #5"
"""A name that shells, sbatch and its patterns would each take apart."""

CALL = """import os, sys
os.chdir(sys.argv[1])
from distlfm.cli import main
sys.exit(main(sys.argv[2:]))
"""


def distlfm(queue: Queue, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a folder, on the login node."""
    return queue.cluster.run(sys.executable, "-c", CALL, str(folder), *arguments, check=False)


def submitted(queue: Queue, done: subprocess.CompletedProcess[str]) -> Job:
    """The job that a call has queued, with the log that it told the user of."""
    assert done.returncode == 0, done.stderr
    found = re.search(r"^job (\d+): .*^log: (.*?)$", done.stdout, re.DOTALL | re.MULTILINE)
    assert found is not None, done.stdout
    return Job(queue.cluster, found[1], Path(found[2]))


def test_an_array_and_a_job_that_waits_for_it_fit_what_was_asked_and_status_follows_them(
    queue: Queue, tmp_path: Path
) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    write_fleet(folder, INSTANCES)
    assert main(["-q", *command(folder, tmp_path / "calm", "--executor", "serial")[3:]]) == 0
    more = ["--site", str(queue.site), "--sbatch=--comment=a b", "--time", "10"]
    arguments = ["submit", "fit", "config.yaml", *more]
    first = [*arguments, "--data", "data.npz", "--out", "first", "--array", "2", "--sbatch=--hold"]
    array = submitted(queue, distlfm(queue, folder, *first))
    again = distlfm(queue, folder, *first)
    assert again.returncode == 2
    assert f"--dependency afterany:{array.name}" in again.stderr

    second = [*arguments, "--data", "first", "--out", "second", "--nodes", "2", "--cpus", "1"]
    ray = submitted(queue, distlfm(queue, folder, *second, "--dependency", array.name))
    waiting = distlfm(queue, folder, "status", "second")
    assert waiting.returncode == 0, waiting.stderr
    assert f"second: fit, queued\njob {ray.name} (fit): pending (Dependency)" in waiting.stdout

    queue.cluster.run("scontrol", "release", array.name)
    assert ray.wait() == "COMPLETED", ray.text
    assert_same(folder / "first", tmp_path / "calm", INSTANCES)
    told = distlfm(queue, folder, "status", "first")
    assert told.returncode == 0, told.stderr
    assert "complete" in told.stdout
    assert f"job {array.name} (fit): 2 tasks: 2 completed" in told.stdout
    assert sorted(one.name for one in array.log.parent.glob(array.log.name)) == [
        f"distlfm-fit-{array.name}_{task}.log" for task in (0, 1)
    ]
    shown = json.loads(distlfm(queue, folder, "status", "second", "--json").stdout)
    assert (shown["state"], shown["done"]) == ("complete", INSTANCES)
    assert shown["jobs"][0]["states"] == {ray.name: "COMPLETED"}
    assert ray.log.parent == folder / "second.jobs"
    assert ray.facts["WorkDir"] == str(folder).split()[0]  # Slurm shows what follows the space as words of their own
    queue.cluster.wait_quiet()
