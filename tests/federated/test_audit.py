"""The audit log: a chain that shows every change, also when many processes write it."""

from __future__ import annotations

import json
import multiprocessing
import stat
from pathlib import Path

import pytest

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog, entries_of, verify


def _log(path: Path, count: int = 5) -> AuditLog:
    log = AuditLog(path)
    for number in range(count):
        log.append("mask", str(number % 2), bytes=number, sites=["east", "west"])
    return log


def test_a_log_is_read_back_whole(tmp_path: Path) -> None:
    _log(tmp_path / "audit.jsonl")
    report = verify(tmp_path / "audit.jsonl")
    assert report.flaws == []
    assert [entry["facts"]["bytes"] for entry in report.entries] == [0, 1, 2, 3, 4]
    assert [entry["number"] for entry in entries_of(report, "1")] == [1, 3]
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


def test_a_changed_fact_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _log(path)
    path.write_text(path.read_text().replace('"bytes": 2', '"bytes": 3'))
    assert verify(path).flaws == ["Line 3 was changed."]


@pytest.mark.parametrize("change", ["removed", "added", "swapped"])
def test_a_line_that_is_removed_added_or_moved_is_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "audit.jsonl"
    _log(path)
    lines = path.read_text().splitlines()
    if change == "removed":
        del lines[2]
    elif change == "added":
        lines.insert(2, lines[1])
    else:
        lines[1], lines[2] = lines[2], lines[1]
    path.write_text("\n".join(lines) + "\n")
    assert any("does not follow" in flaw for flaw in verify(path).flaws)


def test_a_line_that_was_forged_with_its_own_hash_breaks_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _log(path)
    other = tmp_path / "other.jsonl"
    _log(other, 2)
    AuditLog(other).append("mask", "0", bytes=99)
    lines, forged = path.read_text().splitlines(), other.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], forged[2], *lines[3:]]) + "\n")
    assert len(verify(path).flaws) >= 1


def test_a_cut_shows_against_a_head_that_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _log(path)
    head = verify(path).head
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n")
    assert verify(path).flaws == []
    assert len(verify(path, head).flaws) == 1


def test_a_line_that_a_crash_cut_short_is_shown_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = _log(path)
    with path.open("ab") as file:
        file.write(b'{"number": 5, "ti')
    log.append("unmask", "0")
    report = verify(path)
    assert report.flaws == ["Line 6 is not an entry."]
    assert report.entries[-1]["number"] == 5


def test_long_lines_are_followed(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    for _ in range(3):
        log.append("sum", "1", sites=[f"site{i}" for i in range(3000)])
    assert verify(log.path).flaws == []


def _append(path: str, who: int) -> None:
    for number in range(20):
        AuditLog(Path(path)).append("mask", str(who), bytes=number)


@pytest.mark.slow
def test_many_processes_write_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(str(path), who)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    report = verify(path)
    assert report.flaws == []
    for who in range(3):
        assert [entry["facts"]["bytes"] for entry in entries_of(report, str(who))] == list(range(20))


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read the audit log"):
        verify(tmp_path / "none.jsonl")


def test_every_line_is_plain_json(tmp_path: Path) -> None:
    _log(tmp_path / "audit.jsonl")
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert {tuple(sorted(json.loads(line))) for line in lines} == {
        ("before", "event", "facts", "hash", "number", "run", "time")
    }
