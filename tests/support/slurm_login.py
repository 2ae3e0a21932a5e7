"""The `distlfm` command as somebody types it on the login node, in a folder whose name is hard on everybody."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.slurm_jobs import Job, Queue

ODD = "it's 50% of #5"
"""A name that shells, sbatch and its patterns would each take apart."""

LAST_JOB = "@JOB"
"""In a later call, the number of the job that was queued last."""

CALL = """import contextlib, io, json, os, re, sys
os.chdir(sys.argv[1])
from distlfm.cli import main
job, told = "", []
for call in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([word.replace("@JOB", job) for word in call])
    found = re.search(r"^job ([0-9]+): ", out.getvalue())
    job = found[1] if found else job
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Done:
    """What a call has given."""

    code: int
    out: str
    err: str


def odd_folder(fleet: Path, place: Path) -> Path:
    """Config and data of the fleet in a folder with a hard name."""
    folder = place / ODD
    folder.mkdir()
    for name in ("config.yaml", "slow.yaml", "data.npz"):
        shutil.copy(fleet / name, folder)
    return folder


def distlfm(queue: Queue, folder: Path, *calls: list[str]) -> list[Done]:
    """Calls one after another, in one process: each of its own would load everything anew."""
    words = [*queue.login, sys.executable, "-c", CALL, str(folder), json.dumps(calls)]
    return [Done(*one) for one in json.loads(queue.cluster.run(*words).stdout.splitlines()[-1])]


def submitted(queue: Queue, done: Done) -> Job:
    """The job that a call has queued, with the log that it told the user of."""
    assert done.code == 0, done.err
    found = re.search(r"^job (\d+): .*^log: (.*?)$", done.out, re.DOTALL | re.MULTILINE)
    assert found is not None, done.out
    return Job(queue.cluster, found[1], Path(found[2]))


def submit_call(queue: Queue, config: str, data: str, out: str, *more: str) -> list[str]:
    """A fit as a job of the virtual cluster."""
    asked = ["--site", str(queue.site), "--sbatch=--comment=a b", "--time", "30", "--data", data, "--out", out]
    return ["submit", "fit", config, *asked, *more]
