"""What is bad costs itself and ends no run: not the first block, nor the only one left, nor one that wants memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlfm.cluster.blocks.job import BlockDone, Event, Failure, Past, RowsSetAside, death
from distlfm.cluster.blocks.ledger import RETURNS, BlockLedger
from distlfm.cluster.blocks.rescue import Attempt, Rescue, Run
from distlfm.cluster.blocks.serial import SerialPool
from distlfm.errors import UsageError, WorkError
from distlfm.runtime.process import Stop
from tests.support.pool_toy import ToyJob, results

DIED = death("killed")


def worked(job: ToyJob, blocks: list[int] | None = None) -> list[Event]:
    return list(SerialPool().work(job, list(range(job.num_blocks)) if blocks is None else blocks, Stop()))


def aside(events: list[Event]) -> list[int]:
    return [event.block for event in events if isinstance(event, RowsSetAside)]


def told(ledger: BlockLedger, rescue: Rescue, failure: Failure | None = None) -> list[Event]:
    return list(ledger.record(rescue, {}, failure, 1.0, "here:1", 2))


@pytest.mark.parametrize("bad", [[0], [0, 1, 2], [3]])
def test_blocks_of_one_bad_row_cost_themselves_wherever_they_are(tmp_path: Path, bad: list[int]) -> None:
    events = worked(ToyJob(tmp_path, num_blocks=4, block=1, rows=dict.fromkeys(bad, "usage")))
    assert sorted(aside(events)) == bad
    assert results(tmp_path) == {row: "-" if row in bad else str(row * row) for row in range(4)}


def test_a_bad_block_that_alone_is_missing_is_set_aside_when_the_run_goes_on(tmp_path: Path) -> None:
    events = worked(ToyJob(tmp_path, block=1, rows={2: "usage"}, earlier=Past(answered=True)), [2])
    assert aside(events) == [2]


def test_a_call_that_is_wrong_for_all_ends_the_run_after_few_blocks(tmp_path: Path) -> None:
    wrong = dict.fromkeys(range(6 * 32), "usage")
    with pytest.raises(UsageError, match="row 31 is bad"):
        worked(ToyJob(tmp_path, num_blocks=6, block=32, rows=wrong))
    assert {line.split()[0] for line in (tmp_path / "log").read_text().splitlines()} == {"0", "1"}
    with pytest.raises(UsageError, match="is bad"):
        worked(ToyJob(tmp_path, num_blocks=3, block=1, rows=wrong))
    assert results(tmp_path) == {}


def test_a_block_that_kills_workers_is_left_missing_and_told_after_all_others_are_done(tmp_path: Path) -> None:
    ledger, done = BlockLedger(ToyJob(tmp_path, num_blocks=4, block=2), range(4)), []
    with pytest.raises(WorkError, match=r"Block 1 fails as a whole.*fewer --workers"):  # noqa: PT012 - until it ends
        while (rescue := ledger.take()) is not None:
            deadly = rescue.block == 1 and isinstance(rescue.action, Run)
            done += [e.block for e in told(ledger, rescue, DIED if deadly else None) if isinstance(e, BlockDone)]
    assert sorted(done) == [0, 2, 3]
    assert ledger.left == 1


def test_a_block_that_ran_out_of_memory_waits_until_nothing_else_is_in_hand(tmp_path: Path) -> None:
    ledger = BlockLedger(ToyJob(tmp_path, num_blocks=3, block=2), range(3))
    hungry, other = ledger.take(), ledger.take()
    assert hungry is not None
    assert other is not None
    told(ledger, hungry, death("no memory", starved=True))
    third = ledger.take()
    assert third is not None
    assert (third.block, ledger.waiting, ledger.take()) == (2, 0, None)
    told(ledger, other)
    assert (ledger.solitary, ledger.waiting, ledger.take()) == (True, 0, None)
    told(ledger, third)
    assert ledger.waiting == 1
    assert ledger.take() is hungry
    assert (ledger.waiting, ledger.take()) == (0, None)
    assert [type(event) for event in told(ledger, hungry)] == [BlockDone]
    assert ledger.left == 0


def test_workers_lost_with_their_nodes_count_against_a_block_only_after_a_few(tmp_path: Path) -> None:
    ledger = BlockLedger(ToyJob(tmp_path, num_blocks=1, block=2), [0])
    for _ in range(2):  # twice whole
        for _ in range(RETURNS):
            rescue = ledger.take()
            assert rescue is not None
            assert ledger.give_back(rescue)
        rescue = ledger.take()
        assert rescue is not None
        assert isinstance(rescue.action, Run)
        assert not ledger.give_back(rescue)
        told(ledger, rescue, DIED)
    rescue = ledger.take()
    assert rescue is not None
    assert rescue.action == Attempt(0, (0,))
