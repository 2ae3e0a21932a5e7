"""A site that cheats: it claims patients, ignores the clip, and makes its figures up. What it gains is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from distlfm.federated import client_app
from distlfm.federated.audit import AuditLog, verify
from distlfm.federated.codec import Vector
from distlfm.federated.refused import Reason
from distlfm.federated.rounds import RunState, _Course, run_rounds
from distlfm.federated.secure.gatherer import Gatherer
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.keys import public_hex, sign
from distlfm.federated.secure.member import votes_in
from distlfm.federated.secure.messages import Ballot, Consents
from distlfm.federated.secure.mod import VOTE, secure_mod
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.federated.simulation.sites import nodes_of
from distlfm.federated.site.votes import VOTES, model_digest, vote_on
from distlfm.federated.site.work import Site, codec_of
from distlfm.federated.strategy import TooFewSites
from tests.federated.test_hostile_coordinator import set_policy
from tests.support.secure_sites import NAMES, answering, ask, make_sites, request
from tests.support.site_toy import make_federation, make_programme

CHEAT = "west"


def cheating(target: Vector, patients: float, loss: float, claimed: float | None = None) -> ClientApp:
    """The honest app at three sites; the fourth one's own policy is wide, and its program sends what it likes.

    claimed: patients that it claims in rounds, if these are others than for figures.
    """
    found = ClientApp(mods=[secure_mod])

    def is_cheat(context: Context) -> bool:
        return Path(str(context.node_config["site"])).name == CHEAT

    def figures(message: Message) -> Message:
        names = ("loss", "force_loss", "force_q2", "coverage_95", "parameter_error")
        reply = Message(
            RecordDict({"m": MetricRecord({"num-examples": patients, **dict.fromkeys(names, loss)})}), reply_to=message
        )
        reply.content[VOTE] = ConfigRecord({VOTE: "for"})
        return reply

    @found.train()
    def train(message: Message, context: Context) -> Message:
        if not is_cheat(context):
            return client_app.train(message, context)
        arrays = ArrayRecord({"shared": Array(target)})
        metrics = MetricRecord({"num-examples": claimed or patients})
        return Message(RecordDict({"arrays": arrays, "m": metrics}), reply_to=message)

    @found.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return figures(message) if is_cheat(context) else client_app.evaluate(message, context)

    return found


def attacked(
    tmp_path: Path,
    patients: float,
    length: float,
    loss: float = -1e4,
    policies: dict[str, Any] | None = None,
    cheats: dict[str, Any] | None = None,
    claimed: float | None = None,
    **programme: Any,
) -> tuple[RunState, Vector, Vector, SecureGrid, dict[str, Site]]:
    """A run in which one of four sites wants a model of its own: state, first weights, the wanted ones."""
    operator, sites = make_federation(tmp_path, counts=(20, 20, 20, 20))
    set_policy(sites, most_examples=1000, figure_bound=10.0, **(policies or {}))
    set_policy({CHEAT: sites[CHEAT]}, most_examples=10**9, figure_bound=1e9, **(cheats or {}))
    programme_ = make_programme(rounds=1, evaluate=True, lost=0, **programme)
    codec = codec_of(operator.model, programme_.task)
    before = codec.encode(operator.model.state_dict())
    direction = np.random.default_rng(5).normal(size=len(before))
    target = before + length * direction / np.linalg.norm(direction)
    grid = SecureGrid(
        LocalGrid(cheating(target, patients, loss, claimed), nodes_of(sites)), audit=AuditLog(tmp_path / "l.jsonl")
    )
    state = run_rounds(grid, operator, codec, programme_, tmp_path / "run")
    return state, before, target, grid, sites


def test_a_site_that_claims_a_hundred_thousand_patients_loses_the_round(tmp_path: Path) -> None:
    """The common model was the attacker's to 0.0014."""
    with pytest.raises(TooFewSites, match=r"the sites count for 1000\d\d, more than 1000 each"):
        attacked(tmp_path, patients=100_000.0, length=5.0)


@pytest.mark.parametrize("claimed", [1000.0, 2.0])
def test_one_of_four_sites_cannot_count_for_more_than_one(tmp_path: Path, claimed: float) -> None:
    """By default sites count alike. Within a bound of 1000 patients each, one could be nearly all of the mean."""
    with pytest.raises(TooFewSites, match=rf"the sites count for {3 + claimed:g}, more than 1 each"):
        attacked(
            tmp_path, claimed, 5.0, policies={"weights": "equal"}, cheats={"weights": "patients"}, most_examples=None
        )


