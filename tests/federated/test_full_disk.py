"""A disk that fills while a federation is at work: what cannot be written down is not answered, and all goes on."""

from __future__ import annotations

import asyncio
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from distlfm.errors import StorageError, UsageError, WorkError
from distlfm.federated.audit import AuditLog, verify
from distlfm.federated.link import control, processes, status, superlink
from distlfm.federated.link.control import Connection, Control
from distlfm.federated.link.gate import ALLOWED, DISK_FULL, Disk, Gate
from distlfm.federated.link.processes import NOT_LOGGED, Program, Supervisor
from distlfm.federated.link.service import only_one
from distlfm.federated.refused import Reason
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.mod import MASK, UNMASK
from distlfm.federated.settings import read_config
from distlfm.federated.setup.enrolment import Roster, write_handed
from distlfm.federated.setup.homes import Home, LinkHome
from distlfm.federated.simulation import run as simulate
from distlfm.federated.simulation.grid import TO_SERVER
from distlfm.federated.site import accounting
from distlfm.federated.site.ledger import Ledger
from distlfm.runtime.reporting import Silent, reporter_for
from tests.support.secure_sites import ask, local_grid, make_sites, request
from tests.support.site_toy import make_federation, make_programme
from tests.support.small_disks import disk, enlarge, mounts, use_up

SHIPPED = Path(__file__).parents[2] / "configs" / "federated" / "glucose.yaml"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "small", 2000) as place:
        yield place


def until_full(write: Callable[[], object]) -> tuple[int, str]:
    """How often something can be written, and what is said when there is no more space."""
    for times in range(1000):
        try:
            write()
        except StorageError as error:
            return times, error.cause
    raise AssertionError("the disk is too large")


@mounts
def test_of_an_audit_log_on_a_full_disk_no_line_is_half_written(small: Path) -> None:
    enlarge(small, 8)
    log = AuditLog(small / "audit.jsonl")
    written, told = until_full(lambda: log.append("mask", "7", sites=["east", "west"]))
    assert told == f"Cannot write the audit log in {small}: No space left on device."
    enlarge(small, 100)
    log.append("mask", "7")
    report = verify(log.path)
    assert report.flaws == []
    assert len(report.entries) == written + 1


@mounts
def test_a_ledger_on_a_full_disk_pays_for_nothing_and_forgets_nothing(small: Path) -> None:
    enlarge(small, 8)
    ledger = Ledger(small / "ledger.jsonl", budget=1e6, delta=1e-5)
    little = accounting.LEAST / 2  # what it costs is a formula, and soon computed
    paid, told = until_full(lambda: ledger.charge("train", noise=little, rate=0.5, steps=1))
    assert told == f"Cannot write the privacy ledger in {small}: No space left on device."
    assert len(ledger.charges) == paid > 0
    enlarge(small, 100)
    ledger.charge("train", noise=little, rate=0.5, steps=1)
    assert len(ledger.charges) == paid + 1


@mounts
@pytest.mark.parametrize("stage", ["keys", "shares", MASK, "consent", UNMASK])
def test_a_site_whose_disk_is_full_says_so_and_answers_nothing(stage: str, tmp_path: Path) -> None:
    nodes = make_sites(tmp_path / "sites")
    home, ballast = tmp_path / "sites" / "north", []
    content = {path.name: path.read_bytes() for path in home.iterdir()}
    shutil.rmtree(home)
    with disk(home, 64):
        for name, text in content.items():
            (home / name).write_bytes(text)
            (home / name).chmod(0o600)

        def full(message: Any) -> Any:
            """Fills the disk of the second site just before it gets the message."""
            record = message.content.config_records.get("secagg")
            if message.metadata.dst_node_id == 2 and record is not None and record["stage"] == stage and not ballast:
                ballast.append(use_up(home))
            return message

        wire = local_grid(nodes, on_request=full)
        grid = SecureGrid(wire)
        ask(grid, request())
        assert grid.reports[0].dropped == {2: Reason.DISK.value}
        said = [frame for frame in wire.wire if frame.node == 2 and frame.direction == TO_SERVER]
        assert said[-1].stage == stage
        assert len(said[-1].payload) < 1000
        ballast[0].unlink()
        ask(grid, request(round_=2))
        ask(grid, request(round_=3))  # what was lost in the middle of a sum is made anew in the next
        assert grid.reports[2].dropped == {}
        assert verify(home / "audit.jsonl").flaws == []


@mounts
def test_a_simulation_whose_disk_is_full_says_so_and_goes_on(small: Path, tmp_path: Path) -> None:
    operator, sites = make_federation(small)
    config = read_config(SHIPPED).model_copy(update={"programme": make_programme(rounds=1, lost=0)})
    ballast = use_up(small)
    with pytest.raises(StorageError, match=r"The disk of \S+ is full: .* Free space; then the same command goes on"):
        simulate.run_sites(config, operator, sites, tmp_path / "rounds", Silent())
    ballast.unlink()
    assert simulate.run_sites(config, operator, sites, tmp_path / "rounds", Silent()).done == 1


