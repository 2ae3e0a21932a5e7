"""Two sums that differ by a site would show that site: rosters are compared, whatever else a request says."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from distlfm.federated.client_app import app
from distlfm.federated.codec import weights_digest
from distlfm.federated.refused import Reason
from distlfm.federated.secure.cover import covered
from distlfm.federated.secure.epochs import History, tells_of_few
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.records import ARRAY_BITS
from distlfm.federated.settings import RoundTask
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.federated.simulation.sites import nodes_of
from distlfm.federated.site.work import Site, codec_of
from distlfm.lfo import Operator
from tests.federated.test_hostile_coordinator import set_policy
from tests.support.secure_sites import NAMES, ask, local_grid, make_sites, refusals, request, stage_of
from tests.support.site_toy import make_federation

LEAVER = "south"
TASK = RoundTask(steps=2, batch=0, lr=1e-3)


@pytest.fixture
def federation(tmp_path: Path) -> tuple[Operator, dict[str, Site]]:
    """Four sites of 12 to 15 patients that train in whatever company, as policies of version 0.1 let them."""
    operator, sites = make_federation(tmp_path, counts=(12, 13, 14, 15))
    set_policy(sites, fixed_cohort=["evaluate", "query"])
    return operator, sites


def asked(
    operator: Operator, sites: dict[str, Site], names: list[str], kind: str, run: int, **fields: Any
) -> tuple[dict[str, float], np.ndarray] | list[str]:
    """What a coordinator gets that asks some sites: figures and weights, or the sites' reasons."""
    vector = codec_of(operator.model, TASK).encode(operator.model.state_dict())
    vector = vector + fields.pop("nudge", 0.0)
    config = {"task": TASK.model_dump_json(), "base": weights_digest(operator.model), **fields}
    content = RecordDict({"arrays": ArrayRecord({"shared": Array(vector)}), "config": ConfigRecord(config)})
    nodes = nodes_of(sites)
    grid = SecureGrid(LocalGrid(app, nodes, run_id=run))
    numbers = [number for number, name in enumerate(sites, 1) if name in names]
    replies = grid.send_and_receive([Message(content, number, kind) for number in numbers], timeout=60)
    found = next((one for one in replies if not one.has_error()), None)
    if found is None:
        return sorted(set(grid.reports[-1].dropped.values()))
    arrays = found.content.array_records
    moved = arrays["arrays"]["shared"].numpy() - vector if "arrays" in arrays else np.zeros(0)
    return dict(found.content["metrics"]), moved


def without(sites: dict[str, Site], name: str = LEAVER) -> list[str]:
    return [one for one in sites if one != name]


def leave(sites: dict[str, Site], name: str = LEAVER) -> None:
    """The site leaves, and all others pin the new list."""
    keys = yaml.safe_load((sites["east"].folder / "policy.yaml").read_text())["peers"]
    for one in without(sites, name):
        set_policy({one: sites[one]}, peers={peer: key for peer, key in keys.items() if peer != name})


@pytest.mark.parametrize(
    ("run", "fields"),
    [(21, {}), (21, {"attempt": 2}), (22, {}), (22, {"more": "x", "server-round": 7}), (21, {"nudge": 1e-9})],
)
def test_the_same_round_over_four_and_then_three_sites_is_refused_whatever_the_request_says(
    federation: tuple[Operator, dict[str, Site]], run: int, fields: dict[str, Any]
) -> None:
    """Their difference was one site's update, to 3e-15. Nothing of a request is a defence: it is the server's."""
    operator, sites = federation
    assert isinstance(asked(operator, sites, list(sites), "train", 21, attempt=1), tuple)
    assert asked(operator, sites, without(sites), "train", run, **fields) == [Reason.ROSTER.value]
    [detail] = [
        one["facts"]["detail"]
        for one in map(json.loads, (sites["east"].folder / "audit.jsonl").open())
        if one["event"] == "refused"
    ]
    assert "Wait until all of them are there" in detail