def test_figures_of_a_site_that_counts_for_more_than_it_may_are_not_measured(tmp_path: Path) -> None:
    state, *_ = attacked(tmp_path, 900.0, 5.0, claimed=15.0, most_examples=100)
    assert state.figures is None
    assert state.kept is None, "no model was chosen by them"


def test_an_update_longer_than_any_honest_one_loses_the_round(tmp_path: Path) -> None:
    with pytest.raises(TooFewSites, match="largest_update"):
        attacked(tmp_path, patients=900.0, length=1e4)


def test_a_round_that_loses_the_vote_is_not_kept_whatever_one_sites_figures_say(tmp_path: Path) -> None:
    """The attacker stays below all bounds, and its figures make the mean loss of the poisoned model the best."""
    state, before, _, grid, sites = attacked(tmp_path, patients=900.0, length=12.0)
    after = [report for report in grid.reports if report.purpose == "evaluate"][-1]
    assert after.votes == ["east against", "north against", "south against", "west for"]
    assert np.array_equal(state.result, before)
    assert np.array_equal(state.vector, before), "the round is taken back, and not only left out of the choice"
    assert state.kept_round == 0
    log = [
        one["facts"]["votes"] for one in verify(sites["east"].folder / "audit.jsonl").entries if "votes" in one["facts"]
    ]
    assert ["west for"] in [[vote for vote in votes if vote.startswith("west")] for votes in log]
    handed = [one for one in verify(sites["east"].folder / "audit.jsonl").entries if one["event"] == "model"]
    assert [one["facts"] for one in handed] == [{"measured_here": True}]


def test_a_model_that_lost_the_vote_is_not_taken_over_whoever_hands_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator helps the attacker: it hands out the model that the sites voted against."""
    monkeypatch.setattr(RunState, "result", property(lambda state: shown[-1]))
    shown: list[Vector] = []
    honest = _Course._measure

    def measure(course: _Course, *given: Any) -> Any:
        shown.append(course.state.vector)
        return honest(course, *given)

    monkeypatch.setattr(_Course, "_measure", measure)
    state, before, _, grid, sites = attacked(tmp_path, patients=900.0, length=12.0)
    assert not np.array_equal(shown[-1], before)
    assert not state.handed
    assert list(grid.reports[-1].dropped.values()).count(Reason.TASK.value) >= 3
    for name in ("east", "north", "south"):
        refused = [
            one["facts"] for one in verify(sites[name].folder / "audit.jsonl").entries if one["event"] == "refused"
        ]
        assert [one["reason"] for one in refused] == ["TASK"]
        assert "lost the vote" in refused[0]["detail"]
        assert "Ask the coordinator" in refused[0]["detail"]


def test_a_site_whose_own_vote_is_hidden_does_not_open_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Gatherer.agree
    monkeypatch.setattr(Gatherer, "agree", lambda *given: honest(*given).model_copy(update={"ballots": {}}))
    state, before, _, grid, _ = attacked(tmp_path, patients=900.0, length=12.0)
    assert state.last is None
    assert np.array_equal(state.result, before)
    assert Reason.CONSENT.value in {why for report in grid.reports for why in report.dropped.values()}


def test_without_votes_the_attackers_figures_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above fails if its defence does."""
    monkeypatch.setattr("distlfm.federated.rounds.tally", lambda _: (0, 0))
    losses = iter([0.0, -1e6])
    monkeypatch.setattr("distlfm.federated.rounds._means", lambda _: {"loss": next(losses), "num-examples": 1.0})
    state, before, target, _, _ = attacked(tmp_path, patients=900.0, length=12.0)
    assert state.kept_round == 1
    assert np.linalg.norm(state.result - target) < 0.1 * np.linalg.norm(target - before)


def test_honest_rounds_that_help_win_the_vote(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, counts=(20, 20, 20, 20))
    programme = make_programme(rounds=2, evaluate=True, task={"steps": 5, "lr": 0.02})
    codec = codec_of(operator.model, programme.task)
    grid = SecureGrid(LocalGrid(client_app.app, nodes_of(sites)))
    state = run_rounds(grid, operator, codec, programme, tmp_path / "run")
    agreeing, opposed = state.history[1]["votes"]
    assert agreeing > opposed
    assert agreeing + opposed == 4
    assert state.kept_round == 2
    assert not list((sites["east"].folder / "state" / "drafts").iterdir())
    assert (sites["east"].folder / "model" / VOTES).exists()


