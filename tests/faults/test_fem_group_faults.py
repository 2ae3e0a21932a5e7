"""Helper groups when a rank, a verb or the owner fails."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.errors import StartError, UsageError, WorkError
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.fem.group.starting import Settings, admit_ranks
from distlfm.solvers.fem.group.wire import Message, greet_owner
from tests.support.importing import import_environment

pytestmark = pytest.mark.slow

SERVICE = "tests.support.fem_test_service"
MARK = "FEM_GROUP_TEST_MARK"


class Marked:
    """Starts groups whose processes, wherever they go, carry a mark that finds them."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.environment = {**import_environment(), MARK: self.mark}

    def start(self, ranks: int, **options: Any) -> Group:
        return Group.start(ranks, service=SERVICE, environment=self.environment, **options)

    def left(self) -> list[int]:
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (directory / "environ").read_bytes():
                    found.append(int(directory.name))
        return found


@pytest.fixture
def marked() -> Marked:
    return Marked()


def within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def shared_memory(group: Group) -> set[Path]:
    """The files of shared memory through which the ranks of a group talk to each other."""
    mapped = [line.split()[-1] for pid in group.pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {Path(name) for name in mapped if "vader_segment." in name}


def places(group: Group) -> list[Any]:
    return [reply.header["rank"] for reply in group.call("where")]


@pytest.mark.parametrize(("ranks", "killed"), [(1, 0), (3, 1)])
def test_killed_rank_is_named_nothing_is_left_and_a_restart_answers_the_same(
    marked: Marked, ranks: int, killed: int
) -> None:
    with marked.start(ranks) as group:
        first, shared = places(group), shared_memory(group)
        assert len(shared) == ranks or ranks == 1
        os.kill(group.pids[killed], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WorkError, match=rf"Rank {killed} .*signal 9"):
            group.call("where")
        assert time.monotonic() - start < 5
        assert not group.alive
        assert marked.left() == []
        assert not any(path.exists() for path in shared)
        with pytest.raises(WorkError, match="restart"):
            group.call("where")
        group.restart()
        assert group.alive
        assert places(group) == first
        shared = shared_memory(group)
    assert marked.left() == []
    assert not any(path.exists() for path in shared)


def test_rank_killed_while_others_wait_for_it_in_mpi_is_named(marked: Marked) -> None:
    with marked.start(3) as group:
        places(group)
        killer = threading.Timer(0.5, os.kill, (group.pids[0], signal.SIGKILL))
        killer.start()
        start = time.monotonic()
        with pytest.raises(WorkError, match=r"Rank 0 .*signal 9.*wait_for_others"):
            group.call("wait_for_others", {"seconds": 60})
        assert time.monotonic() - start < 6
        assert marked.left() == []


def test_killed_launcher_leaves_neither_ranks_nor_shared_memory(marked: Marked) -> None:
    with marked.start(2) as group:
        places(group)
        shared = shared_memory(group)
        assert len(shared) == 2
        assert group._running is not None
        os.kill(group._running.job.process.pid, signal.SIGKILL)
        with pytest.raises(WorkError):
            group.call("wait_for_others", {"seconds": 60})
        assert marked.left() == []
        assert not any(path.exists() for path in shared)


def test_last_words_of_a_rank_that_ends_are_told(marked: Marked) -> None:
    with marked.start(2) as group, pytest.raises(WorkError, match=r"(?s)Rank 1 .*exit code 7.*out of ideas"):
        group.call("end", {"who": 1})
    assert marked.left() == []


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "waiting inside MPI"])
def test_ranks_end_with_their_owner(marked: Marked, busy: bool) -> None:
    program = (
        "import sys, threading, time\n"
        "from distlfm.solvers.fem.group.owner import Group\n"
        f"group = Group.start(2, service={SERVICE!r})\n"
        "group.call('where')\n"
        f"call = threading.Thread(target=lambda: group.call('wait_for_others', {{'seconds': 60}}))\n"
        f"{'call.start(); time.sleep(0.5)' if busy else ''}\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], env=marked.environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    assert len(marked.left()) >= 4  # owner, mpirun, two ranks
    owner.kill()
    owner.wait()
    assert within(3, lambda: marked.left() == [])


def test_owner_that_forgets_to_close_leaves_nothing(marked: Marked) -> None:
    program = (
        f"from distlfm.solvers.fem.group.owner import Group; Group.start(2, service={SERVICE!r}).call('where'); 1 / 0"
    )
    start = f"from distlfm.solvers.fem.group.owner import Group; g = Group.start(2, service={SERVICE!r})"
    group = f"{start}; g.call('where'); 1/0"
    for text in (program, group):
        done = subprocess.run([sys.executable, "-c", text], env=marked.environment, capture_output=True, check=False)
        assert b"ZeroDivisionError" in done.stderr
        assert marked.left() == []


def test_fork_of_the_owner_neither_ends_the_group_nor_keeps_it(marked: Marked) -> None:
    group = marked.start(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        group.close()
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        assert places(group) == [0]
        group._running.channels[0].close()  # type: ignore[union-attr]
        assert within(3, lambda: marked.left() == [])
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
        group.close()


def test_failure_of_all_ranks_is_raised_here_and_the_group_goes_on(marked: Marked) -> None:
    with marked.start(2) as group:
        for who in ([0, 1], [1]):
            with pytest.raises(UsageError, match="The answer is wrong") as caught:
                group.call("fail_on", {"who": who})
            assert caught.value.fix == "Give another."
            assert places(group) == [0, 1]
        with pytest.raises(UsageError, match="no verb 'nothing'"):
            group.call("nothing")
        with pytest.raises(WorkError, match="KeyError"):
            group.call("keep", {})
        assert places(group) == [0, 1]


def test_failure_of_one_rank_that_others_wait_for_ends_the_group_after_a_while(marked: Marked) -> None:
    with marked.start(3, grace=1.0) as group:
        places(group)
        start = time.monotonic()
        with pytest.raises(WorkError, match=r"Rank 2 .*The answer is wrong.*Ranks 0 and 1 kept waiting"):
            group.call("fail_on", {"who": [2], "wait": True})
        assert time.monotonic() - start < 5
        assert marked.left() == []
        group.restart()
        assert places(group) == [0, 1, 2]


def test_time_limit_of_a_call_holds(marked: Marked) -> None:
    with marked.start(2) as group:
        places(group)
        start = time.monotonic()
        with pytest.raises(WorkError, match=r"Ranks 0 and 1 .*did not answer 'wait_for_others' in time"):
            group.call("wait_for_others", {"seconds": 60}, timeout=0.5)
        assert time.monotonic() - start < 5
        assert marked.left() == []


def test_stopped_rank_that_does_not_even_read_cannot_hold_a_call_beyond_its_time_limit(marked: Marked) -> None:
    with marked.start(1) as group:
        os.kill(group.pids[0], signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(WorkError, match="in time"):
            group.call("ping", arrays={"x": np.zeros(1_000_000)}, timeout=0.5)
        assert time.monotonic() - start < 5
    assert marked.left() == []


def test_interrupted_call_ends_the_group(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-read answer cannot be taken up again."""
    with marked.start(1) as group:

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Group, "_collect", interrupt)
        with pytest.raises(KeyboardInterrupt):
            group.call("ping")
        assert not group.alive
        assert marked.left() == []


def test_request_in_the_middle_of_another_is_refused_and_one_for_later_is_not_lost(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a destructor would, that the garbage collector runs while an answer is awaited."""
    with marked.start(1) as group:
        original, refused = Group._collect, []

        def collect(self: Group, *arguments: Any) -> None:
            monkeypatch.setattr(Group, "_collect", original)
            with pytest.raises(WorkError, match=r"later\(\)") as caught:
                self.call("ping")
            refused.append(caught.value)
            self.later("keep", {"what": "late"})
            original(self, *arguments)

        monkeypatch.setattr(Group, "_collect", collect)
        assert group.call("kept")[0].header == {"kept": []}
        assert len(refused) == 1
        assert group.call("kept")[0].header == {"kept": ["late"]}


def test_group_that_cannot_start_says_why_and_leaves_nothing(marked: Marked) -> None:
    marked.environment["PYTHONHOME"] = "/nowhere"
    directories = set(Path("/tmp").glob("distlfm-*"))
    for ranks in (1, 2):
        start = time.monotonic()
        with pytest.raises(StartError, match="did not start"):
            marked.start(ranks)
        assert time.monotonic() - start < 10
    with pytest.raises(StartError, match=r"did not start: .*Cannot assign requested address"):
        marked.start(1, transport="tcp", host="192.0.2.1")
    assert marked.left() == []
    assert set(Path("/tmp").glob("distlfm-*")) <= directories


def test_strangers_at_the_door_are_turned_away_and_keep_nobody_waiting() -> None:
    """Those without the secret, those with nonsense, and those that say nothing, before the rank comes."""

    class Waiting:
        def ended(self) -> bool:
            return False

    secret = secrets.token_bytes(32)
    settings = Settings(1, "auto", "tcp", 5.0, 1.0, None, SERVICE, {})
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    strangers = [socket.create_connection(address) for _ in range(3)]
    strangers[1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n")

    def wrong() -> None:
        with contextlib.suppress(Exception):
            greet_owner(strangers[2], bytes(32), 0, time.monotonic() + 3)

    def right() -> None:
        time.sleep(0.2)
        sock = socket.create_connection(address)
        greet_owner(sock, secret, 0, time.monotonic() + 3).send(Message({"pid": 1}))

    threads = [threading.Thread(target=target) for target in (wrong, right)]
    for thread in threads:
        thread.start()
    start = time.monotonic()
    with listener:
        admitted = admit_ranks(listener, Waiting(), secret, settings)  # type: ignore[arg-type]
    assert time.monotonic() - start < 2
    assert [about for _, about in admitted] == [{"pid": 1}]
    for thread in threads:
        thread.join()
    for sock in strangers:
        sock.close()
