"""Ray's own side of its pool: places, groups, memory, and who may join. What every pool does is in tests/contracts."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from distlfm.cluster.blocks.job import BlockDone, Event, RowsSetAside, Started, WorkerLost
from distlfm.cluster.blocks.serial import SerialPool
from distlfm.cluster.ray.contact import contact
from distlfm.cluster.ray.pool import RayPool
from distlfm.cluster.ray.session import RaySession, ray_session
from distlfm.config import build
from distlfm.errors import UsageError, WorkError
from distlfm.runs.settings import GenerateConfig
from distlfm.runtime.process import Stop
from distlfm.store.inspection import verify
from distlfm.verbs.generate import GenerateJob, open_store
from tests.support.importing import import_environment
from tests.support.pool_toy import ToyJob, results

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    with ray_session(cpus=2) as ray:
        yield ray


def worked(pool: RayPool | SerialPool, job: ToyJob, blocks: Sequence[int] | None = None) -> list[Event]:
    return list(pool.work(job, range(job.num_blocks) if blocks is None else blocks, Stop()))


def set_aside(events: list[Event]) -> dict[int, dict[int, str]]:
    return {event.block: dict(event.reasons) for event in events if isinstance(event, RowsSetAside)}


def test_a_block_that_needs_the_memory_of_all_is_done_at_the_end_with_the_machine_for_itself(
    session: RaySession, tmp_path: Path
) -> None:
    pool = RayPool(session)
    events = worked(pool, ToyJob(tmp_path, num_blocks=4, block=2, seconds=0.3, crowded=0))
    assert [event.block for event in events if isinstance(event, BlockDone)][-1] == 0
    assert results(tmp_path) == {0: "0 1", 1: "4 9", 2: "16 25", 3: "36 49"}
    assert set_aside(events) == {}
    assert pool.workers == 0


def test_a_worker_killed_while_a_store_is_generated_changes_no_number(session: RaySession, tmp_path: Path) -> None:
    content = {"mechanism": {"kind": "transcription"}, "num_outputs": 2, "instances": 160, "points": 50}
    config = build(GenerateConfig, {**content, "run": {"block": 10}})
    calm, store = (open_store(config, tmp_path / name) for name in ("calm", "store"))
    list(SerialPool().work(GenerateJob.of(config, calm), range(16), Stop()))
    events = []
    for event in RayPool(session).work(GenerateJob.of(config, store), range(16), Stop()):
        events.append(event)
        if isinstance(event, Started) and sum(isinstance(one, Started) for one in events) == 3:
            os.kill(int(event.worker.split(":")[1]), signal.SIGKILL)
    assert sum(isinstance(event, WorkerLost) for event in events) == 1
    assert verify(store).flaws == []
    for name in calm.variables.keys() - {"wall_s"}:
        np.testing.assert_array_equal(store.read(name), calm.read(name), err_msg=name)


def test_workers_that_die_while_they_are_opened_end_the_run(session: RaySession, tmp_path: Path) -> None:
    pool = RayPool(session, workers=1)
    assert pool.planned(ToyJob(tmp_path), 6) == 1
    with pytest.raises(WorkError, match="No worker can be started: its process ended unexpectedly"):
        worked(pool, ToyJob(tmp_path, refuse="die"))


def test_a_place_where_no_worker_can_be_opened_is_left_alone(session: RaySession, tmp_path: Path) -> None:
    pool, events = RayPool(session), []
    for event in pool.work(ToyJob(tmp_path, num_blocks=4, seconds=0.5, refuse="second"), range(4), Stop()):
        events.append(event)
        assert pool.workers == (0 if isinstance(event, WorkerLost) and len(events) == 1 else 1), "one alone is up"
    assert len(results(tmp_path)) == 4
    lost = [event.why for event in events if isinstance(event, WorkerLost)]
    assert len(lost) <= 1
    assert all("FileExistsError" in why for why in lost)


def test_a_group_of_processes_gets_its_places_and_gives_them_back(session: RaySession, tmp_path: Path) -> None:
    job = ToyJob(tmp_path, num_blocks=3, cpus=2, grouped=True, rows={5: "once:mark"})
    pool = RayPool(session)
    assert pool.planned(job, 3) == 1
    events = worked(pool, job)
    assert sum(isinstance(event, WorkerLost) for event in events) == 1
    assert len(results(tmp_path)) == 3
    until = time.monotonic() + 10
    while session.ray.available_resources().get("CPU") != 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert session.ray.available_resources()["CPU"] == 2


def test_a_worker_that_fits_no_node_is_refused(session: RaySession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes 3 CPUs, and the largest node has 2"):
        worked(RayPool(session), ToyJob(tmp_path, cpus=3))


def test_the_driver_keeps_no_answers(session: RaySession, tmp_path: Path) -> None:
    held = 0
    for event in RayPool(session).work(ToyJob(tmp_path, num_blocks=300, block=1), range(300), Stop()):
        if isinstance(event, BlockDone) and event.block == 290:
            held = sum(type(thing) is session.ray.ObjectRef for thing in gc.get_objects())
    assert held < 10


JOIN = """
import sys
from pathlib import Path
from tests.support.pool_toy import ToyJob, results
from distlfm.cluster.ray.pool import RayPool
from distlfm.cluster.ray.session import ray_session
from distlfm.runtime.process import Stop
for address in (sys.argv[1], "auto"):
    with ray_session(address) as session:
        assert not session.local
        print(session.words)
        if address == "auto":
            list(RayPool(session).work(ToyJob(Path(sys.argv[2])), range(6), Stop()))
"""


def test_another_driver_with_the_token_joins_by_address_and_by_itself(session: RaySession, tmp_path: Path) -> None:
    environment = {**import_environment(), "RAY_ADDRESS": session.address}
    command = [sys.executable, "-c", JOIN, session.address, str(tmp_path)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [f"the cluster at {session.address} (1 node, 2 CPUs)"] * 2
    assert len(results(tmp_path)) == 6
    assert session.node_cpus(), "the cluster outlives a driver that joined"


@pytest.mark.parametrize("token", [None, "0" * 64])
def test_nobody_joins_without_the_token(
    session: RaySession, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token is None:
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    with pytest.raises(WorkError, match="refused this process's token"):
        contact(session.address)


def test_an_address_without_a_cluster_is_told_at_once() -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(WorkError, match=f"There is no Ray cluster at 127.0.0.1:{port}"):
        contact(f"127.0.0.1:{port}")
    with pytest.raises(WorkError, match=r"There is no Ray cluster at nowhere\.invalid:6379"):
        contact("nowhere.invalid:6379")
    with pytest.raises(UsageError, match="is not an address"):
        contact("somewhere")
    assert time.monotonic() - began < 20


def test_a_port_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WorkError, match="did not answer as a Ray cluster within 2 s"):
            contact(address, patience=2.0)


def test_a_session_inside_a_session_is_the_same(session: RaySession) -> None:
    with ray_session() as inner:
        assert inner.address == session.address
    assert session.node_cpus()
    with pytest.raises(UsageError, match="connected to the Ray at"), ray_session("127.0.0.1:1"):
        pass
