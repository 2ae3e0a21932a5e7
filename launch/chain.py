"""Submit a whole study as four jobs that wait for each other: generate, fit, train, evaluate.

    python -m distlfm.launch.chain --out DIR --generate CONFIG --fit CONFIG --train CONFIG [--dry-run] [-- OPTIONS…]

Instances are generated, fitted as if their truth were unknown, an operator learns from the fits, and is judged on those
that it did not learn from. A job that fails takes those behind it out of the queue. OPTIONS go to every sbatch.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from distlfm.errors import DistlfmError, UsageError, WorkError
from distlfm.launch.preempt import COMPLETE
from distlfm.runtime.reporting import reporter_for

SUBMIT_SECONDS = 60.0


@dataclass(frozen=True)
class Link:
    """One job of the chain. complete: the run that must be complete for it to count as done."""

    verb: str
    arguments: tuple[str, ...]
    complete: str = ""


def links(out: Path, generate: Path, fit: Path, train: Path) -> list[Link]:
    """The jobs, in their order."""
    if "," in str(out):
        raise UsageError(f"sbatch cannot hand {out} on to a job: it has a comma.", "Choose another --out.")
    store, fits, operator, judged = (str(out / name) for name in ("store.zarr", "fits", "operator", "judged"))
    return [
        Link("generate", (str(generate), "--out", store)),
        Link("fit", (str(fit), "--data", store, "--out", fits), complete=fits),
        Link("train", (str(train), "--data", fits, "--out", operator)),
        Link("evaluate", (operator, fits, "--out", judged)),
    ]


def command(link: Link, scripts: Path, before: str, options: Sequence[str]) -> list[str]:
    """The sbatch of a link; `before` is the number of the job that it waits for."""
    words = ["sbatch", "--parsable"]
    if before:
        words += [f"--dependency=afterok:{before}", "--kill-on-invalid-dep=yes"]
    if link.complete:
        words.append(f"--export=ALL,{COMPLETE}={link.complete}")
    return [*words, *options, str(scripts / f"{link.verb}.sbatch"), *link.arguments]


def submit(words: Sequence[str]) -> str:
    """Send a job; gives its number."""
    # What sbatch would take from the environment belongs to the job that this program may run in.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    try:
        done = subprocess.run(words, env=kept, capture_output=True, text=True, timeout=SUBMIT_SECONDS, check=False)
    except FileNotFoundError:
        raise UsageError("There is no sbatch here.", "Call this where jobs are submitted, or with --dry-run.") from None
    except subprocess.TimeoutExpired:
        raise WorkError("sbatch did not answer.", "Ask Slurm's administrator; `squeue` shows what was sent.") from None
    if done.returncode:
        raise WorkError(f"sbatch refused a job: {done.stderr.strip()}", f"The call was: {shlex.join(words)}")
    return done.stdout.strip().partition(";")[0]


def chain(
    found: Sequence[Link], scripts: Path, options: Sequence[str], send: Callable[[Sequence[str]], str]
) -> dict[str, str]:
    """Send all links, each after the one before; gives the numbers of the jobs."""
    numbers: dict[str, str] = {}
    before = ""
    for link in found:
        before = numbers[link.verb] = send(command(link, scripts, before, options))
    return numbers


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Submit the four jobs, or show how."""
    options = argparse.ArgumentParser(prog="python -m distlfm.launch.chain", description=(__doc__ or "").split("\n")[0])
    options.add_argument("--out", type=Path, required=True, help="where the results of all jobs go")
    for verb in ("generate", "fit", "train"):
        options.add_argument(f"--{verb}", type=Path, required=True, help=f"the config of `distlfm {verb}`")
    options.add_argument("--scripts", type=Path, default=Path("slurm"), help="where the job scripts are")
    options.add_argument("--dry-run", action="store_true", help="show the calls of sbatch, and send nothing")
    options.add_argument("sbatch", nargs="*", help="options for every sbatch, after --")
    found = options.parse_args(arguments)
    reporter = reporter_for(sys.stdout)

    def show(words: Sequence[str]) -> str:
        reporter.say(shlex.join(words))
        return f"JOB_OF_{Path(words[[word.endswith('.sbatch') for word in words].index(True)]).stem.upper()}"

    try:
        jobs = links(found.out.absolute(), *(_there(getattr(found, verb)) for verb in ("generate", "fit", "train")))
        numbers = chain(jobs, found.scripts, found.sbatch, show if found.dry_run else submit)
    except DistlfmError as error:
        sys.stderr.write(f"distlfm: {error}\n")
        sys.exit(error.exit_code)
    if not found.dry_run:
        for verb, number in numbers.items():
            reporter.say(f"{verb}: job {number}")
        reporter.say(f"Results go to {found.out.absolute()}. To follow: squeue --jobs={','.join(numbers.values())}")
    sys.exit(0)


def _there(config: Path) -> Path:
    if not config.is_file():
        raise UsageError(f"There is no config {config}.", "Give the path of a YAML file.")
    return config.absolute()


if __name__ == "__main__":
    main()
