"""What a round may ask: tasks beyond the policy, weights made to measure, and work that nobody waits for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.run import Run, RunNotRunningException

from distlfm.federated.audit import verify
from distlfm.federated.drill.weights import SHARED
from distlfm.federated.link.supernode import stop_ended
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.mod import secure_mod
from distlfm.federated.settings import RoundTask
from distlfm.federated.setup.provision import policy_text
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.federated.site import worktime
from distlfm.federated.site.contract import check_task
from distlfm.federated.site.policy import SitePolicy, TaskLimits, load_policy
from distlfm.federated.site.votes import model_digest
from distlfm.federated.site.work import OWN, Site, codec_of
from distlfm.federated.site.worktime import Runs, WorkTime, keep_time, working
from distlfm.lfo import Operator
from distlfm.lfo.tail import with_projection
from tests.federated.test_hostile_coordinator import asked, set_policy
from tests.support.secure_sites import ask, make_sites, name_of, request, stage_of
from tests.support.site_toy import make_federation


@pytest.fixture
def federation(tmp_path: Path) -> tuple[Operator, dict[str, Site]]:
    """Four sites with the bounds of a new site's policy."""
    operator, sites = make_federation(tmp_path, batch_seed=None, min_cohort=4)
    set_policy(sites, min_examples=5, task={})
    return operator, sites


def refused_details(sites: dict[str, Site], name: str = "south") -> list[str]:
    entries = verify(sites[name].folder / "audit.jsonl").entries
    return [str(one["facts"]["detail"]) for one in entries if one["event"] == "refused"]


@pytest.mark.parametrize(
    ("asks", "allows", "told"),
    [
        ({"lr": 1e5}, {}, "task.lr is 100000; the policy's task.lr is 0.5"),
        ({"steps": 10**9}, {}, "task.steps is 1e+09; the policy's task.steps is 1000"),
        ({"batch": 10**6}, {}, "task.batch is 1e+06"),
        ({"mu": 1e6}, {}, "task.mu is 1e+06"),
        ({"optimiser": "sgd"}, {"optimisers": ["adam"]}, "The task has sgd; the policy's task.optimisers is adam"),
        ({"kind": "physics"}, {"kinds": ["pairs"]}, "The task has physics"),
        ({"shared": ["second.*"]}, {"shared": ["first.*"]}, "the policy's task.shared is first.*"),
    ],
)
def test_a_task_beyond_the_policy_is_refused_with_cause_and_fix(
    federation: tuple[Operator, dict[str, Site]], asks: dict[str, Any], allows: dict[str, Any], told: str
) -> None:
    operator, sites = federation
    set_policy(sites, task=allows)
    replies, grid, _ = asked(sites, operator.model, RoundTask(**asks), run=11)
    assert all(reply.has_error() for reply in replies)
    assert Reason.TASK.value in grid.reports[-1].dropped.values()
    [detail] = refused_details(sites)
    assert told in detail
    assert "agree with the site on another" in detail
    assert not (sites["south"].folder / OWN).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"clip": None},
        {"clip": 50.0},
        {"mu": 100.0, "lr": 0.4},
        {"mu": 100.0, "lr": 0.01},
    ],
)
def test_steps_that_could_make_all_sites_but_one_explode_or_forget_are_refused(
    federation: tuple[Operator, dict[str, Site]], change: dict[str, Any]
) -> None:
    """By the rate that a site with large gradients cannot bear, or by a pull that undoes all steps but the last."""
    operator, sites = federation
    task = RoundTask(steps=6, batch=0, optimiser="sgd", lr=0.1).model_copy(update=change)
    replies, grid, _ = asked(sites, operator.model, task, run=11)
    assert all(reply.has_error() for reply in replies)
    assert set(grid.reports[-1].dropped.values()) == {Reason.TASK.value}


