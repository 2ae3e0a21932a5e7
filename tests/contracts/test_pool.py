"""What every pool keeps to, whoever does its work: this process, or actors of Ray."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from distlfm.cluster.blocks.job import BlockDone, BlockRetried, Event, Pool, RowsSetAside, Started, WorkerLost
from distlfm.cluster.blocks.serial import SerialPool
from distlfm.cluster.ray.pool import RayPool
from distlfm.cluster.ray.session import RaySession, ray_session
from distlfm.errors import DistlfmError, StartError, StorageError, UsageError
from distlfm.runtime.process import Stop
from tests.support.pool_toy import ToyJob, results

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    with ray_session(cpus=2) as ray:
        yield ray


@dataclass(frozen=True)
class Case:
    """A kind of pool. workers: that it has at once. session: of Ray, where workers are processes of their own."""

    workers: int
    session: RaySession | None = None

    def pool(self, grace: float = 10.0) -> Pool:
        return SerialPool(grace) if self.session is None else RayPool(self.session, self.workers, grace)

    def worked(self, job: ToyJob, blocks: Sequence[int] | None = None) -> list[Event]:
        return list(self.pool().work(job, range(job.num_blocks) if blocks is None else blocks, Stop()))


SERIAL = pytest.param(0, id="serial")
ONE_ACTOR, ACTORS = (pytest.param(count, id=f"ray-{count}", marks=pytest.mark.slow) for count in (1, 2))
COVERED = {SerialPool, RayPool}


@pytest.fixture(params=[SERIAL, ACTORS])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param, request.getfixturevalue("session")) if request.param else Case(1)


apart = pytest.mark.parametrize("case", [ACTORS], indirect=True)
"""Of pools whose workers are processes of their own, which can be killed."""


def set_aside(events: list[Event]) -> dict[int, dict[int, str]]:
    return {event.block: dict(event.reasons) for event in events if isinstance(event, RowsSetAside)}


def done(events: list[Event]) -> list[BlockDone]:
    return [event for event in events if isinstance(event, BlockDone)]


def squares(job: ToyJob, *left_out: int) -> dict[int, str]:
    """What a job stores."""
    rows = ["-" if row in left_out else str(row * row) for row in range(job.num_blocks * job.block)]
    return {b: " ".join(rows[b * job.block : (b + 1) * job.block]) for b in range(job.num_blocks)}


def opened(folder: Path) -> list[int]:
    """The processes in which workers were opened."""
    return [int(path.suffix[1:]) for path in folder.glob("up.*")]


def test_no_pool_is_left_out_here() -> None:
    files = [path for part in ("distlfm", "federated", "launch") for path in (PROJECT / part).rglob("*.py")]
    found = {name for path in files for name in re.findall(r"^class (\w+)\(Pool\)", path.read_text(), re.MULTILINE)}
    assert found == {one.__name__ for one in COVERED}


def test_every_block_that_is_asked_for_is_done_once_and_its_event_says_by_whom(case: Case, tmp_path: Path) -> None:
    job = ToyJob(tmp_path, num_blocks=6, block=2)
    events = case.worked(job, [5, 0, 3, 2])
    assert sorted(event.block for event in done(events)) == [0, 2, 3, 5]
    assert sorted(event.block for event in events if isinstance(event, Started)) == [0, 2, 3, 5]
    assert sorted(line.split()[0] for line in (tmp_path / "log").read_text().splitlines()) == ["0", "2", "3", "5"]
    assert results(tmp_path) == {block: text for block, text in squares(job).items() if block in (0, 2, 3, 5)}
    for event in done(events):
        assert event.worker == f"{socket.gethostname()}:{event.report['pid']}"
        assert (event.report["pid"] == os.getpid()) == (case.session is None)
        assert case.session is None or event.report["threads"] == "1"
    assert opened(tmp_path)
    assert all((tmp_path / f"closed.{number}").exists() for number in opened(tmp_path)), "a worker was not closed"


@pytest.mark.parametrize("case", [SERIAL, ONE_ACTOR, ACTORS], indirect=True)
def test_a_bad_row_costs_itself_with_its_reason_whatever_the_number_of_workers(case: Case, tmp_path: Path) -> None:
    rows = {1: "value", 6: "odd", 9: "exit", 13: "usage", 14: "work"}
    job = ToyJob(tmp_path, rows=rows)
    events = case.worked(job)
    assert results(tmp_path) == squares(job, *rows)
    assert set_aside(events) == {
        0: {1: "ValueError: row 1 is bad"},
        1: {2: "Unpicklable: row 6 is odd"},
        2: {1: "SystemExit: 3"},
        3: {1: "row 13 is bad", 2: "row 14 is bad"},
    }
    assert sorted(event.block for event in done(events)) == list(range(6))
    assert {event.block for event in events if isinstance(event, BlockRetried)} == {0, 1, 2, 3}
    assert all(event.report["failed"] == len(set_aside(events).get(event.block, {})) for event in done(events))


def test_the_costliest_block_goes_first(case: Case, tmp_path: Path) -> None:
    events = case.worked(ToyJob(tmp_path, num_blocks=3, weights=(1.0, 3.0, 2.0)))
    assert [event.block for event in events if isinstance(event, Started)] == [1, 2, 0]


@pytest.mark.parametrize(
    ("case", "what", "kind"),
    [
        pytest.param(0, "storage", StorageError, id="serial-storage"),
        pytest.param(0, "start", StartError, id="serial-start"),
        pytest.param(2, "storage", StorageError, id="ray-2-storage", marks=pytest.mark.slow),
    ],
    indirect=["case"],
)
def test_what_no_row_is_to_blame_for_ends_the_run_and_keeps_its_kind(
    case: Case, tmp_path: Path, what: str, kind: type[DistlfmError]
) -> None:
    job = ToyJob(tmp_path, rows={5: what})
    with pytest.raises(kind, match="row 5 is bad"):
        case.worked(job)
    assert 1 not in results(tmp_path)
    assert results(tmp_path).items() <= squares(job).items(), "what is stored is whole"


def test_a_call_that_is_wrong_for_every_row_ends_the_run(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is bad"):
        case.worked(ToyJob(tmp_path, block=2, rows=dict.fromkeys(range(12), "usage")))
    assert results(tmp_path) == {}


def test_the_only_row_that_is_refused_ends_the_run_without_a_word_of_trying_again(case: Case, tmp_path: Path) -> None:
    events = case.pool().work(ToyJob(tmp_path, num_blocks=1, block=1, rows={0: "usage"}), [0], Stop())
    assert isinstance(next(events), Started)
    with pytest.raises(UsageError, match="row 0 is bad"):
        next(events)


def test_a_worker_that_refuses_to_be_opened_ends_the_run(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"It cannot be opened\."):
        case.worked(ToyJob(tmp_path, refuse="usage"))


def test_without_blocks_or_after_a_stop_nothing_is_opened(case: Case, tmp_path: Path) -> None:
    job, stop = ToyJob(tmp_path, refuse="usage"), Stop()
    assert case.worked(job, []) == []
    stop.request()
    assert list(case.pool().work(job, range(6), stop)) == []


@pytest.mark.parametrize(("grace", "seconds", "finished"), [(20.0, 0.8, True), (0.2, 60.0, False)])
def test_a_signal_lets_blocks_in_hand_finish_for_a_while_and_begins_none(
    case: Case, tmp_path: Path, grace: float, seconds: float, finished: bool
) -> None:
    in_hand: dict[int, str] = {}
    stored, expected, began = set[int](), set[int](), 0.0
    with Stop() as stop:
        for event in case.pool(grace).work(ToyJob(tmp_path, num_blocks=9, seconds=seconds), range(9), stop):
            if isinstance(event, Started):
                assert not stop.requested, "a block was begun after the stop"
                in_hand[event.block] = event.worker
            elif isinstance(event, BlockDone):
                del in_hand[event.block]
                stored.add(event.block)
            if len(set(in_hand.values())) == case.workers and not began:
                began, expected = time.monotonic(), {*stored, *(in_hand if finished else ())}
                # The serial pool works only when it is asked for the next event: the signal comes while it does.
                signalled(0.1 if case.session is None else 0.0)
    assert stop.signal is signal.SIGTERM
    assert time.monotonic() - began < 10
    assert set(results(tmp_path)) == expected
    assert case.session is not None or (tmp_path / f"closed.{os.getpid()}").exists()


def signalled(after: float) -> None:
    if after:
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_between_blocks_begins_no_other(case: Case, tmp_path: Path) -> None:
    stop, events = Stop(), list[Event]()
    for event in case.pool().work(ToyJob(tmp_path, num_blocks=9), range(9), stop):
        assert not (stop.requested and isinstance(event, Started))
        events.append(event)
        if isinstance(event, BlockDone):
            stop.request()
    assert {event.block for event in done(events)} == {one.block for one in events if isinstance(one, Started)}
    assert 1 <= len(results(tmp_path)) == len(done(events)) <= case.workers


def test_who_leaves_early_leaves_no_process_behind(case: Case, tmp_path: Path) -> None:
    pool = case.pool()
    events = pool.work(ToyJob(tmp_path, num_blocks=4, seconds=60.0), range(4), Stop())
    assert isinstance(next(events), Started)
    numbers = opened(tmp_path)
    assert numbers
    events.close()  # type: ignore[attr-defined]
    until = time.monotonic() + 10
    while time.monotonic() < until and any(_lives(number) for number in numbers):
        time.sleep(0.05)
    assert not any(_lives(number) for number in numbers)
    assert case.session is not None or (tmp_path / f"closed.{os.getpid()}").exists()
    assert results(tmp_path) == {}
    assert done(list(pool.work(ToyJob(tmp_path, num_blocks=1), [0], Stop()))), "the pool works again"


def _lives(number: int) -> bool:
    """Whether a process other than this one is there, and does not only wait to be buried."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return number != os.getpid() and state != "Z"


