"""What is spent of the patients' privacy, and that it stays spent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from distlfm.errors import WorkError
from distlfm.federated.site.accounting import Cost, epsilon
from distlfm.federated.site.ledger import BudgetSpent, Ledger


def test_a_charge_is_on_the_disk_and_adds_up(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", budget=10.0, delta=1e-5)
    first = ledger.charge("train", noise=4.0, rate=0.5, steps=10, run="7")
    second = ledger.charge("figures", noise=10.0, rate=1.0, steps=3, run="7")
    again = Ledger(tmp_path / "ledger.jsonl", budget=10.0, delta=1e-5)
    assert 0 < first < second == again.spent
    assert second == pytest.approx(epsilon([Cost(4.0, 0.5, 10), Cost(10.0, 1.0, 3)], 1e-5))
    assert [one.what for one in again.charges] == ["train", "figures"]
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o600


def test_what_the_budget_does_not_pay_for_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, budget=1.0, delta=1e-5)
    with suppress(BudgetSpent):
        while True:
            ledger.charge("train", noise=5.0, rate=0.5, steps=5)
    before = path.read_bytes()
    for restarted in (ledger, Ledger(path, budget=1.0, delta=1e-5)):
        with pytest.raises(BudgetSpent, match="privacy budget"):
            restarted.charge("train", noise=5.0, rate=0.5, steps=5)
    assert path.read_bytes() == before
    assert 0.5 < Ledger(path, budget=1.0, delta=1e-5).spent <= 1.0


def test_many_processes_together_spend_no_more_than_the_budget(tmp_path: Path) -> None:
    def charge(number: int) -> bool:
        try:
            Ledger(tmp_path / "ledger.jsonl", 1.0, 1e-5).charge("train", noise=5.0, rate=0.5, steps=5, run=str(number))
        except BudgetSpent:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(charge, range(24)))
    ledger = Ledger(tmp_path / "ledger.jsonl", 1.0, 1e-5)
    assert ledger.spent <= 1.0
    assert len(ledger.charges) == sum(taken) < 24


def test_a_changed_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, 10.0, 1e-5)
    for _ in range(3):
        ledger.charge("train", noise=5.0, rate=0.5, steps=5)
    path.write_text(path.read_text().replace('"noise": 5.0', '"noise": 50.0', 1))
    with pytest.raises(WorkError, match="line 2"):
        ledger.charge("train", noise=5.0, rate=0.5, steps=5)


def test_a_line_that_was_cut_by_a_crash_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, 10.0, 1e-5)
    ledger.charge("train", noise=5.0, rate=0.5, steps=5)
    with path.open("a") as file:
        file.write('{"what": "train", "noi')
    ledger.charge("train", noise=5.0, rate=0.5, steps=5)
    assert [one.steps for one in ledger.charges] == [5, 5]


def test_a_budget_buys_what_the_documentation_says() -> None:
    """Rounded so that the stated noise stays within the stated ε."""
    text = (Path(__file__).parents[2] / "docs" / "federation.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    start = [row[0] for row in rows].index("ε")
    rounds = [int(cell.split()[0]) for cell in rows[start][1:]]
    programmes = rows[start + 2 : start + 4]
    assert [row[0] for row in programmes] == ["1", "4"]
    for budget, *multipliers in programmes:
        for number, multiplier in zip(rounds, multipliers, strict=True):
            assert 0.98 * float(budget) < epsilon([Cost(float(multiplier), 1.0, number)], 1e-5) <= float(budget)
    start = [row[0] for row in rows].index("noise_multiplier")
    updates = rows[start + 2 : start + 5]
    assert [row[0] for row in updates] == ["4", "8", "16"]
    for multiplier, *told in updates:
        spent = [epsilon([Cost(float(multiplier) / 2, 1.0, number)], 1e-5) for number in (1, 5, 10)]
        assert [float(one) for one in told] == pytest.approx(spent, abs=0.01)
        assert all(float(one) >= each for one, each in zip(told, spent, strict=True))
    for models, told in ((1, "ε 0.39"), (5, "0.93 for five")):
        assert told in text
        spent_on_figures = epsilon([Cost(20.0, 1.0, 5 * models)], 1e-5)
        assert 0 <= float(told.removeprefix("ε ").split()[0]) - spent_on_figures < 0.01
