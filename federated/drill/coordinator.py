"""A coordinator that means harm: its ServerApp asks real sites for what no honest one would.

    python -m distlfm.federated.drill.coordinator FOLDER ADDRESS

takes the tasks of the drill's link. Sites get the same bundle as ever, which has no code; what is hostile is installed
at the link. Each attack is carried out at sites as they are set up, and then at sites that were opened for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from distlfm.federated.drill.ground import Ground
from distlfm.federated.refused import Reason

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor.types import ExecutionSpec

    from distlfm.federated.secure.grid import SumReport

PLACE = "DISTLFM_DRILL"
"""In the environment: the folder of the drill's federation."""
ENDLESS = 10**9
BUSY_SECONDS = 20.0
"""Least deadline of the work without end; most of it is the sites' time that is lost."""
PACE = 3.0
"""The deadline in units of what an honest sum takes, on a machine that is busy."""
MASKED: dict[str, Any] = {"epsilon": None, "exact": ["train", "evaluate", "query"]}
"""A policy with which masking alone protects patients, so that what is tried after the noise is all that refuses."""
OPEN: dict[str, Any] = {
    **MASKED,
    "weights": "patients",
    "refusals_a_day": 10**6,
    "local": ["*"],
    "min_examples": 1,
    "fixed_cohort": [],
    "min_difference": 1,
    "task": {"lr": 1e6, "drift": 1e9, "effective": 1.0, "weakest": 0.0, "steps": ENDLESS, "clip": None},
}
"""What a site's policy says once it was opened."""
REMEMBERED = ("audit.jsonl", "state/secagg/heads.json")
"""A site's log, and what it saw of the logs of others."""

app = ServerApp()


@dataclass(frozen=True)
class Outcome:
    """One attack. asked, answer: in words. refused: by sites that were set up as ever. opened: whether it succeeded at
    sites that were opened for it; None where there is nothing to be opened."""

    attack: str
    asked: str
    answer: str
    refused: bool
    opened: bool | None = None
    gained: str = ""


Found = tuple[str, bool]
"""What the sites said or what was gained, and whether they refused or whether the attack succeeded."""


@dataclass(frozen=True)
class Attack:
    """closed, opened: the attack at sites as they are set up, and at those that were opened."""

    name: str
    asked: str
    closed: Callable[[Ground], Found]
    opened: Callable[[Ground], Found] | None = None


def said(report: SumReport, *expected: Reason) -> Found:
    """What sites answered, and whether they refused for one of these reasons and nothing was opened."""
    reasons = sorted(set(report.dropped.values()))
    wanted = {one.value for one in expected}
    return ("; ".join(reasons) or "answered"), not report.sha256 and bool(wanted & set(reasons))


def without_noise(ground: Ground) -> Found:
    """An honest round that asks for no noise, at sites as they are provisioned. Then they are let go without."""
    from distlfm.federated.settings import RoundTask

    found = said(ground.tune(RoundTask(steps=2, batch=0, lr=1e-3))[1], Reason.NOISE, Reason.TASK)
    ground.set_policies(**MASKED)
    return found


def exact_update(ground: Ground) -> Found:
    """At opened sites the same is answered: some weights have no gradient, and noise would have moved them too."""
    from distlfm.federated.settings import RoundTask

    mean, report, sent = ground.tune(RoundTask(steps=2, batch=0, optimiser="sgd", lr=1e-2))
    if mean is None:
        return said(report)[0], False
    moved = mean.array_records["arrays"]["shared"].numpy() - sent
    still = float((moved == 0).mean())
    return f"the sites' mean update, exact: {still:.1%} of the weights did not move", still > 0 and bool(moved.any())


def silent_layer(ground: Ground) -> Found:
    """The others are asked for a layer that stays with them, and the victim is left out."""
    from distlfm.federated.drill.weights import deadening

    model, task = deadening(ground.operator)
    _, report, _ = ground.tune(task, model, withhold=[ground.victim])
    answer, refused = said(report, Reason.TASK)
    left = [name for name in ground.names if (ground.home(name) / "model" / "local.pt").exists()]
    return (f"{answer}; left at: {', '.join(left)}" if left else answer), refused and not left


def measured_weights(ground: Ground) -> Found:
    """Weights whose units switch on one after another."""
    from distlfm.federated.drill.weights import made_to_measure

    model, task = made_to_measure(ground.operator, (), 0, _points(ground))
    return said(ground.tune(task, model)[1], Reason.TASK)


def spies(ground: Ground) -> Found:
    """A few units that are on for one patient alone, among others that are as ever."""
    from distlfm.federated.drill.weights import spying, target_of

    model, task, _ = spying(ground.operator, target_of(ground.operator, map(ground.site, ground.names)), 0.0)
    return said(ground.tune(task, model)[1], Reason.TASK)


