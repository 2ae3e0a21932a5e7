"""The audit log knows what was spent, whatever becomes of the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlfm.federated.audit import AuditLog, verify
from distlfm.federated.refused import Reason
from distlfm.federated.rounds import run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.settings import PrivacyConfig
from distlfm.federated.site.ledger import Ledger
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