def test_a_vote_compares_with_the_model_that_was_the_best_and_with_no_unknown_one(tmp_path: Path) -> None:
    folder, draft = tmp_path / "model", tmp_path / "draft"
    folder.mkdir()
    draft.mkdir()
    first, second = np.zeros(3), np.ones(3)
    assert vote_on(folder, draft, "7", first, 1.0, "") is None
    assert vote_on(folder, None, "7", second, 0.5, model_digest(first)) is None  # its sum was not opened yet
    (draft / VOTES).rename(folder / VOTES)
    assert vote_on(folder, None, "7", second, 0.5, model_digest(first)) == "for"
    assert vote_on(folder, None, "7", second, 1.5, model_digest(first)) == "against"
    assert vote_on(folder, None, "7", second, float("nan"), model_digest(first)) == "against"
    assert vote_on(folder, None, "8", second, 0.5, model_digest(first)) is None  # another run


def test_votes_that_their_sites_have_not_signed_for_this_session_do_not_count() -> None:
    keys = {name: Ed25519PrivateKey.generate() for name in NAMES}
    session, other = "ab" * 32, "cd" * 32

    def ballot(name: str, about: str) -> Ballot:
        return Ballot(vote="for", signature=sign(keys[name], Ballot.label, Ballot.signed(about, "for")))

    ballots = {
        "east": ballot("east", session),
        "north": ballot("north", other),
        "south": ballot("east", session),
        "west": ballot("west", session).model_copy(update={"vote": "against"}),
    }
    consents = Consents(session=session, signatures={}, ballots=ballots)
    assert votes_in(consents, {name: public_hex(key) for name, key in keys.items()}) == {"east": "for"}


def test_a_site_with_a_budget_abstains(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    set_policy({"east": sites["east"]}, epsilon=20.0)
    with (sites["east"].folder / "site.yaml").open("a") as file:
        file.write("privacy: {epsilon: 20.0, mechanism: patients}\n")
    programme = make_programme(rounds=1, evaluate=True, task={"adapter": "shift"})
    grid = SecureGrid(LocalGrid(client_app.app, nodes_of(sites)))
    run_rounds(grid, operator, codec_of(operator.model, programme.task), programme, tmp_path / "run")
    voters = [vote.split()[0] for report in grid.reports for vote in report.votes]
    assert voters == ["north", "south", "west"]


@pytest.mark.parametrize(("settings", "total"), [({}, 3 * 10.0 + 10.0), ({"most_examples": 4}, 16.0)])
def test_what_a_site_counts_for_is_capped(tmp_path: Path, settings: dict[str, Any], total: float) -> None:
    grid = SecureGrid(LocalGrid(answering({"num-examples": 10.0, "loss": 1.0}), make_sites(tmp_path, **settings)))
    assert ask(grid, request())[0].content["metrics"]["num-examples"] == total


def test_sites_count_alike_where_their_policies_say_so_and_counts_stay_at_home(tmp_path: Path) -> None:
    app = ClientApp(mods=[secure_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        facts = {"num-examples": 10.0 * context.node_id, "loss": float(context.node_id)}
        return Message(RecordDict({"m": MetricRecord(facts)}), reply_to=message)

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path, weights="equal")))
    metrics = ask(grid, request(), "evaluate")[0].content["metrics"]
    assert (metrics["num-examples"], metrics["loss"]) == (4.0, pytest.approx(2.5))


def test_a_figure_counts_no_more_than_the_policys_bound(tmp_path: Path) -> None:
    app = ClientApp(mods=[secure_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        facts = {"num-examples": 10.0, "loss": -1e3 if context.node_id == 1 else 1.0}
        return Message(RecordDict({"m": MetricRecord(facts)}), reply_to=message)

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path, figure_bound=10.0)))
    assert ask(grid, request(), "evaluate")[0].content["metrics"]["loss"] == pytest.approx((3.0 - 10.0) / 4)


def test_a_site_votes_a_limited_number_of_times_a_day(tmp_path: Path) -> None:
    """A coordinator chooses both models of a vote: each one is a bit about the site's own patients."""
    app = ClientApp(mods=[secure_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        reply = Message(RecordDict({"m": MetricRecord({"num-examples": 10.0, "loss": 1.0})}), reply_to=message)
        reply.content[VOTE] = ConfigRecord({VOTE: "for"})
        return reply

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path, votes_a_day=2)))
    for _ in range(3):
        ask(grid, request(), "evaluate")
    assert [len(report.votes) for report in grid.reports] == [4, 4, 0]