def read_by_spies(ground: Ground) -> Found:
    """At opened sites two full sums tell that patient's record, though no site is silent and none is left out."""
    from distlfm.federated.drill.weights import likeness, spied, spying, target_of

    target = target_of(ground.operator, map(ground.site, ground.names))
    moved, times = [], []
    for late in (-0.25, 0.25):
        model, task, at = spying(ground.operator, target, late)
        mean, report, sent = ground.tune(task, model)
        if mean is None:
            return said(report)[0], False
        moved.append(mean.array_records["arrays"]["shared"].numpy() - sent)
        times.append(at)
    like = likeness(target, spied(ground.operator, task, moved, times, len(target.series)))
    return f"a patient's record with a correlation of {like:.3f}", like > 0.9


def read_record(ground: Ground) -> Found:
    """At opened sites, of which all but one are silent, the sum is one patient's record."""
    from distlfm.federated.drill.weights import LAYER, made_to_measure, nearest_error, recovered, silenced
    from distlfm.federated.site.work import LOCAL, LOCAL_KIND
    from distlfm.lfo import save_checkpoint

    points = _points(ground)
    for name in ground.names:
        if name != ground.victim:
            save_checkpoint(ground.home(name) / LOCAL, {"weights": {LAYER: silenced(ground.operator)}}, LOCAL_KIND)
    model, task = made_to_measure(ground.operator, (LAYER,), 1, points)
    mean, report, sent = ground.tune(task, model)
    for name in ground.names:
        (ground.home(name) / LOCAL).unlink(missing_ok=True)
    if mean is None:
        return said(report)[0], False
    moved = mean.array_records["arrays"]["shared"].numpy() - sent
    error = nearest_error(ground.operator, ground.site(ground.victim), recovered(ground.operator, task, moved, points))
    return f"a patient's record with an error of {error:.1e}", error < 1e-3


def one_patient(ground: Ground) -> Found:
    """A step on a single window."""
    from distlfm.federated.settings import RoundTask

    return said(ground.tune(RoundTask(steps=1, batch=1, lr=1e-3))[1], Reason.EXAMPLES)


def one_patient_each(ground: Ground) -> Found:
    """The same at opened sites: each tells the update of one patient."""
    from distlfm.federated.settings import RoundTask

    mean, _, _ = ground.tune(RoundTask(steps=1, batch=1, lr=1e-3))
    used = 0.0 if mean is None else float(str(mean.metric_records["metrics"]["num-examples"]))
    return f"an update of {used:g} patients at {len(ground.names)} sites", used == len(ground.names)


def fewer_sites(ground: Ground) -> Found:
    """The same round over all sites, and then over all but one, with another attempt."""
    from distlfm.federated.settings import RoundTask

    mean, report, _ = ground.tune(RoundTask(steps=2, batch=0, lr=1e-3))
    if mean is None:
        return f"the honest round was not answered: {said(report)[0]}", False
    _, report, _ = ground.tune(RoundTask(steps=2, batch=0, lr=1e-3, seed=1), sites=ground.names[:-1])
    return said(report, Reason.ROSTER, Reason.COHORT_FIXED)


def the_difference(ground: Ground) -> Found:
    """At opened sites the two sums differ by one site's patients, and by its update."""
    from distlfm.federated.settings import RoundTask

    counts = []
    for sites in (ground.names, ground.names[:-1]):
        mean, report, _ = ground.tune(RoundTask(steps=2, batch=0, lr=1e-3), sites=sites)
        if mean is None:
            return said(report)[0], False
        counts.append(float(str(mean.metric_records["metrics"]["num-examples"])))
    known = ground.site(ground.victim).count("pairs", "train")
    return f"{ground.victim}'s number of patients, {counts[0] - counts[1]:g}", counts[0] - counts[1] == known


def exploding(ground: Ground) -> Found:
    """Steps without a clip that a pull makes longer each time; where they explode, a site might fall silent."""
    from distlfm.federated.settings import RoundTask

    return said(ground.tune(RoundTask(steps=6, batch=0, optimiser="sgd", lr=0.4, mu=100, clip=None))[1], Reason.TASK)


def without_end(ground: Ground) -> Found:
    """More steps than a site would ever take."""
    from distlfm.federated.settings import RoundTask

    return said(ground.tune(RoundTask(steps=ENDLESS, batch=0))[1], Reason.TASK)


def until_the_deadline(ground: Ground) -> Found:
    """At opened sites the work lasts until the deadline of the round, and no longer."""
    from distlfm.federated.settings import RoundTask
    from distlfm.federated.site.worktime import Runs

    seconds = max(BUSY_SECONDS, PACE * ground.longest)
    _, report, _ = ground.tune(RoundTask(steps=ENDLESS, batch=0), seconds=seconds)
    busy = [name for name in ground.names if Runs(ground.home(name) / "state").under_way()]
    stopped = [name for name in ground.names if _last_refusal(ground, name).get("reason") == Reason.TIME.name]
    gained = f"the time of {len({*busy, *stopped})} sites, until the deadline; {said(report)[0]}"
    return gained, len({*busy, *stopped}) == len(ground.names)


