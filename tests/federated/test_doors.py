"""Tokens, refusals in the log, and the roster."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest
from cryptography import x509
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.constant import TaskType
from flwr.supercore.error import FlowerError
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResultStatus

from distlfm.errors import StorageError, UsageError
from distlfm.federated import audit as refusal_log
from distlfm.federated.audit import AuditLog, RefusalLog, verify
from distlfm.federated.link import superlink
from distlfm.federated.link.authn import TokenPlugin, digests_now, make_token, token_digest
from distlfm.federated.link.control import Connection, Control, connection_of
from distlfm.federated.link.processes import environment
from distlfm.federated.link.run import plain
from distlfm.federated.link.service import programs
from distlfm.federated.link.tasks import ForkingExecutor
from distlfm.federated.setup.enrolment import read_roster
from distlfm.federated.setup.homes import Home, LinkConfig, LinkHome, check_name, refuse_unless_loopback
from distlfm.federated.setup.provision import make_link


def let_in(token: str | None, digests: dict[str, str]) -> tuple[str | None, int]:
    """Holder's name, and how often it was refused."""
    refused: list[int] = []
    metadata = [] if token is None else [(ACCESS_TOKEN_KEY, token)]
    valid, account = TokenPlugin(lambda: digests, lambda: refused.append(1)).validate_tokens_in_metadata(metadata)
    assert valid == (account is not None)
    return (None if account is None else account.account_name), len(refused)


def test_only_a_token_whose_digest_is_kept_opens_the_link() -> None:
    anna, bert = make_token(), make_token()
    digests = {"anna": token_digest(anna), "bert": token_digest(bert)}
    assert let_in(bert, digests) == ("bert", 0)
    for wrong in (None, "", "x", token_digest(anna), make_token(), anna[:-1]):
        assert let_in(wrong, digests) == (None, 1)
    assert let_in(anna, {}) == (None, 1)


def test_the_link_gives_no_tokens_away() -> None:
    plugin = TokenPlugin(dict, lambda: None)
    assert plugin.get_login_details() is None
    assert plugin.refresh_tokens([(ACCESS_TOKEN_KEY, "x")]) == (None, None)
    with pytest.raises(FlowerError):
        plugin.get_auth_tokens("x")