@apart
def test_the_block_of_a_worker_that_is_killed_is_done_again(case: Case, tmp_path: Path) -> None:
    chance = random.Random(11)
    job = ToyJob(tmp_path, num_blocks=5, seconds=0.4)
    victim, events = chance.randrange(4), list[Event]()
    for event in case.pool().work(job, range(5), Stop()):
        events.append(event)
        if isinstance(event, Started) and victim == 0:
            pid = int(event.worker.split(":")[1])
            threading.Timer(chance.uniform(0.0, 0.3), os.kill, (pid, signal.SIGKILL)).start()
        victim -= isinstance(event, Started)
    assert results(tmp_path) == squares(job)
    assert set_aside(events) == {}
    assert sorted(event.block for event in done(events)) == list(range(5))
    assert sum(isinstance(event, WorkerLost) for event in events) == 1
    assert sum(isinstance(event, BlockRetried) for event in events) == 1


@apart
def test_a_row_that_kills_its_worker_costs_only_itself(case: Case, tmp_path: Path) -> None:
    job = ToyJob(tmp_path, num_blocks=4, block=2, rows={3: "die"})
    events = case.worked(job)
    assert results(tmp_path) == squares(job, 3)
    assert list(set_aside(events)) == [1]
    assert "takes its worker down" in set_aside(events)[1][1]
    lost = [event.worker for event in events if isinstance(event, WorkerLost)]
    assert len(lost) == len(set(lost)) == 4, "twice with its block, twice alone"
