"""Run a verb so that a warning becomes a checkpoint, and a job that is not done is queued again.

    python -m distlfm.launch.preempt VERB ARGUMENTS…

Slurm warns a job by USR1, some time before its walltime ends or when another job takes its nodes. The warning goes on
to the verb, which keeps what it has and ends with 75; then the job is queued again, and the same command goes on where
it was. The other launch programs do the same around what they start. A job that sbatch was given directly notes itself
beside its run, so that `distlfm status` shows it too.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import yaml

from distlfm.cluster.blocks.job import GRACE_SECONDS
from distlfm.cluster.blocks.ledger import Share
from distlfm.cluster.machine import import_environment
from distlfm.cluster.slurm.allocation import COMPLETE, Allocation, find_allocation, lost_a_node
from distlfm.cluster.slurm.jobs import JobNote, add_note, base_of, jobs_folder, notes_of
from distlfm.config import read_yaml
from distlfm.errors import TRY_AGAIN, DistlfmError, Stopped
from distlfm.runtime.process import cannot_start, handled, run_within
from distlfm.runtime.reporting import Reporter, reporter_for
from distlfm.store.files import storing

VERBS = ("fit", "generate", "train", "tune")
STANDARD_OUTPUT = Path("/proc/self/fd/1")


def note_job(words: Sequence[str], allocation: Allocation, environment: Mapping[str, str]) -> None:
    """Note the job that does a verb, unless it is noted. In an array the first task does it; a disk that is full is
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


LOOK_SECONDS = 0.1
INSIST_SECONDS = GRACE_SECONDS + 2.0
"""A verb that Slurm has asked to end is gone by then."""

MOST_RESTARTS = 50
"""A job that was queued again so often makes no progress in its walltime."""

