"""What every reader keeps to. `--plugin FILE` puts your own through the same tests.

A reader is tried on files that the suite writes. Beside a reader of the user's own stands the function that writes
them: `write_rows(path, rows)` for a table, each row a mapping of columns to numbers, text or None, or
`write_instances(path, instances)` for any other format.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distlfm.config import build
from distlfm.data import ColumnMap, ReadReport, examine, iter_reports, read, write_npz
from distlfm.data.base import FORMATS, Reader
from distlfm.errors import DataError, Problem
from distlfm.fleets.sources import read_instances
from distlfm.instance import Instance, Truth
from distlfm.runs.settings import DataConfig

Row = dict[str, Any]
LONG = ColumnMap(instance="who", time="t", output="gene", values="level")


def csv_bytes(rows: Sequence[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


ROWS: dict[str, Callable[[Path, Sequence[Row]], object]] = {
    ".csv": lambda path, rows: path.write_bytes(csv_bytes(rows)),
    ".csv.gz": lambda path, rows: path.write_bytes(gzip.compress(csv_bytes(rows))),
    ".parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(list(rows)), path),
}
INSTANCES: dict[str, Callable[[Path, Sequence[Instance]], object]] = {".npz": write_npz}


@dataclass(frozen=True)
class Form:
    """A format by the ending of its files."""

    suffix: str

    @cached_property
    def reader(self) -> Reader:
        return FORMATS[self.suffix].read

    @property
    def has_pieces(self) -> bool:
        """Whether large files are read a part at a time."""
        return any(FORMATS[self.suffix][1:])

    @property
    def module(self) -> ModuleType:
        return sys.modules[self.reader.__module__]

    @property
    def write_rows(self) -> Callable[[Path, Sequence[Row]], object] | None:
        return ROWS.get(self.suffix) or getattr(self.module, "write_rows", None)

    def path(self, folder: Path, name: str = "fleet") -> Path:
        return folder / f"{name}{self.suffix}"

    def rows(self, folder: Path, rows: Sequence[Row], name: str = "fleet") -> Path:
        path = self.path(folder, name)
        assert self.write_rows is not None
        self.write_rows(path, rows)
        return path

    def instances(self, folder: Path, fleet: Sequence[Instance], name: str = "fleet") -> tuple[Path, ColumnMap | None]:
        """A file of these instances, and the columns by which they are read."""
        path = self.path(folder, name)
        whole = INSTANCES.get(self.suffix) or getattr(self.module, "write_instances", None)
        if whole is not None:
            whole(path, fleet)
            return path, None
        assert self.write_rows is not None, f"{self.module.__name__} has neither write_rows nor write_instances."
        dims = 0 if fleet[0].positions is None else fleet[0].positions.shape[1]
        return self.rows(folder, records(fleet, long=True), name), column_map(fleet[0].outputs, True, dims)


FORMS = [Form(suffix) for suffix in sorted(FORMATS)]
TABLES = [form for form in FORMS if form.write_rows is not None]
OTHERS = [form for form in FORMS if form.write_rows is None]

each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.suffix)
each_table = pytest.mark.parametrize("form", TABLES, ids=lambda form: form.suffix)


def fleet(count: int = 3, points: int = 4, names: Sequence[str] = ()) -> list[Instance]:
    random, times = np.random.default_rng(4), np.arange(float(points))
    ids = names or [f"n{i}" for i in range(count)]
    return [
        Instance(name, ("a", "b"), times + i, random.normal(size=(2, points)), random.random((2, points)) > 0.2)
        for i, name in enumerate(ids)
    ]


def level_rows(count: int = 3) -> list[Row]:
    """A long table of two genes."""
    return [
        {"who": f"n{i}", "t": float(t), "gene": gene, "level": float(10 * i + t + (gene == "b") / 2)}
        for i in range(count)
        for gene in ("a", "b")
        for t in range(4)
    ]


def same(one: ReadReport, other: ReadReport) -> None:
    assert [instance.id for instance in one] == [instance.id for instance in other]
    for mine, theirs in zip(one, other, strict=True):
        assert_same(theirs, mine)


def checked(problem: Problem, path: Path) -> Problem:
    """A problem has its file, its cause and what to do."""
    assert problem.file == str(path)
    assert problem.what
    assert problem.fix
    return problem


def refusal(path: Path, columns: ColumnMap | None = LONG) -> Problem:
    with pytest.raises(DataError) as caught:
        read(path, columns)
    assert caught.value.exit_code == 2
    return checked(caught.value.problem, path)


# ---- what is written is read back ------------------------------------------------------------------------------------

finite = st.floats(-1e9, 1e9, allow_nan=False).map(lambda number: number + 0.0)
names = st.text("abcXYZ019 _-é/", min_size=1, max_size=6).map(lambda text: f"i{text}".strip())
repeatable = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def instances(draw: st.DrawFn, name: str = "only", outputs: tuple[str, ...] = ("a", "b"), d: int = 0) -> Instance:
    times = np.array(sorted(draw(st.lists(finite, min_size=2, max_size=6, unique=True))))
    shape = (len(outputs), len(times))
    mask = draw(hnp.arrays(np.bool_, shape))
    mask[0] = True
    values = np.where(mask, draw(hnp.arrays(np.float64, shape, elements=finite)), 0.0)
    variance = np.where(mask, draw(hnp.arrays(np.float64, shape, elements=st.floats(0, 1e6))), 1.0)
    force = draw(hnp.arrays(np.float64, (1, len(times)), elements=finite))
    positions = draw(hnp.arrays(np.float64, (len(times), d), elements=finite)) if d else None
    truth = Truth(times, force=force, outputs=values + 1.0, positions=positions)
    return Instance(name, outputs, times, values, mask, positions, variance, truth)


def assert_same(given_: Instance, back: Instance) -> None:
    assert (back.id, back.outputs) == (given_.id, given_.outputs)
    for name in ("times", "values", "mask", "positions", "variance"):
        np.testing.assert_array_equal(getattr(back, name), getattr(given_, name), err_msg=name)
    assert (back.truth is None) == (given_.truth is None)
    if given_.truth is not None and back.truth is not None:
        for name in ("times", "force", "outputs", "positions"):
            np.testing.assert_array_equal(getattr(back.truth, name), getattr(given_.truth, name), err_msg=name)
        assert set(back.truth.parameters) == set(given_.truth.parameters)
        for name, value in given_.truth.parameters.items():
            np.testing.assert_array_equal(back.truth.parameters[name], value)


def records(fleet: Sequence[Instance], long: bool) -> list[Row]:
    """Rows of a table; None where nothing was observed."""
    rows: list[Row] = []
    for instance in fleet:
        truth, variance = instance.truth, instance.variance
        for n, t in enumerate(instance.times):
            row: Row = {"who": instance.id, "t": float(t)}
            if truth is not None and truth.force is not None:
                row["f"] = float(truth.force[0, n])
            if instance.positions is not None:
                row |= {f"x{k}": float(instance.positions[n, k]) for k in range(instance.positions.shape[1])}
            for p, output in enumerate(instance.outputs):
                seen = bool(instance.mask[p, n])
                cells: Row = {"value": float(instance.values[p, n]) if seen else None}
                if variance is not None:
                    cells["noise"] = float(variance[p, n]) if seen else None
                if truth is not None and truth.outputs is not None:
                    cells["clean"] = float(truth.outputs[p, n])
                if long:
                    rows.append(row | {"output": output} | cells)
                else:
                    row |= {f"{kind}_{output}": cell for kind, cell in cells.items()}
            if not long:
                rows.append(row)
    return rows


def column_map(outputs: tuple[str, ...], long: bool, d: int = 0, whole: bool = False) -> ColumnMap:
    """whole: with variances and the truth."""
    common: dict[str, Any] = {"instance": "who", "time": "t", "positions": tuple(f"x{k}" for k in range(d))}
    if long:
        more = {"variance": "noise", "truth_force": "f", "truth_outputs": "clean"} if whole else {}
        return ColumnMap(output="output", values="value", **common, **more)
    return ColumnMap(
        values=tuple(f"value_{name}" for name in outputs),
        variance={f"value_{name}": f"noise_{name}" for name in outputs},
        truth_outputs=tuple(f"clean_{name}" for name in outputs),
        truth_force="f",
        **common,
    )


@each_table
@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("d", [0, 2])
@repeatable
@given(data=st.data())
def test_a_table_gives_back_what_was_written(form: Form, long: bool, d: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(names, min_size=1, max_size=3, unique=True))
    fleet = [data.draw(instances(name, d=d)) for name in ids]
    with tempfile.TemporaryDirectory() as folder:
        report = read(form.rows(Path(folder), records(fleet, long)), column_map(("a", "b"), long, d, whole=True))
    assert report.set_aside == []
    for given_, back in zip(fleet, report.instances, strict=True):
        outputs = back.outputs if long else tuple(name.removeprefix("value_") for name in back.outputs)
        assert_same(given_, replace(back, outputs=outputs))


@pytest.mark.parametrize("form", OTHERS, ids=lambda form: form.suffix)
@repeatable
@given(data=st.data())
def test_any_other_format_gives_back_what_was_written_with_truth_and_metadata(form: Form, data: st.DataObject) -> None:
    ids = data.draw(st.lists(names, min_size=1, max_size=12, unique=True))
    fleet = []
    for name in ids:
        instance = data.draw(instances(name, d=data.draw(st.sampled_from([0, 1]))))
        assert instance.truth is not None
        truth = replace(instance.truth, parameters={"decay": np.array([0.1, 0.2])})
        changes: Row = data.draw(st.sampled_from([{"truth": truth}, {"truth": None}, {"variance": None}]))
        fleet.append(replace(instance, metadata={"ward": "ä 3", "empty": ""}, **changes))
    with tempfile.TemporaryDirectory() as folder:
        path, columns = form.instances(Path(folder), fleet)
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name]
        report = read(path, columns)
    assert report.set_aside == []
    for given_, back in zip(fleet, report.instances, strict=True):
        assert_same(given_, back)
        assert back.metadata == given_.metadata


@each_form
@pytest.mark.parametrize("ids", [["007", "7", "1e3"], ["n10", "ä 3", "a/b", "n9", *(f"m{i}" for i in range(12))]])
def test_ids_stay_as_they_are_and_in_their_order(form: Form, tmp_path: Path, ids: list[str]) -> None:
    assert [one.id for one in read(*form.instances(tmp_path, fleet(names=ids)))] == ids


@each_table
def test_a_table_that_tells_no_instances_apart_is_one_with_the_files_name(form: Form, tmp_path: Path) -> None:
    path = form.rows(tmp_path, [{"t": 0.0, "y": 1.0}, {"t": 1.0, "y": 2.0}], "patient.7")
    (instance,) = read(path, ColumnMap(time="t", values="y"))
    assert instance.id == "patient.7"
    assert instance.metadata["source"] == path.name


@each_form
def test_units_of_a_config_go_with_every_instance(form: Form, tmp_path: Path) -> None:
    path, columns = form.instances(tmp_path, fleet())
    content = {"path": str(path), "columns": columns, "units": {"time": "h", "value": "mg/dL"}}
    found = read_instances(build(DataConfig, {key: one for key, one in content.items() if one is not None})).instances
    assert len(found) == 3
    for one in found:
        assert {"time_unit": "h", "value_unit": "mg/dL"}.items() <= dict(one.metadata).items()


@each_form
def test_in_a_folder_instances_have_the_name_of_their_file_before_their_own(form: Form, tmp_path: Path) -> None:
    _, columns = form.instances(tmp_path, fleet(names=["x", "y"]), "site")
    form.instances(tmp_path, fleet(names=["alone"]), "alone")
    form.path(tmp_path, "torn").write_bytes(b"\x1f\x8b")
    report = read(tmp_path, columns)
    assert [one.id for one in report] == ["alone", "site/x", "site/y"]
    (problem,) = report.set_aside
    checked(problem, form.path(tmp_path, "torn"))


# ---- what cannot be read ---------------------------------------------------------------------------------------------


@each_form
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_damage_is_a_data_error_or_a_report_and_nothing_else(form: Form, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, columns = form.instances(Path(folder), fleet(2))
        damaged = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(damaged) - 1))
            damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        path.write_bytes(bytes(damaged[: data.draw(st.integers(0, 3 * len(damaged)))]))
        for taken in (columns, None):
            with suppress(DataError):
                for problem in examine(path, taken).set_aside:
                    checked(problem, path)


@each_form
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x00" * 40, b"PK\x03\x04 then nothing", b"who", bytes(range(256))])
def test_what_is_nothing_of_its_kind_is_refused(form: Form, tmp_path: Path, content: bytes) -> None:
    path = form.path(tmp_path)
    path.write_bytes(content)
    refusal(path)


@each_form
def test_a_file_of_another_format_is_refused(form: Form, tmp_path: Path) -> None:
    for other in FORMS:
        if other.module is not form.module:  # which may read one format under several endings
            content = other.instances(tmp_path, fleet(), "other")[0].read_bytes()
            path = form.path(tmp_path)
            path.write_bytes(content)
            refusal(path, column_map(("a", "b"), long=True))


@each_form
def test_what_cannot_be_opened_is_refused(form: Form, tmp_path: Path) -> None:
    path = form.path(tmp_path)
    path.mkdir()
    with pytest.raises(DataError) as caught:
        form.reader(path, LONG)
    checked(caught.value.problem, path)


# ---- rows of tables --------------------------------------------------------------------------------------------------


@each_table
def test_a_column_that_is_not_there_is_refused_with_the_nearest(form: Form, tmp_path: Path) -> None:
    path = form.rows(tmp_path, level_rows())
    problem = refusal(path, LONG.model_copy(update={"values": ("levle",)}))
    assert problem.column == "levle"
    assert "Did you mean 'level'?" in problem.fix


@each_table
def test_text_in_place_of_a_number_costs_its_instance_alone_and_is_told_with_its_place(
    form: Form, tmp_path: Path
) -> None:
    rows = [{**row, "level": str(row["level"])} for row in level_rows(4)]
    rows[9]["level"], rows[22]["level"] = "much", "nan"
    path = form.rows(tmp_path, rows)
    report = examine(path, LONG)
    assert [one.id for one in report] == ["n0", "n3"]
    first, second = (checked(problem, path) for problem in report.set_aside)
    assert [(one.instance, one.column) for one in (first, second)] == [("n1", "level"), ("n2", "level")]
    assert "'much' is not a number" in first.what
    assert "'nan' is not a finite number" in second.what
    assert first.row is not None
    assert second.row is not None
    assert second.row - first.row == 22 - 9
    everything = form.rows(tmp_path, [{**row, "level": "much"} for row in rows], "spoilt")
    assert refusal(everything).instance == "n0"


@each_table
def test_the_order_of_rows_of_different_series_does_not_matter(form: Form, tmp_path: Path) -> None:
    rows = level_rows()
    expected = read(form.rows(tmp_path, rows, "sorted"), LONG)
    mixed = sorted(rows, key=lambda row: (row["t"], row["who"], row["gene"]))
    assert mixed != rows
    report = read(form.rows(tmp_path, mixed, "mixed"), LONG)
    same(report, expected)
    assert report.notices == expected.notices == []


@each_table
def test_times_a_little_out_of_order_or_newest_first_are_sorted_with_a_notice(form: Form, tmp_path: Path) -> None:
    columns = ColumnMap(time="t", values="y")
    for times, row in (([0, 2, 1, 3, 4], 2), ([4, 3, 2, 1, 0], 1)):
        report = read(form.rows(tmp_path, [{"t": float(t), "y": 10.0 * t} for t in times]), columns)
        assert report.instances[0].values.tolist() == [[0, 10, 20, 30, 40]]
        (notice,) = report.notices
        assert "sorted" in notice.what
        assert (notice.column, notice.instance) == ("t", "fleet")
        first = reader_first_row(form, tmp_path)
        assert notice.row == first + row


def reader_first_row(form: Form, folder: Path) -> int:
    """The number that a format gives its first row."""
    path = form.rows(folder, [{"t": "no", "y": 1.0}, {"t": "1", "y": 2.0}], "first")
    row = refusal(path, ColumnMap(time="t", values="y")).row
    assert row is not None
    return row


@each_table
def test_places_may_come_in_any_order(form: Form, tmp_path: Path) -> None:
    rows = [{"t": float(t), "x": float(x), "u": 10.0 * t + x} for x in (1, 0, 2) for t in (1, 0)]
    report = read(form.rows(tmp_path, rows), ColumnMap(time="t", positions="x", values="u"))
    (instance,) = report
    assert instance.positions is not None
    points = np.column_stack([instance.times, instance.positions]).tolist()
    assert points == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert instance.values.tolist() == [[0, 1, 2, 10, 11, 12]]
    assert report.notices == []


@each_table
def test_a_row_that_is_there_twice_counts_once_with_a_notice(form: Form, tmp_path: Path) -> None:
    rows = level_rows()
    expected = read(form.rows(tmp_path, rows, "once"), LONG)
    report = read(form.rows(tmp_path, [*rows[:3], rows[2], *rows[3:]], "twice"), LONG)
    same(report, expected)
    (notice,) = report.notices
    assert "merged" in notice.what
    assert (notice.instance, notice.row) == ("n0", reader_first_row(form, tmp_path) + 3)


@each_table
def test_two_values_of_one_point_are_refused_or_averaged_as_is_asked(form: Form, tmp_path: Path) -> None:
    rows = [{"who": "n0", "t": float(t), "y": y, "v": v} for t, y, v in ((0, 1.0, 1.0), (1, 2.0, 1.0), (1, 4.0, 3.0))]
    rows += [{"who": "n1", "t": float(t), "y": 1.0, "v": 1.0} for t in range(2)]
    path, columns = form.rows(tmp_path, rows), ColumnMap(instance="who", time="t", values="y", variance="v")
    report = examine(path, columns)
    assert [one.id for one in report] == ["n1"]
    (problem,) = report.set_aside
    checked(problem, path)
    assert (problem.instance, problem.column) == ("n0", "y")
    assert "columns.duplicates" in problem.fix
    averaged = read(path, columns.model_copy(update={"duplicates": "average"}))
    assert averaged["n0"].values.tolist() == [[1, 3]]
    assert averaged["n0"].variance is not None
    assert averaged["n0"].variance.tolist() == [[1, 1]], "the mean of two varies half as much"
    assert "averaged" in averaged.notices[0].what


# ---- large files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as large, and pieces are small."""
    monkeypatch.setattr("distlfm.data.reading.LARGE", 1)
    for form in FORMS:
        for name in ("CHUNK", "STEP"):
            if hasattr(form.module, name):
                monkeypatch.setattr(form.module, name, 7)