@pytest.mark.parametrize("content", ["", "[1]", "{", "null"])
def test_a_broken_file_of_tokens_lets_nobody_in(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(content)
    assert digests_now(tmp_path / "tokens.json") == {}


def test_refusals_cannot_fill_the_disk_and_none_is_uncounted(tmp_path: Path) -> None:
    now = 0.0
    note = RefusalLog(AuditLog(tmp_path / "audit.jsonl"), lambda: now)
    for _ in range(refusal_log.MOST_A_MINUTE + 25):
        note("/" + "x" * 5000, "not served")
    now = 61.0
    note("/docs", "not served")
    entries = verify(tmp_path / "audit.jsonl").entries
    assert len(entries) == refusal_log.MOST_A_MINUTE + 1
    assert entries[-1]["facts"]["left_out_before"] == "25"
    assert max(len(entry["facts"]["what"]) for entry in entries) == refusal_log.LONGEST


@pytest.mark.parametrize("name", ["", "North", "a/b", "../a", "-a", "a" * 41, "a b", "a\n"])
def test_a_name_that_could_be_a_path_or_a_line_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.3", "link.example.org", "127.0.0.1.example.org"])
def test_plain_text_is_refused_on_every_address_but_loopback(host: str) -> None:
    refuse_unless_loopback("127.0.0.1")
    with pytest.raises(UsageError, match="this machine alone"):
        refuse_unless_loopback(host)


@pytest.mark.parametrize("spelling", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_no_proxy_is_shown_a_token_or_a_task_that_stays_on_this_machine(
    spelling: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard: list[bytes] = []

    def serve(door: socket.socket) -> None:
        caller, _ = door.accept()
        with caller:
            heard.append(caller.recv(4096))
            caller.sendall(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as link, socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv(spelling, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "example.org")
        for door in (link, proxy):
            threading.Thread(target=serve, args=(door,), daemon=True).start()
        control = Control(Connection("127.0.0.1", link.getsockname()[1], None, "token"))
        with control, pytest.raises(UsageError, match="does not take this token"):
            control.nodes()
        assert [line.split(b"\r\n")[0] for line in heard] == [b"POST /v1/control/list-nodes HTTP/1.1"]
    around = environment(Home(tmp_path), "10.0.0.3")
    assert around["no_proxy"] == around["NO_PROXY"] == "example.org,127.0.0.1,localhost,::1,10.0.0.3"


@pytest.mark.parametrize("kind", [TaskType.AGENT_APP, TaskType.CONNECTOR, TaskType.MODEL, TaskType.SERVER_APP])
def test_a_site_runs_no_task_but_its_own_app(kind: TaskType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", lambda: None)
    executor = ForkingExecutor("site")
    assert executor.get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())
    spec = ExecutionSpec(kind, "127.0.0.1:1", "token", True, None, False, None, True, 7)
    assert executor.launch(spec).status == LaunchResultStatus.FAILED


def test_a_roster_with_a_foreign_kind_of_key_is_refused(tmp_path: Path) -> None:
    entry = {"node": "ssh-ed25519 AAAA", "signing": "ab" * 32}
    (tmp_path / "roster.json").write_text(json.dumps({"sites": {"north": entry}}))
    with pytest.raises(UsageError, match="P-384"):
        read_roster(tmp_path / "roster.json")


def test_flowers_log_lines_lose_their_colours_and_level() -> None:
    assert plain("\x1b[92mINFO \x1b[0m:      round 1: 4 sites") == "round 1: 4 sites"


def test_a_link_goes_on_watching_its_roster_after_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "roster.json").write_text('{"sites": {}}')
    audit, looks = AuditLog(tmp_path / "audit.jsonl"), iter(range(5))
    append, full = audit.append, ["once"]

    def follow(*_: object) -> list[tuple[str, str]]:
        number = next(looks)
        if number == 0:
            raise RuntimeError("database is locked")
        return [("shut out", f"site-{number}")]

    def append_or_fail(event: str, run: str, **facts: str) -> str:
        if full:
            full.pop()
            raise StorageError("No space left on device.")
        return append(event, run, **facts)

    class Over(BaseException):
        """Ends the loop, which has no end of its own."""

    def sleep(_: float) -> None:
        slept.append(1)
        if len(slept) == 5:
            raise Over
        if len(slept) == 3:
            os.utime(tmp_path / "roster.json", ns=(0, 0))

    slept: list[int] = []
    monkeypatch.setattr(superlink, "follow", follow)
    monkeypatch.setattr(audit, "append", append_or_fail)
    monkeypatch.setattr(superlink.time, "sleep", sleep)
    with pytest.raises(Over):
        superlink._follow(LinkHome(tmp_path), object(), audit)
    written = [(entry["event"], entry["facts"]["site"]) for entry in verify(audit.path).entries]
    assert written == [("shut out", "site-1"), ("shut out", "site-2")]


@pytest.mark.parametrize(
    ("bind", "host", "address"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:8443"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1:8443"),
        ("::", "::1", "[::1]:8443"),
        ("::1", "::1", "[::1]:8443"),
        ("fd00::3", "fd00::3", "[fd00::3]:8443"),
        ("localhost", "127.0.0.1", "127.0.0.1:8443"),
    ],
)
def test_a_links_own_processes_and_its_admin_reach_it_where_it_listens(
    bind: str, host: str, address: str, tmp_path: Path
) -> None:
    config = LinkConfig(bind=bind, sites=("a", "b", "c"))
    make_link(tmp_path / "link", config)
    home = LinkHome(tmp_path / "link")
    tasks = next(one for one in programs(home, config, insecure=False) if one.name == "tasks")
    assert tasks.arguments == ("link", str(home.path), address)
    reached = connection_of(home.path)
    assert (reached.host, reached.address) == (host, address)
    names = x509.load_pem_x509_certificate(home.certificate.read_bytes()).extensions
    held = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.IPAddress)
    assert host in map(str, held)
