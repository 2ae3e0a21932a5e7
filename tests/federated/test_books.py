"""What was spent is known twice: a ledger that lacks what the audit log knows stops the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog, last_entry, verify
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.server_app import operator_at_link, perform
from distlfm.federated.settings import PrivacyConfig
from distlfm.federated.site.ledger import Ledger
from distlfm.federated.site.receipts import check_ledger
from distlfm.federated.site.work import LEDGER
from tests.federated.test_epochs import asked
from tests.support.site_toy import make_federation, make_grid, make_programme


@pytest.mark.parametrize("how", ["removed", "brought back", "emptied"])
def test_a_site_whose_ledger_was_removed_or_brought_back_answers_nothing(tmp_path: Path, how: str) -> None:
    operator, sites = make_federation(tmp_path, privacy=PrivacyConfig(epsilon=8.0))
    assert isinstance(asked(operator, sites, list(sites), "query.cohort", 1), tuple)
    ledger = sites["east"].folder / LEDGER
    yesterday = ledger.read_bytes()
    assert isinstance(asked(operator, sites, list(sites), "query.cohort", 2), tuple)
    if how == "removed":
        ledger.unlink()
    else:
        ledger.write_bytes(yesterday if how == "brought back" else b"")
    answer = asked(operator, sites, list(sites), "query.cohort", 3)
    assert Reason.BUDGET.value in answer
    refused = [
        one["facts"] for one in verify(sites["east"].folder / "audit.jsonl").entries if one["event"] == "refused"
    ]
    assert refused[-1]["reason"] == "BUDGET"
    assert "has noted 2 charges" in refused[-1]["detail"]
    assert "Bring back the ledger of today" in refused[-1]["detail"]


def test_a_log_of_version_0_1_knows_that_there_was_a_ledger(tmp_path: Path) -> None:
    audit, ledger = AuditLog(tmp_path / "audit.jsonl"), Ledger(tmp_path / LEDGER, 10.0, 1e-5)
    audit.append("privacy", "7", epsilon=1.0, delta=1e-5)
    with pytest.raises(Refused, match="budget"):
        check_ledger(ledger, audit.path)
    ledger.charge("train", noise=4.0, rate=0.5, steps=3)
    check_ledger(ledger, audit.path)


def test_the_newest_entry_of_a_kind_is_found_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.federated.audit.PIECE", 100)
    audit = AuditLog(tmp_path / "audit.jsonl")
    assert last_entry(audit.path, "privacy") is None
    for number in range(3):
        audit.append("privacy", str(number))
        audit.append("mask", "9", purpose="privacy")
    for path, run in ((audit.path, "2"),):
        found = last_entry(path, "privacy")
        assert found is not None
        assert found["run"] == run
    first = last_entry(audit.path, "nothing")
    assert first is None


def test_a_path_of_an_operator_tells_nothing_of_the_links_files(tmp_path: Path) -> None:
    """Whoever holds a token could else ask which files exist there; the link's own log says what was wrong."""
    operator, sites = make_federation(tmp_path)
    secret, closed, text = tmp_path / "shadow", tmp_path / "closed", tmp_path / "text.pt"
    secret.write_text("root:x")
    text.write_bytes(b"PK\x03\x04 no checkpoint")
    closed.mkdir()
    audit, said = AuditLog(tmp_path / "audit.jsonl"), set()
    paths = [secret, closed, text, tmp_path / "missing", Path("/dev/zero"), secret / "below", Path("x" * 5000)]
    for path in paths:
        with pytest.raises(UsageError) as caught:
            operator_at_link(path, "7", audit)
        said.add(str(caught.value))
    assert len(said) == 1
    assert not any(str(path) in said.pop() for path in paths[:1])
    noted = [one["facts"] for one in verify(audit.path).entries]
    assert [one["what"] for one in noted][:3] == [f"operator {path}" for path in paths[:3]]
    assert noted[0]["why"] != noted[3]["why"]
    base = tmp_path / "base.pt"
    operator.save(base)
    programme = make_programme(kind="query", question="cohort", operator=str(base))
    assert perform(SecureGrid(make_grid(sites)), programme, tmp_path / "run", "7")["sites"] == 4