PASSED_ON = (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WARNED = (TRY_AGAIN, 128 + signal.SIGINT, -signal.SIGUSR1, 128 + signal.SIGUSR1)
"""How a verb ends that was warned: as it should, warned twice, or before it listened."""


class Relay:
    """Inside this context signals are kept until somebody asks for them; nothing is ended by them."""

    def __init__(self, in_slurm: bool) -> None:
        self.warned = False
        self._in_slurm = in_slurm
        self._waiting: list[signal.Signals] = []
        self._insist: float | None = None

    def check(self) -> None:
        """Raise Stopped if a signal came."""
        if self._waiting:
            raise Stopped(self._waiting[0], "before the work began", "give the same command again.")

    def pass_on(self, process: subprocess.Popen[bytes]) -> None:
        """Give the process what came since the last time."""
        while self._waiting:
            which = self._waiting.pop(0)
            # Slurm itself ends every process of a job; asked twice, a verb would not finish what it has in hand. But if
            # this process alone was told, the verb would go on for ever.
            if which == signal.SIGTERM and self._in_slurm:
                self._insist = time.monotonic() + INSIST_SECONDS if self._insist is None else self._insist
            else:
                process.send_signal(which)
        if self._insist is not None and time.monotonic() >= self._insist:
            self._insist = None
            process.send_signal(signal.SIGTERM)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        which = signal.Signals(number)
        self.warned = self.warned or which == signal.SIGUSR1
        self._waiting.append(which)

    @contextmanager
    def listening(self) -> Iterator[Relay]:
        with handled(self._take, PASSED_ON):
            yield self


class JobLog:
    """What a job says of itself, in the log that Slurm keeps of it. allocation: None outside of Slurm.

    share: the part of a run that this job has to do; all of it unless it is set.
    """

    def __init__(self, reporter: Reporter, allocation: Allocation | None, relay: Relay) -> None:
        self.reporter, self.allocation, self.relay = reporter, allocation, relay
        self.share: Share | None = None

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        look: Callable[[], None] = lambda: None,
    ) -> int:
        """Run a command to its end, and give its exit code. look: called again and again meanwhile."""
        self.relay.check()
        self.reporter.say(f"command: {shlex.join(command)}")
        sys.stdout.flush()
        # Its own session: a terminal's Ctrl-C comes once, through us.
        try:
            process = subprocess.Popen(command, env=work_environment(environment), start_new_session=True)
        except OSError as error:
            raise cannot_start(command, error) from None
        try:
            while process.poll() is None:
                self.relay.pass_on(process)
                look()
                time.sleep(LOOK_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        code = process.returncode
        if self.relay.warned and code in WARNED:
            return TRY_AGAIN
        return code if code >= 0 else 128 - code


def again_if_lost(log: JobLog, code: int, then: str) -> int:
    """The exit code of work that needs all nodes of the job: 75 if it failed because one of them is gone.

    then: what becomes of the work, for the message.
    """
    if log.allocation is None or code in (0, TRY_AGAIN) or not lost_a_node(log.allocation):
        return code
    log.reporter.warn(f"a node of this job does not answer; {then}")
    return TRY_AGAIN


def work_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """With it a process finds this distlfm, and puts temporary files where the site wants them."""
    scratch = environment.get("DISTLFM_SCRATCH")
    return {**environment, **import_environment(), **({"TMPDIR": scratch} if scratch else {})}


def verb_command(arguments: Sequence[str]) -> list[str]:
    """The `distlfm` command with these arguments."""
    return [sys.executable, "-m", "distlfm", *arguments]


def launch(work: Callable[[JobLog], int], words: Sequence[str] = ()) -> NoReturn:
    """Do a launch program's work, tell how it went, queue the job again if it is not done, and exit.

    words: the verb and its arguments, by which the job is noted beside its run.
    """
    allocation = find_allocation(os.environ)
    reporter = reporter_for(sys.stdout)
    began = time.monotonic()
    with Relay(allocation is not None).listening() as relay:
        reporter.say(f"{allocation.words if allocation else 'no Slurm job'}; working directory {os.getcwd()}")
        if allocation is not None:
            note_job(words, allocation, os.environ)
        log = JobLog(reporter, allocation, relay)
        try:
            code = work(log)
        except DistlfmError as error:
            sys.stderr.write(f"distlfm: {error}\n")
            code = error.exit_code
        if code == 1 and accounted_for(os.environ.get(COMPLETE), log.share):
            reporter.warn("some instances failed, and all are accounted for: what comes next may begin")
            code = 0
        reporter.say(f"ended with exit code {code} after {time.monotonic() - began:.0f} s")
        sys.stdout.flush()
        if code == TRY_AGAIN and allocation is not None:
            requeue(allocation, reporter)
    sys.exit(code)


def accounted_for(run: str | None, share: Share | None = None) -> bool:
    """Is there a run, and nothing left to do in it, or in a share of it?"""
    from distlfm.store import Store, find_store
    from distlfm.verbs.status import status

    if not run:
        return False
    try:
        if share is None:
            return status(run).state == "complete"
        store = Store.open(find_store(Path(run)))
        return not set(share.blocks(store.spec.num_blocks)) & set(store.missing())
    except DistlfmError:
        return False


def requeue(allocation: Allocation, reporter: Reporter) -> None:
    """Queue the job again, unless the site does not want it or it was begun too often. Slurm then ends this process."""
    if os.environ.get("DISTLFM_REQUEUE") == "0":
        reporter.say("not queued again, as DISTLFM_REQUEUE is 0; the same command goes on")
        return
    if allocation.restarts >= MOST_RESTARTS:
        reporter.warn(f"not queued again after {allocation.restarts} times: ask for more time, or smaller blocks")
        return
    reporter.say(f"job {allocation.job} is queued again and goes on from here")
    sys.stdout.flush()
    done = run_within(["scontrol", "requeue", allocation.job])
    if done.returncode:
        reporter.warn(f"it could not be queued again: {done.stderr.strip()}; submit the same command")


def parser(program: str, summary: str) -> argparse.ArgumentParser:
    """A launch program's own options; what comes after them is the verb's."""
    options = argparse.ArgumentParser(prog=f"python -m distlfm.launch.{program}", description=summary)
    options.add_argument("verb", nargs=argparse.REMAINDER, help="a verb of distlfm and all of its arguments")
    return options


def verb_of(found: argparse.Namespace, options: argparse.ArgumentParser, allowed: Sequence[str] = ()) -> list[str]:
    """The verb and its arguments."""
    words: list[str] = found.verb
    if not words or words[0].startswith("-"):
        options.error("no verb is given")
    if allowed and words[0] not in allowed:
        options.error(f"{words[0]!r} cannot be started this way; {', '.join(allowed)} can")
    return words


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """One process for the whole verb."""
    options = parser("preempt", "Run a verb in one process; a warned job is queued again.")
    words = verb_of(options.parse_args(arguments), options)
    launch(lambda log: log.run(verb_command(words)), words)


if __name__ == "__main__":
    main()
