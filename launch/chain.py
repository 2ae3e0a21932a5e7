"""Submit a whole study as four jobs that wait for each other: generate, fit, train, evaluate.

    python -m distlfm.launch.chain --out DIR --generate CONFIG --fit CONFIG --train CONFIG [--dry-run] [-- OPTIONS…]

Instances are generated, fitted as if their truth were unknown, an operator learns from the fits, and is judged on those
that it did not learn from. A job that fails takes those behind it out of the queue. OPTIONS go to every sbatch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from distlfm.cluster.slurm.allocation import COMPLETE
from distlfm.cluster.slurm.jobs import JobNote, add_note, jobs_folder, refuse_busy, send
from distlfm.cluster.slurm.script import without_patterns
from distlfm.errors import DistlfmError, UsageError, WorkError
from distlfm.runtime.process import number_in, run_within
from distlfm.runtime.reporting import reporter_for
from distlfm.store.files import storing


@dataclass(frozen=True)
class ChainJob:
    """One job of the chain. run: what it leaves. arguments: of its verb; overrides: what they mean in its config.

    complete: whether it counts as done as soon as its run is complete, though some of it failed.
    """

    verb: str
    run: Path
    arguments: tuple[str, ...]
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    complete: bool = False

    @property
    def folder(self) -> Path:
        """Where its log goes."""
        return jobs_folder(self.run)

    @property
    def log(self) -> str:
        """Its log, as sbatch takes it."""
        return f"{without_patterns(self.folder)}/%x-%j.log"


def links(out: Path, generate: Path, fit: Path, train: Path) -> list[ChainJob]:
    """The jobs, in their order."""
    if "," in str(out):
        raise UsageError(f"sbatch cannot hand {out} on to a job: it has a comma.", "Choose another --out.")
    store, fits, operator, judged = (out / name for name in ("store.zarr", "fits", "operator", "judged"))

    def link(verb: str, config: Path, run: Path, *data: str, setting: str = "", complete: bool = False) -> ChainJob:
        arguments = (str(config), *data, "--out", str(run))
        overrides = (f"run.dir={json.dumps(str(run))}", *([setting] if setting else []))
        return ChainJob(verb, run, arguments, config, overrides, complete)

    learnt, seen = json.dumps([str(fits)]), json.dumps(str(store))
    return [
        link("generate", generate, store),
        link("fit", fit, fits, "--data", str(store), setting=f"data.path={seen}", complete=True),
        link("train", train, operator, "--data", str(fits), setting=f"data.stores={learnt}"),
        ChainJob("evaluate", judged, (str(operator), str(fits), "--out", str(judged))),
    ]


def check(found: Sequence[ChainJob]) -> None:
    """Refuse now what a job would refuse later, and runs that other jobs are for."""
    from distlfm.verbs.submit import Setting, checked

    for link in found:
        if link.config is not None:
            checked(link.verb, link.config, link.overrides, Setting(waits=True))
        refuse_busy(link.run)


def command(link: ChainJob, scripts: Path, before: str, options: Sequence[str]) -> list[str]:
    """What sbatch is given for a link; `before` is the number of the job that it waits for."""
    words = [f"--output={link.log}"]
    if before:
        words += [f"--dependency=afterok:{before}", "--kill-on-invalid-dep=yes"]
    if link.complete:
        words.append(f"--export=ALL,{COMPLETE}={link.run}")
    return [*words, *options, str(scripts / f"{link.verb}.sbatch"), *link.arguments]


def withdraw(numbers: Sequence[str]) -> str:
    """Take jobs out of the queue; gives a sentence on them."""
    words = ["scancel", *numbers]
    if run_within(words).returncode:
        return f"It was sent without the others and has to go: {shlex.join(words)}"
    return f"Withdrawn: job{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}."


def chain(
    found: Sequence[ChainJob],
    scripts: Path,
    options: Sequence[str],
    give: Callable[[Sequence[str]], str],
    undo: Callable[[Sequence[str]], str] = withdraw,
) -> dict[str, str]:
    """Send all links, each after the one before; gives the numbers of the jobs. All are sent, or none stays."""
    numbers: dict[str, str] = {}
    before = ""
    for link in found:
        try:
            before = numbers[link.verb] = give(command(link, scripts, before, options))
        except BaseException as error:
            withdrawn = undo(list(numbers.values())) if numbers else ""
            if withdrawn and isinstance(error, DistlfmError):
                raise WorkError(error.cause, f"{error.fix} {withdrawn}") from error
            raise
    return numbers


def note_of(link: ChainJob, number: str, scripts: Path, options: Sequence[str]) -> JobNote:
    """What `distlfm status` shows of a job."""
    script = (scripts / f"{link.verb}.sbatch").absolute()
    asked = {"job-name": script.name, "nodes": "1"}  # what Slurm takes where a script does not say
    asked |= dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", script.read_text(encoding="utf-8"), re.MULTILINE))
    asked["output"] = link.log
    asked |= dict(word.removeprefix("--").split("=", 1) for word in options if re.match(r"--[\w-]+=", word))
    signs = {"%%": "%", "%j": number, "%x": asked["job-name"]}
    log = re.sub(r"%[%jx]", lambda sign: signs[sign[0]], asked["output"])
    return JobNote(
        job=number,
        verb=link.verb,
        nodes=number_in(asked, "nodes", 1),
        config=link.arguments[0],
        script=str(script),
        log=os.path.abspath(log),
        arguments=link.arguments[1:],
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Submit the four jobs, or show how."""
    options = argparse.ArgumentParser(prog="python -m distlfm.launch.chain", description=(__doc__ or "").split("\n")[0])
    options.add_argument("--out", type=Path, required=True, help="where the results of all jobs go")
    for verb in ("generate", "fit", "train"):
        options.add_argument(f"--{verb}", type=Path, required=True, help=f"the config of `distlfm {verb}`")
    options.add_argument("--scripts", type=Path, default=Path("slurm"), help="where the job scripts are")
    options.add_argument("--dry-run", action="store_true", help="show the calls of sbatch, and send nothing")
    options.add_argument("sbatch", nargs="*", help="options for every sbatch, after --")
    given = options.parse_args(arguments)
    reporter = reporter_for(sys.stdout)

    def show(words: Sequence[str]) -> str:
        reporter.say(shlex.join(["sbatch", "--parsable", *words]))
        return f"JOB_OF_{Path(words[[word.endswith('.sbatch') for word in words].index(True)]).stem.upper()}"

    try:
        jobs = links(given.out.absolute(), *(_there(getattr(given, verb)) for verb in ("generate", "fit", "train")))
        check(jobs)
        if given.dry_run:
            chain(jobs, given.scripts, given.sbatch, show)
            sys.exit(0)
        for link in jobs:
            with storing("the jobs' logs", link.folder):
                link.folder.mkdir(parents=True, exist_ok=True)
        numbers = chain(jobs, given.scripts, given.sbatch, send)
        for link in jobs:
            if link.config is not None:
                add_note(link.folder, note_of(link, numbers[link.verb], given.scripts, given.sbatch))
    except DistlfmError as error:
        sys.stderr.write(f"distlfm: {error}\n")
        sys.exit(error.exit_code)
    for verb, number in numbers.items():
        reporter.say(f"{verb}: job {number}")
    reporter.say(f"Results go to {given.out.absolute()}. To follow: squeue --jobs={','.join(numbers.values())}")
    sys.exit(0)


def _there(config: Path) -> Path:
    if not config.is_file():
        raise UsageError(f"There is no config {config}.", "Give the path of a YAML file.")
    return config.absolute()


if __name__ == "__main__":
    main()