def spent_twice(ground: Ground) -> Found:
    """A question under a budget, and once more after the ledger was removed."""
    ground.set_policies(epsilon=8.0, exact=[])
    mean, report = ground.question("cohort")
    if mean is None:
        return f"the honest question was not answered: {said(report)[0]}", False
    _remove(ground, "ledger.jsonl")
    return said(ground.question("cohort")[1], Reason.BUDGET)


def both_removed(ground: Ground) -> Found:
    """Where the audit log is removed too, and what other sites saw of it, nobody knows."""
    _remove(ground, *REMEMBERED)
    mean, report = ground.question("cohort")
    return ("a budget that is whole again" if mean is not None else said(report)[0]), mean is not None


def probed_paths(ground: Ground) -> Found:
    """Paths of the link's machine, in a programme for the link's own program."""
    from distlfm.errors import UsageError
    from distlfm.federated.server_app import operator_at_link

    del ground
    answers = []
    for path in ("/etc/shadow", "/etc/no-such-file", "/etc"):
        try:
            operator_at_link(Path(path), "drill", None)
            answers.append(f"{path} was opened")
        except UsageError as error:
            answers.append(str(error))
    return answers[0], len(set(answers)) == 1 and "/etc" not in answers[0]


ATTACKS = (
    Attack("an update without noise", "a round that asks for no noise", without_noise, exact_update),
    Attack("dead local layer", "tune a layer that stays at the sites, and leave one out", silent_layer, read_record),
    Attack("weights made to measure", "an update from weights that switch on in turn", measured_weights, read_record),
    Attack("spies among decoys", "an update from weights of which few are made to measure", spies, read_by_spies),
    Attack("one patient", "a round of batch 1, steps 1", one_patient, one_patient_each),
    Attack(
        "fewer sites", "the same round over all, and in another attempt over all but one", fewer_sites, the_difference
    ),
    Attack("exploding steps", "a round without a clip, whose steps lead away", exploding),
    Attack("endless steps", f"a round of {ENDLESS} steps", without_end, until_the_deadline),
    Attack("probing paths", "operator: /etc/shadow", probed_paths),
    Attack("ledger removed", "a question, after the site's ledger was removed", spent_twice, both_removed),
)


@app.main()
def attack(grid: Grid, context: Context) -> None:
    """Carry all attacks out, at sites as they are and at opened ones, and put what they brought into the log."""
    from distlfm.federated.server_app import MARK

    del context
    ground = Ground(grid, Path(os.environ[PLACE]))
    closed: dict[str, Found] = {}
    for one in ATTACKS:
        closed[one.name] = tried(one.closed, ground)
        log(INFO, "%s: %s", one.name, closed[one.name][0])
    ground.set_policies(**OPEN)
    _remove(ground, "ledger.jsonl", *REMEMBERED)
    found: list[dict[str, Any]] = []
    done: dict[Callable[[Ground], Found], Found] = {}
    for one in ATTACKS:
        if one.opened is not None and one.opened not in done:
            if one.opened is both_removed:
                ground.set_policies(epsilon=8.0)
                tried(spent_twice, ground)
            done[one.opened] = tried(one.opened, ground)
            log(INFO, "%s, at opened sites: %s", one.name, done[one.opened][0])
        gained, succeeded = ("", None) if one.opened is None else done[one.opened]
        answer, refused = closed[one.name]
        found.append(asdict(Outcome(one.name, one.asked, answer, refused, succeeded, gained)))
    log(INFO, "%s %s", MARK, json.dumps({"attacks": found}))


def tried(what: Callable[[Ground], Found], ground: Ground) -> Found:
    """Whatever an attack stumbles over counts neither as a refusal nor as a success."""
    try:
        return what(ground)
    except Exception as error:
        return f"the drill failed here: {type(error).__name__}: {error}", False


def _points(ground: Ground) -> int:
    return int(ground.site(ground.victim).windows("pairs").values.shape[-1])


def _remove(ground: Ground, *files: str) -> None:
    for name in ground.names:
        for file in files:
            (ground.home(name) / file).unlink(missing_ok=True)


def _last_refusal(ground: Ground, name: str) -> Mapping[str, Any]:
    from distlfm.federated.audit import last_entry

    with suppress(OSError):
        entry = last_entry(ground.home(name) / "audit.jsonl", "refused")
        return {} if entry is None else entry.get("facts", {})
    return {}


def perform(role: str, spec: ExecutionSpec) -> None:
    """In the task's own process: run the hostile app in place of the installed one."""
    from distlfm.federated import server_app
    from distlfm.federated.link import tasks

    server_app.app = app
    tasks.perform(role, spec)


if __name__ == "__main__":
    from distlfm.federated.drill.coordinator import perform as hostile
    from distlfm.federated.link.tasks import main

    main("link", *sys.argv[1:], work=hostile)
