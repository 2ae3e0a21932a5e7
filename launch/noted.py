"""A job that sbatch was given directly notes itself beside its run, so that `distlfm status` shows it too."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import yaml

from distlfm.cluster.queue import base_of
from distlfm.cluster.slurm import Allocation
from distlfm.config import read_yaml
from distlfm.errors import DistlfmError
from distlfm.pipeline.submit_jobs import JobNote, add_note, jobs_folder, notes_of
from distlfm.store.files import storing

VERBS = ("fit", "generate", "train", "tune")
STANDARD_OUTPUT = Path("/proc/self/fd/1")


def note_job(words: Sequence[str], allocation: Allocation, environment: Mapping[str, str]) -> None:
    """Note the job that does a verb, unless it is noted. Of an array the first task does it; a disk that is full is
    left to the verb."""
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    run, number = run_of(words), base_of(allocation.job)
    if run is None or task != environment.get("SLURM_ARRAY_TASK_MIN", ""):
        return
    if number in {note.job for note in notes_of(run)}:
        return
    log = os.path.realpath(STANDARD_OUTPUT)
    note = JobNote(
        job=number,
        verb=words[0],
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        nodes=len(allocation.nodes),
        config=os.path.abspath(words[1]),
        script="",
        log=log.replace(f"_{task}.", "_*.") if task else log,
        arguments=tuple(words[2:]),
    )
    with suppress(DistlfmError), storing("the list of jobs", run):
        jobs_folder(run).mkdir(parents=True, exist_ok=True)
        add_note(jobs_folder(run), note)


def run_of(words: Sequence[str]) -> Path | None:
    """The folder or store that a verb with these arguments works on; None if they do not tell."""
    if len(words) < 2 or words[0] not in VERBS:
        return None
    found: object = None
    with suppress(DistlfmError):
        found = (read_yaml(Path(words[1])).get("run") or {}).get("dir")
    for place, word in enumerate(words[2:], 3):
        name, equals, value = word.partition("=")
        if name == "run.dir":
            with suppress(yaml.YAMLError):
                found = yaml.safe_load(value)
        if name == "--out":
            found = value if equals else next(iter(words[place:]), None)
    return Path(str(found)).absolute() if found else None
