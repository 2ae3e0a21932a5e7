"""What a coordinator may ask for: tasks that are made to single out a site or a patient are refused at the site.

The attack on a dead local layer goes in two steps. First some sites, but not the victim, tune a layer that stays with
them until nothing passes it; that sum is abandoned. Then all sites answer, the gradients of the others are exactly
zero, and weights made to measure turn the sum into the victim's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from distlfm.federated.audit import verify
from distlfm.federated.client_app import app
from distlfm.federated.codec import weights_digest
from distlfm.federated.drill.weights import LAYER, deadening, made_to_measure, nearest_error, recovered, silenced
from distlfm.federated.refused import Reason
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.mod import RECORD, STAGE
from distlfm.federated.settings import RoundTask
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.federated.simulation.sites import nodes_of
from distlfm.federated.site.work import LOCAL, LOCAL_KIND, OWN, Site, codec_of
from distlfm.lfo import FourierOperator, Operator, save_checkpoint
from tests.support.site_toy import make_federation

VICTIM = "south"
POINTS = 33


def set_policy(sites: dict[str, Site], **changes: Any) -> None:
    for site in sites.values():
        path = site.folder / "policy.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def asked(
    sites: dict[str, Site],
    model: FourierOperator,
    task: RoundTask,
    run: int,
    withhold: Sequence[str] = (),
    seconds: float = 60.0,
    kind: str = "train",
    **facts: str | bool,
) -> tuple[list[Message], SecureGrid, np.ndarray]:
    """Send a message to all sites; those in `withhold` never get that which asks for the work."""
    lost = [list(sites).index(name) + 1 for name in withhold]

    def hook(message: Message) -> Message | None:
        stage = message.content.config_records.get(RECORD, {}).get(STAGE)
        return None if stage == "mask" and message.metadata.dst_node_id in lost else message

    vector = codec_of(model, task).encode(model.state_dict())
    base = weights_digest(next(iter(sites.values())).base.model)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"shared": Array(vector)}),
            "config": ConfigRecord({"task": task.model_dump_json(), "base": base, "seconds": seconds, **facts}),
        }
    )
    grid = SecureGrid(LocalGrid(app, nodes_of(sites), run_id=run, on_request=hook))
    replies = grid.send_and_receive([Message(content, node, kind) for node in nodes_of(sites)], timeout=60)
    return list(replies), grid, vector


@pytest.fixture
def federation(tmp_path: Path) -> tuple[Operator, dict[str, Site]]:
    """Four sites that answer all together or not at all, with the policy that is written for a new site."""
    operator, sites = make_federation(tmp_path, batch_seed=None, min_cohort=4)
    set_policy(sites, fixed_cohort=["train", "evaluate", "query"], min_examples=5, clip=1.0)
    return operator, sites


def test_a_layer_that_stays_at_the_sites_is_refused_unless_the_policy_names_it(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    operator, sites = federation
    model, task = deadening(operator)
    replies, grid, _ = asked(sites, model, task, run=11, withhold=[VICTIM])
    assert all(reply.has_error() for reply in replies)
    assert {why for node, why in grid.reports[-1].dropped.items() if node != 3} == {Reason.TASK.value}
    for name, site in sites.items():
        assert not (site.folder / LOCAL).exists()
        assert not (site.folder / OWN).exists()
        refused = [one["facts"] for one in verify(site.folder / "audit.jsonl").entries if one["event"] == "refused"]
        assert [one["reason"] for one in refused] == ([] if name == VICTIM else ["TASK"])
    assert LAYER in refused[0]["detail"]


def test_work_for_a_sum_that_is_abandoned_leaves_nothing_at_the_sites(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    """Even where a policy lets the layer stay: the next full sum is then one over all sites."""
    operator, sites = federation
    set_policy(sites, local=[LAYER], clip=None)
    asked(sites, *deadening(operator), run=11, withhold=[VICTIM])
    for site in sites.values():
        assert not (site.folder / LOCAL).exists()
        assert not (site.folder / OWN).exists()
    model, task = made_to_measure(operator, (LAYER,), batch=0, points=POINTS)
    replies, _, sent = asked(sites, model, task, run=12)
    opened = next(reply for reply in replies if not reply.has_error())
    moved = opened.content["arrays"]["shared"].numpy() - sent
    assert nearest_error(operator, sites[VICTIM], recovered(operator, task, moved, POINTS)) > 0.05
    assert (sites[VICTIM].folder / LOCAL).exists(), "an opened sum is kept"


def test_the_attack_would_read_a_record_at_sites_that_let_it(federation: tuple[Operator, dict[str, Site]]) -> None:
    """So the other tests here fail if their defence does: one patient's series, to six digits, from one sum."""
    operator, sites = federation
    set_policy(sites, local=[LAYER], clip=None, min_examples=1)
    model, task = deadening(operator)
    for name, site in sites.items():
        if name != VICTIM:
            save_checkpoint(site.folder / LOCAL, {"weights": {LAYER: silenced(operator)}}, LOCAL_KIND)
    model, task = made_to_measure(operator, (LAYER,), batch=1, points=POINTS)
    replies, _, sent = asked(sites, model, task, run=12)
    moved = next(one for one in replies if not one.has_error()).content["arrays"]["shared"].numpy() - sent
    assert nearest_error(operator, sites[VICTIM], recovered(operator, task, moved, POINTS)) < 1e-4


