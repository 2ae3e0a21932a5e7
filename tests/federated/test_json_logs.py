"""Logs as lines of JSON: what whoever collects them gets, and what stays at the role."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog, verify
from distlfm.federated.link.authn import read_token
from distlfm.federated.link.logs import JsonLines, reporter_of, to_syslog
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.setup.homes import LinkConfig, LinkHome
from distlfm.federated.setup.provision import make_link
from distlfm.runtime.reporting import Silent
from tests.support.fleet_runs import Driver
from tests.support.real_sites import free_port, wait_until
from tests.support.secure_sites import COUNTS, LOSSES, ask, local_grid, make_sites, request, spellings


def lines_of(audit: Path) -> tuple[JsonLines, list[str]]:
    written: list[str] = []
    return JsonLines("site", "east", audit, written.append), written


def test_each_line_of_the_audit_log_comes_once_with_its_number_and_hash(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.append("before", "1")
    lines, written = lines_of(log.path)
    lines.look()
    assert written == [], "what was there before the start is not said again"
    heads = [log.append("sum", "7", sites=["east"], dropped=0), log.append("refused", "7", reason="TASK", detail="x")]
    lines.look()
    lines.look()
    lines.warn("the disk is full")
    first, second, third = map(json.loads, written)
    assert (first["event"], first["number"], first["hash"]) == ("sum", 1, heads[0])
    assert (first["role"], first["name"], first["level"]) == ("site", "east", "info")
    assert first["facts"] == {"sites": ["east"], "dropped": 0}
    assert (second["level"], second["facts"]) == ("warning", {"reason": "TASK"})
    assert (third["level"], third["message"]) == ("warning", "the disk is full")
    assert second["hash"] == verify(log.path).head


def test_a_line_that_is_half_written_waits_and_another_log_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines, written = lines_of(path)
    AuditLog(path).append("one", "")
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    lines.look()
    assert written == []
    path.write_bytes(whole + b"no json\n")
    lines.look()
    assert [json.loads(line).get("event", json.loads(line).get("message")) for line in written] == [
        "one",
        "a line of the audit log cannot be read",
    ]
    path.unlink()
    lines.look()
    AuditLog(path).append("anew", "")
    lines.look()
    assert json.loads(written[-1])["event"] == "anew"


def test_nothing_of_a_patient_and_no_secret_is_in_a_line(tmp_path: Path) -> None:
    """The figures and counts of whole sums, refusals among them, whatever way a number is written."""
    nodes = make_sites(tmp_path, clip=1.0)
    followed = {name: lines_of(tmp_path / name / "audit.jsonl") for name in COUNTS}
    grid = SecureGrid(local_grid(nodes))
    for kind in ("train", "evaluate", "query.calibration", "query.unheard"):
        ask(grid, request(), kind)
    for name, (lines, written) in followed.items():
        lines.look()
        assert len(written) > 10
        text = "\n".join(written).encode()
        for value in (LOSSES[name], COUNTS[name]):
            assert not [one for one in spellings(value) if len(one) > 3 and one in text]
        key = (tmp_path / name / "signing.key").read_bytes()
        assert not [line for line in key.splitlines() if line in text]
        assert b'"detail"' not in text


def test_the_look_out_sees_a_detail_where_it_is_not_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.federated.link.logs.HIDDEN", frozenset())
    lines, written = lines_of(tmp_path / "audit.jsonl")
    AuditLog(tmp_path / "audit.jsonl").append("refused", "7", detail=f"a loss of {LOSSES['east']}")
    lines.look()
    assert [one for one in spellings(LOSSES["east"]) if one in written[0].encode()]


def test_the_system_log_gets_the_lines_and_one_that_is_missing_is_told(tmp_path: Path) -> None:
    place = tmp_path / "log"
    with pytest.raises(UsageError, match="--logs json"):
        to_syslog(place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(place))
        lines = JsonLines("link", "trial", tmp_path / "audit.jsonl", to_syslog(place))
        lines.say("superlink is up")
        lines.warn("it ended")
        found = [daemon.recv(4096).rstrip(b"\0").decode() for _ in range(2)]
    priorities, contents = zip(*(line.split("distlfm: ", 1) for line in found), strict=True)
    assert priorities == ("<30>", "<28>")  # daemon.info, daemon.warning
    assert [json.loads(one)["message"] for one in contents] == ["superlink is up", "it ended"]


def test_plain_logs_are_as_they_were(tmp_path: Path) -> None:
    given = Silent()
    assert reporter_of("plain", "link", "trial", tmp_path / "audit.jsonl", given)[0] is given


@pytest.mark.slow
def test_a_link_that_logs_json_says_nothing_else(tmp_path: Path) -> None:
    """As its config says, in place of an option: each line of standard output is JSON, and the token is in none."""
    make_link(tmp_path / "link", LinkConfig(sites=("north", "south", "west"), port=free_port(), logs="json"))
    home = LinkHome(tmp_path / "link")
    driver = Driver([sys.executable, "-m", "distlfm", "federated", "link", str(home.path)], tmp_path / "link.log")
    try:
        wait_until(lambda: "superlink is up" in driver.text, why=lambda: driver.text)
        subprocess.run([sys.executable, "-m", "distlfm", "federated", "status", str(home.path)], check=True)
        wait_until(lambda: "link started" in driver.text, why=lambda: driver.text)
    finally:
        driver.kill()
    said = [json.loads(line) for line in driver.text.splitlines() if line]
    assert {line["role"] for line in said} == {"link"}
    assert read_token(home.admin_token) not in driver.text