@each_form
@pytest.mark.usefixtures("in_pieces")
def test_a_large_file_gives_each_instance_once_as_if_read_whole(form: Form, tmp_path: Path) -> None:
    path, columns = form.instances(tmp_path, fleet(20))
    whole = form.reader(path, columns)
    reports = list(iter_reports(path, columns))
    assert len(reports) >= (4 if form.has_pieces else 2)
    assert len(whole) == 20
    same(ReadReport([one for report in reports for one in report]), whole)


@each_table
@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("columns", [LONG.model_copy(update={"instance": "sample"}), None], ids=["named", "guessed"])
def test_problems_and_notices_of_a_large_table_are_those_of_the_whole(
    form: Form, tmp_path: Path, columns: ColumnMap | None
) -> None:
    rows = [{"sample": row.pop("who"), **row} for row in level_rows(12) if row["gene"] == "a" or row["who"] != "n5"]
    rows.insert(20, {**rows[20], "level": -7.0})  # a conflict sets one instance aside
    path = form.rows(tmp_path, rows)
    whole, found = form.reader(path, columns), examine(path, columns)
    same(found, whole)
    assert len(whole.set_aside) == 1
    assert any("'b' has values in 10 of 11 instances" in str(notice) for notice in whole.notices)
    assert sorted(map(str, found.set_aside)) == sorted(map(str, whole.set_aside))
    assert set(map(str, whole.notices)) <= set(map(str, found.notices))


@each_table
@pytest.mark.usefixtures("in_pieces")
def test_rows_of_an_instance_that_lie_apart_in_a_large_table_are_one_instance(form: Form, tmp_path: Path) -> None:
    path = form.rows(tmp_path, sorted(level_rows(12), key=lambda row: row["t"]))
    assert len(read(path, LONG)) == 12
    same(read(path, LONG), form.reader(path, LONG))