@pytest.mark.parametrize(
    ("batch", "steps", "answered"),
    [(1, 1, False), (2, 2, False), (1, 40, False), (4, 8, False), (5, 1, True), (0, 1, True)],
)
def test_patients_that_each_step_uses_are_counted_and_not_those_that_are_there(
    federation: tuple[Operator, dict[str, Site]], batch: int, steps: int, answered: bool
) -> None:
    operator, sites = federation  # eight patients are learned from at each site, and the policy asks for five
    task = RoundTask(steps=steps, batch=batch, lr=1e-3)
    replies, grid, _ = asked(sites, operator.model, task, run=11)
    assert any(not reply.has_error() for reply in replies) == answered
    if not answered:
        assert set(grid.reports[-1].dropped.values()) == {Reason.EXAMPLES.value}


def test_a_second_array_of_the_same_name_is_refused(federation: tuple[Operator, dict[str, Site]]) -> None:
    """The site would tune from one, and what leaves would be the difference from the other, which nobody checks."""
    operator, sites = federation
    task = RoundTask(steps=1, batch=0, lr=1e-3)
    vector = codec_of(operator.model, task).encode(operator.model.state_dict())
    config = ConfigRecord({"task": task.model_dump_json(), "base": weights_digest(operator.model), "seconds": 60.0})
    honest, other = (ArrayRecord({"shared": Array(one)}) for one in (vector, vector + 1e6))
    content = RecordDict({"arrays": honest, "beside": other, "config": config})
    grid = SecureGrid(LocalGrid(app, nodes_of(sites), run_id=11))
    messages = [Message(content, node, "train") for node in nodes_of(sites)]
    assert all(one.has_error() for one in grid.send_and_receive(messages, timeout=60))
    refused = [
        one["facts"] for one in verify(sites[VICTIM].folder / "audit.jsonl").entries if one["event"] == "refused"
    ]
    assert refused[-1]["reason"] == Reason.MALFORMED.name


def test_an_update_weighs_by_the_patients_that_it_used(federation: tuple[Operator, dict[str, Site]]) -> None:
    operator, sites = federation
    replies, _, _ = asked(sites, operator.model, RoundTask(steps=1, batch=6, lr=1e-3), run=11)
    opened = next(reply for reply in replies if not reply.has_error())
    assert opened.content["metrics"]["num-examples"] == 4 * 6


def test_the_coordinators_seed_does_not_choose_whose_record_a_step_sees(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    operator, sites = federation
    task = RoundTask(steps=1, batch=1, lr=1e-3, seed=5)
    vector = codec_of(operator.model, task).encode(operator.model.state_dict())
    updates = {sites[VICTIM].train(vector, task).vector.tobytes() for _ in range(12)}
    assert len(updates) > 2


def test_a_site_keeps_its_own_copy_once_the_sum_of_the_round_is_opened(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    operator, sites = federation
    asked(sites, operator.model, RoundTask(steps=2, batch=0, lr=1e-3), run=11)
    for site in sites.values():
        assert (site.folder / OWN).exists()
        kept = [one["facts"]["kept"] for one in verify(site.folder / "audit.jsonl").entries if one["event"] == "unmask"]
        assert kept == [["operator.pt"]]
        assert list((site.folder / "state" / "drafts").iterdir()) == []
