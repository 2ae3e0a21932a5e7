"""A large file read a part at a time holds only a part of it, and tells what is wrong as one read whole does."""

from __future__ import annotations

import gzip
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from distlfm.data import ColumnMap, ReadReport, examine, iter_reports, read, write_npz
from distlfm.data.base import format_of
from distlfm.data.npz import npz_steps
from distlfm.errors import DataError
from distlfm.instance import Instance

GENES = ColumnMap(time="t", values=("level",), output="gene", instance="cell")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.data.reading.LARGE", 1)
    monkeypatch.setattr("distlfm.data.csv.CHUNK", 7)


def table(cells: int = 12, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    rows = ["cell,gene,t,level"]
    for cell in range(cells):
        for gene in ("a", "b", "c"):
            if gene == "c" and cell % 4 == 1:
                continue
            for time in range(int(random.integers(2, 5))):
                rows.append(f"n{cell},{gene},{time},{random.normal():.6f}")
    return rows


def as_csv(folder: Path, rows: list[str]) -> Path:
    path = folder / "cells.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def as_gzip(folder: Path, rows: list[str]) -> Path:
    path = folder / "cells.csv.gz"
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    return path


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text.replace(b"n9,a,1", b"n9,a,1,5"), "cells, and the header has 4"),
        (lambda text: text.replace(b"n9,a,1", b"n9,a,\xff"), "not UTF-8"),
        (lambda text: text.replace(b"n9,a,1", b"n9,\0,1"), "0x00"),
        (lambda text: text.replace(b"n9,a,1", b'n9,"a,1'), "not valid CSV"),
    ],
)
def test_a_fault_far_down_in_a_large_file_is_told_with_its_row(
    tmp_path: Path, spoil: Callable[[bytes], bytes], said: str
) -> None:
    path = as_csv(tmp_path, table())
    path.write_bytes(spoil(path.read_bytes()))
    try:
        problems = examine(path, GENES).set_aside
    except DataError as error:
        problems = [error.problem]
    assert said in str(problems[0])
    assert problems[0].row is not None
    assert problems[0].row > 20


def test_a_cut_gzip_file_is_refused_as_such(tmp_path: Path) -> None:
    path = as_gzip(tmp_path, table())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="cut short or damaged"):
        read(path, GENES)


def archive(folder: Path, count: int, points: int = 4) -> Path:
    random, times = np.random.default_rng(4), np.arange(float(points))
    instances = [
        Instance(f"n{i}", ("a",), times, random.normal(size=(1, points)), times[None] >= 0) for i in range(count)
    ]
    write_npz(folder / "fleet.npz", instances)
    return folder / "fleet.npz"


def test_a_large_archive_is_read_a_few_instances_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.data.npz.STEP", 5)
    path = archive(tmp_path, 12)
    assert [len(report.instances) for report in iter_reports(path)] == [5, 5, 2, 0]


def test_damage_far_down_in_a_large_archive_is_told_before_anything_is_used(tmp_path: Path) -> None:
    path = archive(tmp_path, 12)
    with zipfile.ZipFile(path) as found:
        place = found.getinfo("11/values.npy").header_offset
    content = bytearray(path.read_bytes())
    content[place + 60 : place + 80] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a readable npz archive"):
        next(iter_reports(path))


def test_memory_holds_a_few_instances_and_not_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.data.npz.STEP", 16)
    path = archive(tmp_path, 96, points=2000)

    def peak(reports: Callable[[], Iterator[ReadReport]]) -> int:
        tracemalloc.start()
        assert sum(len(report.instances) for report in reports()) == 96
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(lambda: npz_steps(path)) < 0.5 * peak(lambda: iter([format_of(path).read(path, None)]))


@pytest.mark.slow
def test_memory_holds_a_piece_and_not_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.data.csv.CHUNK", 500)
    path = as_csv(tmp_path, table(cells=3000))

    def peak(job: Callable[[], int]) -> tuple[int, int]:
        tracemalloc.start()
        found = job()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, most

    count, pieces = peak(lambda: sum(len(report.instances) for report in iter_reports(path, GENES)))
    assert count == 3000
    assert pieces < 0.25 * peak(lambda: len(format_of(path).read(path, GENES)))[1]
