"""The audit log knows what was spent, whatever becomes of the ledger."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from distlfm.federated.audit import AuditLog, last_entry, verify
from distlfm.federated.refused import Reason
from distlfm.federated.rounds import run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.secure.member import heads_in, signed_head
from distlfm.federated.settings import PrivacyConfig
from distlfm.federated.setup.identity import load_signing_key
from distlfm.federated.site.ledger import Ledger
from distlfm.federated.site.policy import load_policy
from distlfm.federated.site.receipts import check_ledger, epsilon_of, write_receipt
from distlfm.federated.site.work import LEDGER, codec_of
from distlfm.federated.strategy import TooFewSites
from tests.support.site_toy import make_federation, make_grid, make_programme

TASK = {"steps": 2, "adapter": "shift"}


def test_epsilon_from_the_audit_log_is_that_of_the_ledger(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, privacy=PrivacyConfig(epsilon=1e3, noise=2.0, sample=0.5))
    asked = make_programme(rounds=2, evaluate=True, task=TASK)
    codec = codec_of(operator.model, asked.task)
    run_rounds(SecureGrid(make_grid(sites), min_sites=3), operator, codec, asked, tmp_path / "run")
    for site in sites.values():
        ledger = site.ledger
        assert ledger is not None
        told = [one["facts"] for one in verify(site.folder / "audit.jsonl").entries if one["event"] == "privacy"]
        assert len(told) == 5, "two rounds and three times figures"
        assert {one.what for one in ledger.charges} == {"train", "figures"}
        for facts in told:
            assert epsilon_of(facts) == pytest.approx(facts["epsilon"], rel=1e-9)
        assert told[-1]["epsilon"] == pytest.approx(ledger.spent, rel=1e-9)
        assert told[-1]["ledger"] == ledger.head


@pytest.mark.parametrize("left", [None, 0, 1])
def test_a_ledger_that_was_removed_or_rolled_back_stops_the_site(left: int | None, tmp_path: Path) -> None:
    """The attack: remove `ledger.jsonl`, and the site spends its budget again."""
    operator, sites = make_federation(tmp_path, privacy=PrivacyConfig(epsilon=1e3, noise=2.0, sample=0.5))
    asked = make_programme(rounds=2, task=TASK)
    codec = codec_of(operator.model, asked.task)
    grid = SecureGrid(make_grid(sites), min_sites=3)
    run_rounds(grid, operator, codec, asked, tmp_path / "run")
    for site in sites.values():
        path = site.folder / LEDGER
        if left is None:
            path.unlink()
        else:
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
    with pytest.raises(TooFewSites, match=Reason.BUDGET.value):
        run_rounds(grid, operator, codec, asked.model_copy(update={"lost": 0}), tmp_path / "again")
    for site in sites.values():
        assert len(Ledger(site.folder / LEDGER, 1e3, 1e-5).charges) == (left or 0), "nothing was done"


def test_a_ledger_and_a_log_that_were_both_rolled_back_stop_the_site(tmp_path: Path) -> None:
    """The attack: bring back a copy of the site's whole folder; the others remember what they saw of its log."""
    operator, sites = make_federation(tmp_path, privacy=PrivacyConfig(epsilon=1e3, noise=2.0, sample=0.5))
    asked = make_programme(rounds=1, task=TASK)
    codec = codec_of(operator.model, asked.task)
    victim, *_ = sites.values()
    copy = tmp_path / "copy"

    def go(name: str) -> None:
        run_rounds(SecureGrid(make_grid(sites), min_sites=3), operator, codec, asked, tmp_path / name)

    go("first")
    shutil.copytree(victim.folder, copy)
    go("second")
    spent = Ledger(victim.folder / LEDGER, 1e3, 1e-5).spent
    today = victim.folder.rename(tmp_path / "today")
    shutil.copytree(copy, victim.folder)
    with pytest.raises(TooFewSites, match=Reason.ROLLBACK.value):
        go("third")
    back = Ledger(victim.folder / LEDGER, 1e3, 1e-5)
    assert 0 < back.spent < spent, "nothing more was done"
    said = last_entry(victim.folder / "audit.jsonl", "refused")
    assert said is not None
    assert "Bring back the log and the ledger" in said["facts"]["detail"]
    shutil.rmtree(victim.folder)
    today.rename(victim.folder)
    go("fourth")


def test_a_claim_about_a_log_counts_only_with_the_signature_of_the_log_s_own_site(tmp_path: Path) -> None:
    """Or one site could stop another for ever."""
    _, sites = make_federation(tmp_path)
    policy = load_policy(next(iter(sites.values())).folder)
    rules, key = policy.rules(), load_signing_key(policy.signing_key)
    site, peer = rules.site, next(iter(rules.peers))
    mine = signed_head(rules, key, 3, "a" * 64)
    assert heads_in({site: mine}, {site: public_hex(key)}) == {site: mine}
    assert not heads_in({site: mine}, {site: rules.peers[peer]})
    assert not heads_in({peer: mine}, {peer: public_hex(key)}), "it names the site"
    assert not heads_in({site: mine.model_copy(update={"number": 4})}, {site: public_hex(key)})


def test_a_ledger_that_has_more_than_the_log_is_taken_and_another_one_is_not(tmp_path: Path) -> None:
    """A crash between charge and log leaves more; a ledger of other charges is not this site's."""
    ledger, audit = Ledger(tmp_path / LEDGER, 10.0, 1e-5), AuditLog(tmp_path / "audit.jsonl")
    check_ledger(ledger, audit.path)
    ledger.charge("train", noise=4.0, rate=0.5, steps=3)
    write_receipt(ledger, audit, "1")
    ledger.charge("train", noise=4.0, rate=0.5, steps=3)
    check_ledger(ledger, audit.path)
    ledger.path.unlink()
    ledger.charge("train", noise=40.0, rate=0.5, steps=3)
    with pytest.raises(Exception, match="budget"):
        check_ledger(ledger, audit.path)
