"""A large table read a part at a time gives what reading it whole gives, and holds only a part of it."""

from __future__ import annotations

import gzip
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distlfm.data import ColumnMap, ReadReport, examine, iter_reports, read, write_npz
from distlfm.data.base import reader_for
from distlfm.data.npz import npz_steps
from distlfm.errors import DataError
from distlfm.instance import Instance

GENES = ColumnMap(time="t", values=("level",), output="gene", instance="cell")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlfm.data.reading.LARGE", 1)
    for reader in ("csv", "parquet"):
        monkeypatch.setattr(f"distlfm.data.{reader}.CHUNK", 7)


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


def as_parquet(folder: Path, rows: list[str]) -> Path:
    cells = [row.split(",") for row in rows[1:]]
    columns = dict(zip(rows[0].split(","), zip(*cells, strict=True), strict=True))
    typed = {
        name: [float(one) for one in column] if name in ("t", "level") else column for name, column in columns.items()
    }
    path = folder / "cells.parquet"
    pq.write_table(pa.table(typed), path)
    return path


def assert_same(pieces: ReadReport, whole: ReadReport) -> None:
    assert [one.id for one in pieces.instances] == [one.id for one in whole.instances]
    for mine, other in zip(pieces.instances, whole.instances, strict=True):
        assert mine.outputs == other.outputs
        np.testing.assert_array_equal(mine.times, other.times)
        np.testing.assert_array_equal(mine.mask, other.mask)
        np.testing.assert_array_equal(mine.values[mine.mask], other.values[other.mask])
    assert sorted(map(str, pieces.set_aside)) == sorted(map(str, whole.set_aside))
    assert set(map(str, whole.notices)) <= set(map(str, pieces.notices))


@pytest.mark.parametrize("write", [as_csv, as_gzip, as_parquet])
@pytest.mark.parametrize("columns", [GENES, None])
def test_pieces_and_the_whole_table_give_the_same_instances_problems_and_notices(
    tmp_path: Path, write: Callable[[Path, list[str]], Path], columns: ColumnMap | None
) -> None:
    rows = table()
    rows[0] = "instance,gene,t,level" if columns is None else rows[0]
    rows.insert(20, rows[20].rsplit(",", 1)[0] + ",-7")  # a conflict sets one cell aside
    path = write(tmp_path, rows)
    whole = reader_for(path)(path, columns)
    reports = list(iter_reports(path, columns))
    assert len(reports) > 5
    assert len(whole.set_aside) == 1
    assert any("of 11 instances" in str(notice) for notice in whole.notices)
    assert_same(examine(path, columns), whole)


def test_rows_of_an_instance_that_lie_apart_are_still_one_instance(tmp_path: Path) -> None:
    rows = table()
    path = as_csv(tmp_path, [rows[0], *sorted(rows[1:], key=lambda row: row.split(",")[2])])
    assert_same(read(path, GENES), reader_for(path)(path, GENES))
    assert len(read(path, GENES)) == 12


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
    assert_same(examine(path, None), reader_for(path)(path, None))


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

    assert peak(lambda: npz_steps(path)) < 0.5 * peak(lambda: iter([reader_for(path)(path, None)]))


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
    assert pieces < 0.25 * peak(lambda: len(reader_for(path)(path, GENES)))[1]