def test_the_attack_reads_an_update_at_sites_that_let_it(federation: tuple[Operator, dict[str, Site]]) -> None:
    """So the test above fails if its defence does."""
    operator, sites = federation
    set_policy(sites, min_difference=1)
    whole = asked(operator, sites, list(sites), "train", 21, attempt=1)
    part = asked(operator, sites, without(sites), "train", 21, attempt=2)
    assert isinstance(whole, tuple)
    assert isinstance(part, tuple)
    counts = [found[0]["num-examples"] for found in (whole, part)]
    stolen = (counts[0] * whole[1] - counts[1] * part[1]) / (counts[0] - counts[1])
    before = codec_of(operator.model, TASK).encode(operator.model.state_dict())
    own = Site(sites[LEAVER].folder).train(before, TASK)
    assert np.linalg.norm(stolen - (own.vector - before)) < 1e-9 * np.linalg.norm(stolen)
    assert counts[0] - counts[1] == own.num_patients


def test_a_sum_over_part_of_the_sites_is_refused_before_one_over_all_too(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    """The pinned roster counts as answered from the first day: the order of the two does not matter."""
    operator, sites = federation
    assert asked(operator, sites, without(sites), "train", 21) == [Reason.ROSTER.value]
    assert isinstance(asked(operator, sites, list(sites), "train", 21), tuple)


def test_the_cohort_before_and_after_a_leave_does_not_tell_of_the_leaver(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    """Its level, spread and count were the difference of two answers, to six digits."""
    operator, sites = federation
    before = asked(operator, sites, list(sites), "query.cohort", 31)
    leave(sites)
    answers = [asked(operator, sites, without(sites), "query.cohort", 32 + number) for number in range(10)]
    assert isinstance(before, tuple)
    assert all(isinstance(one, tuple) for one in answers)
    own, count = Site(sites[LEAVER].folder).statistics()
    stolen = []
    for answer in answers:
        figures = answer[0]
        assert isinstance(figures, dict)
        assert figures["num-examples"] == 3 * 1  # of each site the fewest patients that its policy asks for
        lost = before[0]["num-examples"] - figures["num-examples"]
        assert lost != count
        level = before[0]["num-examples"] * before[0]["level"] - figures["num-examples"] * figures["level"]
        stolen.append(level / lost - own["level"])
    assert np.std(stolen) > 10
    assert asked(operator, sites, without(sites), "query.cohort", 50) == [Reason.ROSTER.value]  # no endless averaging


def test_a_round_after_a_leave_is_refused_where_nothing_covers_an_update(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    operator, sites = federation
    asked(operator, sites, list(sites), "train", 31)
    leave(sites)
    assert asked(operator, sites, without(sites), "train", 32) == [Reason.ROSTER.value]
    set_policy(sites, clip=0.1)
    found = asked(operator, sites, without(sites), "train", 33)
    assert isinstance(found, tuple)
    assert np.std(found[1]) > 0.1


def test_a_site_that_comes_back_is_answered_with_as_before(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    keys = yaml.safe_load((sites["east"].folder / "policy.yaml").read_text())["peers"]
    before = asked(operator, sites, list(sites), "query.cohort", 31)
    leave(sites)
    for one in without(sites):
        set_policy({one: sites[one]}, peers=keys)
    assert asked(operator, sites, list(sites), "query.cohort", 32)[0] == before[0]


def test_epochs_survive_restarts_and_are_the_owners_alone(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    asked(operator, sites, list(sites), "query.cohort", 31)
    leave(sites)
    asked(operator, sites, without(sites), "query.cohort", 32)
    file = sites["east"].folder / "state" / "secagg" / "epochs.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    history = History.model_validate_json(file.read_text())
    assert (history.number, history.pinned, history.covered) == (2, ("east", "north", "west"), 1)
    assert history.rosters == (NAMES,)


def test_epochs_that_cannot_be_read_are_no_new_beginning(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    asked(operator, sites, list(sites), "train", 31)
    for site in sites.values():
        (site.folder / "state" / "secagg" / "epochs.json").write_text("{")
    assert asked(operator, sites, list(sites), "train", 32) == [Reason.ROSTER.value]


@pytest.mark.parametrize("how", ["removed", "an old copy"])
def test_rosters_that_a_site_has_lost_are_read_from_its_log(
    federation: tuple[Operator, dict[str, Site]], how: str
) -> None:
    """Without them a leaver's figures were the difference of two answers again."""
    operator, sites = federation
    files = [site.folder / "state" / "secagg" / "epochs.json" for site in sites.values()]
    assert isinstance(asked(operator, sites, list(sites), "query.cohort", 31), tuple)
    before = [file.read_text() for file in files]
    leave(sites)
    assert isinstance(asked(operator, sites, without(sites), "query.cohort", 32), tuple)
    for file, text in zip(files, before, strict=True):
        file.unlink()
        if how != "removed":
            file.write_text(text)
    answer = asked(operator, sites, without(sites), "query.cohort", 33)
    assert isinstance(answer, tuple)
    assert answer[0]["num-examples"] == 3 * 1, "with covering noise, as before"
    history = History.model_validate_json(files[0].read_text())
    assert (history.number, history.covered, history.sums) == (2, 2, 3)
    assert history.rosters == (NAMES,)


def test_a_site_counts_a_sum_as_answered_once_it_has_signed_for_it(tmp_path: Path) -> None:
    """A coordinator need not ask all of them to help with unmasking."""
    nodes = make_sites(tmp_path, min_difference=3)

    def keep_from(message: Message) -> Message | None:
        return None if message.metadata.dst_node_id == 1 and stage_of(message) == "unmask" else message

    assert not ask(SecureGrid(local_grid(nodes, on_request=keep_from)), request())[0].has_error()
    history = History.model_validate_json((tmp_path / "east" / "state" / "secagg" / "epochs.json").read_text())
    assert history.rosters == (NAMES,)


def test_a_site_lost_between_masks_and_consent_ends_the_sum(tmp_path: Path) -> None:
    """The vectors that were masked have no noise for a smaller roster."""
    nodes = make_sites(tmp_path, min_difference=3, clip=1.0)

    def lose(message: Message) -> Message | None:
        return None if message.metadata.src_node_id == 2 and stage_of(message) == "mask" else message

    grid = SecureGrid(local_grid(nodes, on_reply=lose))
    assert all(reply.has_error() for reply in ask(grid, request()))
    assert refusals(tmp_path) == ["ROSTER"]


@pytest.mark.parametrize(
    ("rosters", "k", "few"),
    [
        (["abcdefg"], 3, False),
        (["abcdefg", "abcdef"], 3, True),
        (["abcdefg", "abcd"], 3, False),
        (["abcdefg", "abcd"], 4, True),
        (["abcdefg", "abch"], 3, False),
        (["abcdefg", "abc", "def"], 3, True),  # no two differ by few, and all three leave g
        (["abcdef", "abcghi", "defghi"], 3, False),
        (["abc", "abd"], 3, True),
        (["abcdefg", "abcdef"], 1, False),
    ],
)
def test_combinations_of_answers_are_looked_through_and_not_pairs_alone(rosters: list[str], k: int, few: bool) -> None:
    assert tells_of_few([frozenset(one) for one in rosters], k) == few


def test_a_new_epoch_is_exact_again_once_enough_sites_have_changed() -> None:
    history = History().entered(frozenset("abcd")).answered(frozenset("abcd"), covered=False)
    for pinned, is_open in (("abc", False), ("abce", False), ("abef", True), ("efgh", True)):
        assert history.entered(frozenset(pinned)).is_open(frozenset(pinned), 3) == is_open, pinned


def test_fifty_sites_are_compared_in_no_time() -> None:
    names = [f"s{number}" for number in range(50)]
    history = History().entered(frozenset(names)).answered(frozenset(names), covered=False)
    assert history.is_open(frozenset(names[:40]), 3)
    assert not history.answered(frozenset(names[:40]), covered=False).is_open(frozenset(names[:48]), 3)


def test_covering_noise_is_whole_numbers_for_all_but_the_weight_and_values_are_held_first() -> None:
    parts = (
        ("num-examples", "weight", "float64", ()),
        ("loss", "metric", "float64", ()),
        ("shared", "difference", "float64", (4000,)),
    )
    values = 7.0 * np.concatenate([[1.0, 99.0], np.full(4000, 3.0)])
    held, noise = covered(parts, values, weight=5.0, bound=10.0, clip=0.5, noise=4.0)
    assert held[:2] == pytest.approx([5.0, 50.0])
    assert np.linalg.norm(held[2:]) == pytest.approx(5.0 * 0.5)
    drawn = noise.words(parts, sites=3).view(np.int64)
    assert drawn[0] == 0
    assert np.std(drawn[2:]) == pytest.approx(4.0 * 0.5 * 5.0 * 2.0**ARRAY_BITS, rel=0.05)
    assert noise.lost is None, "each site brings all of it"
    assert drawn[1] != 0
    values[5] = np.inf
    broken, _ = covered(parts, values, weight=5.0, bound=10.0, clip=0.5, noise=4.0)
    assert not np.any(broken[2:]), "an update that is not finite moves nothing"