def test_the_site_logs_in_plain_words_what_it_is_asked_for(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    replies, _, sent = asked(sites, operator.model, RoundTask(steps=2, batch=0, lr=1e-3), run=11)
    assert not replies[0].has_error()
    [line] = [one for one in verify(sites["south"].folder / "audit.jsonl").entries if one["event"] == "task"]
    assert line["facts"]["asked"] == (
        f"Tune {len(sent)} weights (shared: *; adapter: none) for 2 steps of all windows with adam at rate 0.001, clip "
        "1.0, mu 0, beta 0.5, on pairs; nothing stays here but own copies."
    )


def test_the_site_logs_every_kind_of_task_and_whatever_it_would_tune(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    operator, sites = federation
    task = RoundTask(steps=1, batch=0, lr=1e-3, beta=0.25, shared=("first.*", "second.level.*"))
    set_policy(sites, min_examples=1)
    for number, kind in enumerate(("evaluate", "query.model", "query.cohort", "train")):
        asked(sites, operator.model, task, run=11 + number, kind=kind)
    asked(sites, operator.model, task.model_copy(update={"lr": 1e5}), run=15)
    lines = [one for one in verify(sites["south"].folder / "audit.jsonl").entries if one["event"] == "task"]
    told = [str(one["facts"]["asked"]) for one in lines]
    assert [one.partition(",")[0] for one in told[:2]] == ["Figures of the weights that came"] * 2
    assert "of the patients that choose" in told[0]
    assert told[2] == "Level, spread and missing values of the patients to learn from."
    assert "(shared: first.*, second.level.*; adapter: none)" in told[3]
    assert "beta 0.25" in told[3]
    assert "at rate 100000" in told[4], "what is refused is logged too"


@pytest.mark.parametrize(("batch", "weights"), [(1, "honest"), (0, "made to measure")])
def test_the_runs_model_is_taken_over_under_the_same_conditions_as_a_rounds(
    federation: tuple[Operator, dict[str, Site]], batch: int, weights: str
) -> None:
    operator, sites = federation
    set_policy(sites, task={"drift": 1e9, "weakest": 0.0})
    model, task = operator.model, RoundTask(steps=1, batch=batch, lr=1e-3)
    if weights != "honest":
        model, task = switched(operator, sites["south"], 1e3, (0, 1))
    replies, grid, _ = asked(sites, model, task, run=11, final=True)
    assert all(one.has_error() for one in replies)
    reason = Reason.EXAMPLES if batch else Reason.TASK
    assert reason.value in grid.reports[-1].dropped.values()
    assert not (sites["south"].folder / OWN).exists()


@pytest.mark.parametrize("kind", ["evaluate", "query.model"])
def test_figures_of_weights_that_only_one_patient_switches_on_are_refused(
    federation: tuple[Operator, dict[str, Site]], kind: str
) -> None:
    """Of two such questions, one with the patient and one without, the difference was that patient's level."""
    operator, sites = federation
    set_policy(sites, task={"drift": 1e9, "weakest": 0.0}, min_examples=1, exact=["evaluate", "query"])
    model, task = switched(operator, sites["south"], 1e3, (0, 1))
    replies, grid, _ = asked(sites, model, task, run=11, kind=kind)
    assert all(one.has_error() for one in replies)
    assert Reason.TASK.value in grid.reports[-1].dropped.values()
    set_policy(sites, task={"drift": 1e9, "effective": 1.0})
    assert not asked(sites, model, task, run=12, kind=kind)[0][0].has_error(), "the attack would be answered"


def test_no_vote_compares_with_weights_that_were_not_measured(federation: tuple[Operator, dict[str, Site]]) -> None:
    """A vote tells which of two models is better, so both have to pass what figures of them have to."""
    operator, sites = federation
    set_policy(sites, task={"drift": 1e9, "weakest": 0.0}, min_examples=1)
    model, task = switched(operator, sites["south"], 1e3, (0, 1))
    names = []
    for weights in (model, operator.model):
        told = {"against": names[0]} if names else {}
        _, grid, sent = asked(sites, weights, task, run=11, kind="evaluate", **told)
        names.append(model_digest(sent))
    assert grid.reports[-1].sha256, "the honest figures are given"
    assert list(grid.reports[-1].votes) == []


def test_after_the_days_refusals_honest_weights_are_answered_like_made_ones(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    """A refusal tells one bit of a site's patients, and it was told as often as somebody asked."""
    operator, sites = federation
    set_policy(sites, task={"drift": 1e9, "weakest": 0.0}, refusals_a_day=2)
    model, task = switched(operator, sites["south"], 1e3, (0, 1))
    told = []
    for run, weights in enumerate((model, model, model, operator.model), 11):
        _, grid, _ = asked(sites, weights, task, run=run)
        told.append(grid.reports[-1].dropped.get(3))
    assert told == [Reason.TASK.value] * 2 + [Reason.QUERIES.value] * 2
    entries = verify(sites["south"].folder / "audit.jsonl").entries
    assert len([one for one in entries if one["event"] == "task"]) == 2, "nothing was worked for any more"
    (sites["south"].folder / "state" / "secagg" / "usage.json").unlink()
    assert asked(sites, operator.model, task, run=15)[1].reports[-1].dropped[3] == Reason.QUERIES.value


def test_rounds_of_a_day_are_limited(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    set_policy(sites, rounds_a_day=1)
    task = RoundTask(steps=1, batch=0, lr=1e-3)
    assert not asked(sites, operator.model, task, run=11)[0][0].has_error()
    for site in sites.values():
        (site.folder / "state" / "secagg" / "usage.json").unlink()
    _, grid, _ = asked(sites, operator.model, task, run=12)
    assert set(grid.reports[-1].dropped.values()) == {Reason.ROUNDS.value}


@pytest.mark.parametrize("kind", ["train", "evaluate", "query.model", "query.cohort"])
def test_without_a_budget_nothing_is_answered_unless_the_policy_says_so(
    federation: tuple[Operator, dict[str, Site]], kind: str
) -> None:
    """Weights within all bounds can still bring out one patient's record, by differences of units that are soft."""
    operator, sites = federation
    category = kind.partition(".")[0]
    others = [one for one in ("train", "evaluate", "query") if one != category]
    task = RoundTask(steps=1, batch=0, lr=1e-3)
    set_policy(sites, min_examples=1, exact=others)
    _, grid, _ = asked(sites, operator.model, task, run=11, kind=kind)
    assert set(grid.reports[-1].dropped.values()) == {Reason.NOISE.value}
    assert f"`exact` in its policy does not name {category}" in refused_details(sites)[-1]
    set_policy(sites, exact=[category])
    assert not asked(sites, operator.model, task, run=12, kind=kind)[0][0].has_error()


def test_a_budget_that_hides_nobody_counts_as_none(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    set_policy(sites, min_examples=1, exact=[], epsilon=1e6)
    _, grid, _ = asked(sites, operator.model, RoundTask(), run=11, kind="query.cohort")
    assert set(grid.reports[-1].dropped.values()) == {Reason.NOISE.value}
    set_policy(sites, epsilon=8.0)
    assert not asked(sites, operator.model, RoundTask(), run=12, kind="query.cohort")[0][0].has_error()


def test_the_policy_of_a_new_site_answers_with_noise_alone(tmp_path: Path) -> None:
    found = SitePolicy(site="north")
    assert (found.exact, found.epsilon) == ((), None)
    (tmp_path / "policy.yaml").write_text(policy_text("north", "any"))
    written = load_policy(tmp_path)
    assert (written.exact, written.epsilon, written.weights) == ((), 4.0, "equal")


def switched(operator: Operator, site: Site, gain: float, between: tuple[int, int]) -> tuple[Any, RoundTask]:
    """Weights whose hidden units are on for the patients with the highest level alone.

    A coordinator finds the threshold by trying; here it is given: between the ranks of two patients.
    """
    batch = site.windows("pairs")
    channels = operator.model.channels(batch.values, batch.mask)[0]
    hidden, width = operator.model.first.project.inner.weight.shape
    place = channels.shape[-1] - 3 * len(operator.schema.outputs)
    level = channels[:, 0, 3 * len(operator.schema.outputs)].sort(descending=True).values
    threshold = float(level[list(between)].mean())
    inner = np.zeros((hidden, width))
    inner[:, -place] = gain
    outer = np.stack([np.full(hidden, 1e-3), np.zeros(hidden)])
    model = with_projection(operator.model, inner, np.full(hidden, -gain * threshold), outer, np.zeros(2))
    return model, RoundTask(steps=1, batch=0, optimiser="sgd", lr=1e-2, shared=SHARED[:2])


def test_weights_that_only_one_patient_switches_on_are_refused(federation: tuple[Operator, dict[str, Site]]) -> None:
    """Nobody works for them, and the refusal is counted."""
    operator, sites = federation
    set_policy(sites, task={"drift": 1e9, "weakest": 0.0})
    site = sites["south"]
    model, task = switched(operator, site, 1e3, (0, 1))
    assert site.effect(codec_of(model, task).encode(model.state_dict()), task).effective < 1.05
    asked(sites, model, task, run=11)
    [detail] = refused_details(sites)
    assert "would come from 1.00 patients in effect" in detail
    usage = json.loads((site.folder / "state" / "secagg" / "usage.json").read_text())
    assert usage["refusals"] == 1


def test_weights_that_nobody_switches_on_are_refused(federation: tuple[Operator, dict[str, Site]]) -> None:
    """Of sites whose gradients are zero the sum would hold nothing, and be that of the others."""
    operator, sites = federation
    set_policy(sites, task={"drift": 1e9})
    model, task = switched(operator, sites["south"], 1e3, (0, 1))
    with torch.no_grad():
        model.first.project.inner.bias.fill_(-1e5)
    replies, _, _ = asked(sites, model, task, run=11)
    assert all(reply.has_error() for reply in replies)
    assert "0.00 patients in effect" in refused_details(sites)[0]


def test_weights_that_training_would_not_bring_are_refused(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    model, task = switched(operator, sites["south"], 1e3, (5, 6))
    asked(sites, model, task, run=11)
    assert "first.project.inner.weight came with weights" in refused_details(sites)[0]
    assert "Begin the run anew" in refused_details(sites)[0]


def test_weights_of_honest_rounds_are_not_refused(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    task, model = RoundTask(steps=10, batch=0, lr=1e-3), operator.model
    for run in (11, 12, 13):
        replies, _, _ = asked(sites, model, task, run=run)
        mean = next(one for one in replies if not one.has_error()).content["arrays"]["shared"].numpy()
        codec_of(model, task).load(model, mean)


def test_a_billion_steps_end_with_the_rounds_deadline_and_the_next_round_finds_the_sites_free(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    """An admin's token and an honest link: the policy would allow the steps, and the deadline stops them."""
    operator, sites = federation
    set_policy(sites, task={"steps": 10**9}, min_cohort=3)
    begun = time.monotonic()
    replies, grid, _ = asked(sites, operator.model, RoundTask(steps=10**9, batch=0), run=11, seconds=0.4)
    assert all(reply.has_error() for reply in replies)
    assert set(grid.reports[-1].dropped.values()) == {Reason.TIME.value}
    assert time.monotonic() - begun < 60
    for site in sites.values():
        assert Runs(site.folder / "state").under_way() == []
        assert not (site.folder / OWN).exists()
    replies, _, _ = asked(sites, operator.model, RoundTask(steps=2, batch=0), run=12)
    assert not replies[0].has_error()


def test_the_policys_seconds_bound_the_work_whatever_the_request_says(tmp_path: Path) -> None:
    nodes = make_sites(tmp_path, task={"seconds": 1e-6})
    grid = SecureGrid(LocalGrid(endless(), nodes, run_id=7))
    ask(grid, request())
    assert set(grid.reports[0].dropped.values()) == {Reason.TIME.value}


def test_work_stops_when_its_run_has_ended_or_another_sum_of_it_was_begun(tmp_path: Path) -> None:
    """Whoever is connected to the link marks the run; a new sum is seen in the site's own memory."""
    now = [0.0]
    runs = Runs(tmp_path)
    reason: list[str] = []
    with runs.working("7"), working(WorkTime(100.0, lambda: "".join(reason), lambda: now[0])):
        assert runs.under_way() == ["7"]
        keep_time()
        reason.append("The run has ended.")
        now[0] += worktime.LOOK_SECONDS
        with pytest.raises(Refused) as caught:
            keep_time()
        assert (caught.value.reason, caught.value.detail) == (Reason.TIME, "The run has ended.")
    keep_time()  # outside of a message nothing stops


@pytest.mark.parametrize("how", ["ended", "begun anew"])
def test_a_site_that_works_for_a_round_that_is_over_stops(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = make_sites(tmp_path, task={"seconds": 0.2})
    monkeypatch.setattr(worktime, "LOOK_SECONDS", 0.0)

    def over(context: Context) -> None:
        state = tmp_path / "east" / "state"
        if name_of(context) != "east":
            return
        if how == "ended":
            Runs(state).end("7")
        else:
            (state / "secagg" / "sum-7.json").write_text((tmp_path / "before.json").read_text())

    def keep(message: Message) -> Message:
        if stage_of(message) == "mask" and message.metadata.dst_node_id == 1:
            (tmp_path / "before.json").write_text((tmp_path / "east" / "state" / "secagg" / "sum-7.json").read_text())
        return message

    ask(SecureGrid(LocalGrid(endless(over), nodes, run_id=7, on_request=keep)), request())
    entries = verify(tmp_path / "east" / "audit.jsonl").entries
    assert entries[-1]["facts"]["detail"].startswith("The run has" if how == "ended" else "Another sum of this run")


def endless(first: Any = None) -> ClientApp:
    """An app that works until it is stopped. first: called once before."""
    found = ClientApp(mods=[secure_mod])

    @found.train()
    def train(message: Message, context: Context) -> Message:
        if first is not None:
            first(context)
        for _ in range(10**6):
            keep_time()
        return Message(RecordDict({"m": MetricRecord({"num-examples": 10.0})}), reply_to=message)

    return found


def test_the_link_is_asked_whether_the_runs_that_are_worked_for_go_on(tmp_path: Path) -> None:
    def get_run(run: int) -> Run:
        if run == 8:
            raise RunNotRunningException
        return Run.create_empty(run)

    runs = Runs(tmp_path)
    with runs.working("7"), runs.working("8"):
        stop_ended(runs, get_run)
        assert [runs.has_ended(run) for run in ("7", "8")] == [False, True]


def test_a_rate_has_no_limit_where_updates_are_cut_and_noised_and_every_other_limit_holds() -> None:
    limits, task = TaskLimits(), RoundTask(lr=10.0, steps=1)
    with pytest.raises(Refused, match="task outside"):
        check_task(limits, task, ("w",))
    check_task(limits, task, ("w",), shared=True)
    with pytest.raises(Refused, match="task outside"):
        check_task(limits, task.model_copy(update={"steps": 10**6}), ("w",), shared=True)
