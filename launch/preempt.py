"""Run a verb so that a warning becomes a checkpoint, and a job that is not done is queued again.

    python -m distlfm.launch.preempt VERB ARGUMENTS…

Slurm warns a job by USR1, some time before its walltime ends or when another job takes its nodes. The warning goes on
to the verb, which keeps what it has and ends with 75; then the job is queued again, and the same command goes on where
it was. The other launch programs do the same around what they start.
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
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from distlfm.cluster.paths import import_environment
from distlfm.cluster.slurm import Allocation, find_allocation
from distlfm.errors import TRY_AGAIN, DistlfmError
from distlfm.runtime.reporting import Reporter, reporter_for

LOOK_SECONDS = 0.1
MOST_RESTARTS = 50
"""A job that was queued again so often makes no progress in its walltime."""

PASSED_ON = (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WARNED = (TRY_AGAIN, 128 + signal.SIGINT, -signal.SIGUSR1, 128 + signal.SIGUSR1)
"""How a verb ends that was warned: as it should, warned twice, or before it listened."""

COMPLETE = "DISTLFM_COMPLETE"
"""Names a run in the environment: if it is complete, though some instances failed, the job counts as done. Those that
wait for it may then begin."""

REQUEUE_SECONDS = 30.0


class Asked(DistlfmError):
    """A signal came before the verb was started."""

    def __init__(self, which: signal.Signals) -> None:
        super().__init__(f"Stopped by {which.name} before the work began.")
        self.exit_code = TRY_AGAIN if which == signal.SIGUSR1 else 128 + which


class Relay:
    """Inside this context signals are kept until somebody asks for them; nothing is ended by them."""

    def __init__(self, in_slurm: bool) -> None:
        self.warned = False
        self._in_slurm = in_slurm
        self._waiting: list[signal.Signals] = []

    def check(self) -> None:
        """Raise Asked if a signal came."""
        if self._waiting:
            raise Asked(self._waiting[0])

    def pass_on(self, process: subprocess.Popen[bytes]) -> None:
        """Give the process what came since the last time."""
        while self._waiting:
            which = self._waiting.pop(0)
            # Slurm itself ends every process of a job; told twice, a verb would not finish what it has in hand.
            if which != signal.SIGTERM or not self._in_slurm:
                process.send_signal(which)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        which = signal.Signals(number)
        self.warned = self.warned or which == signal.SIGUSR1
        self._waiting.append(which)

    @contextmanager
    def listening(self) -> Iterator[Relay]:
        before = {which: signal.signal(which, self._take) for which in PASSED_ON}
        try:
            yield self
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)


class JobLog:
    """What a job says of itself, in the log that Slurm keeps of it. allocation: None outside of Slurm."""

    def __init__(self, reporter: Reporter, allocation: Allocation | None, relay: Relay) -> None:
        self.reporter, self.allocation, self.relay = reporter, allocation, relay

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
        process = subprocess.Popen(command, env=work_environment(environment), start_new_session=True)
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


def work_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """With it a process finds this distlfm, and puts temporary files where the site wants them."""
    scratch = environment.get("DISTLFM_SCRATCH")
    return {**environment, **import_environment(), **({"TMPDIR": scratch} if scratch else {})}


def verb_command(arguments: Sequence[str]) -> list[str]:
    """The `distlfm` command with these arguments."""
    return [sys.executable, "-m", "distlfm", *arguments]


def launch(work: Callable[[JobLog], int]) -> NoReturn:
    """Do a launch program's work, tell how it went, queue the job again if it is not done, and exit."""
    allocation = find_allocation(os.environ)
    reporter = reporter_for(sys.stdout)
    began = time.monotonic()
    with Relay(allocation is not None).listening() as relay:
        reporter.say(f"{allocation.words if allocation else 'no Slurm job'}; working directory {os.getcwd()}")
        try:
            code = work(JobLog(reporter, allocation, relay))
        except DistlfmError as error:
            sys.stderr.write(f"distlfm: {error}\n")
            code = error.exit_code
        if code == 1 and _complete(os.environ.get(COMPLETE)):
            reporter.warn("some instances failed, and all are accounted for: what comes next may begin")
            code = 0
        reporter.say(f"ended with exit code {code} after {time.monotonic() - began:.0f} s")
        sys.stdout.flush()
        if code == TRY_AGAIN and allocation is not None:
            requeue(allocation, reporter)
    sys.exit(code)


def _complete(run: str | None) -> bool:
    """Is there a run, and nothing left to do in it?"""
    if not run:
        return False
    command = verb_command(["-q", "status", run])
    return subprocess.run(command, env=work_environment(os.environ), check=False).returncode == 0


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
    command = ["scontrol", "requeue", allocation.job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REQUEUE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reporter.warn(f"it could not be queued again: {error}; submit the same command")
        return
    if done.returncode:
        reporter.warn(f"it could not be queued again: {done.stderr.strip()}; submit the same command")


def parser(program: str, summary: str) -> argparse.ArgumentParser:
    """A launch program's own options; what comes after them is the verb's."""
    found = argparse.ArgumentParser(prog=f"python -m distlfm.launch.{program}", description=summary)
    found.add_argument("verb", nargs=argparse.REMAINDER, help="a verb of distlfm and all of its arguments")
    return found


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
    launch(lambda log: log.run(verb_command(words)))


if __name__ == "__main__":
    main()