def test_a_simulation_goes_on_in_a_folder_in_which_nothing_but_its_lock_could_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object) -> None:
        raise StorageError("It went on.")

    monkeypatch.setattr(simulate, "base_operator", reached)
    (tmp_path / "lock").touch()
    with pytest.raises(StorageError, match="It went on"):
        simulate.simulate(SHIPPED, ["data=generated"], tmp_path)
    (tmp_path / "config.yaml").write_text("verb: federated\nwords: of another version\n")
    with pytest.raises(UsageError, match="another simulation"):
        simulate.simulate(SHIPPED, ["data=generated"], tmp_path)


class Turns:
    """Asks for a stop when all steps were taken, one at each look."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = [*steps]

    @property
    def requested(self) -> bool:
        if self._steps:
            self._steps.pop(0)()
            return False
        return True


@mounts
def test_a_supervisor_outlives_a_full_disk_and_tells_of_it(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DISK_SECONDS", 0.0)
    home, said = Home(small), io.StringIO()
    home.state.mkdir()
    lost = Program("lost", "distlfm", (), {}, small / "nowhere" / "lost.log")
    turns = Turns(lambda: use_up(small), int, int, (small / "ballast").unlink, int)
    Supervisor(home, [lost], reporter_for(said)).run(turns)  # type: ignore[arg-type]
    assert said.getvalue().splitlines() == [
        f"warning: No space left on device: {small}. {NOT_LOGGED}",
        f"warning: lost cannot be started (No such file or directory: {small / 'nowhere'}); tried again in 2 s.",
        "there is space again",
    ]
    assert '"state": "stopped"' in home.status.read_text()


@mounts
def test_status_says_that_a_running_role_has_no_space(small: Path) -> None:
    home = Home(small)
    with only_one(home):
        assert status._processes(home)["state"] == "running"
        use_up(small)
        assert status._processes(home)["state"] == f"refusing: No space left on device: {small}. {NOT_LOGGED}"


@mounts
@pytest.mark.parametrize("free", [0, 200])
def test_a_link_without_space_lets_all_come_again_later(free: int, small: Path) -> None:
    """free: kilobytes, of which the database may need more than there are."""
    use_up(small)
    enlarge(small, 2000 + free)
    sent: list[Any] = []
    called = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        called.append(scope["path"])
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"database or disk is full"})

    async def send(message: Any) -> None:
        sent.append(message)

    gate = Gate(inner, ALLOWED, lambda *_: None, full=Disk(small))
    scope = {"type": "http", "method": "POST", "path": "/v1/fleet/push-messages", "client": ("127.0.0.1", 1)}
    asyncio.run(gate(scope, None, send))  # type: ignore[arg-type]
    assert bool(called) == bool(free)
    assert [message.get("status") for message in sent] == [503, None]
    assert sent[1]["body"] == b'{"detail": "the disk of the link is full"}'
    (small / "ballast").unlink()
    enlarge(small, 80_000)
    sent.clear()
    asyncio.run(Gate(inner, ALLOWED, lambda *_: None, full=Disk(small))(scope, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 500, "a failure of another kind is one"


class Enough(BaseException):
    """The end of a loop that has none."""


def test_a_roster_that_could_not_be_followed_for_want_of_space_is_followed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, tries = LinkHome(tmp_path), iter([StorageError("No space."), [("shut out", "east")], Enough()])

    def follow(*_: object) -> Any:
        found = next(tries)
        if isinstance(found, BaseException):
            raise found
        home.roster.touch()  # changed once more
        return found

    write_handed(home.roster, Roster())
    monkeypatch.setattr(superlink, "follow", follow)
    monkeypatch.setattr(superlink, "FOLLOW_SECONDS", 0.01)
    with pytest.raises(Enough):
        superlink._follow(home, None, AuditLog(home.audit))
    assert [entry["event"] for entry in verify(home.audit).entries] == ["shut out"]


class Full(Control):
    """A link whose disk is full the first two times that it is asked."""

    def __init__(self) -> None:
        self._connection, self._client, self._times = Connection("127.0.0.1", 8443, None, ""), self, 2

    def StreamLogs(self, _: object) -> list[Any]:
        self._times -= 1
        if self._times >= 0:
            response = httpx.Response(503, json={"detail": DISK_FULL})
            raise httpx.HTTPStatusError("503", request=httpx.Request("POST", "https://link"), response=response)
        return []

    def run_state(self, run: int) -> dict[str, str]:
        return {"run": str(run), "state": "finished"}


def test_who_follows_a_run_is_told_once_that_the_links_disk_is_full_and_then_of_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control.time, "sleep", lambda _: None)
    lines: list[str] = []
    assert Full().follow(7, lines.append)["state"] == "finished"
    words = "The link at 127.0.0.1:8443 does nothing now: the disk of the link is full."
    assert lines == [f"{words} It is waited for.", ""]
    monkeypatch.setattr(control, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(WorkError, match=f"{words} Free space there; then the same command goes on."):
        Full().follow(7, lines.append)
