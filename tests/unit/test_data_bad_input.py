"""Each kind of bad table is answered with file, row, column, what is wrong and what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distlfm.data import ColumnMap, examine, read
from distlfm.errors import DataError, Problem

GOOD = "good,0,1,1\ngood,1,2,1\n"
HEADER = "id,t,y,v\n"
WIDE = ColumnMap(instance="id", time="t", values="y", variance="v")


def set_aside(tmp_path: Path, bad: str, columns: ColumnMap = WIDE, header: str = HEADER, good: str = GOOD) -> Problem:
    """The one problem of a file with two good rows (lines 2 and 3) and then the bad ones."""
    path = tmp_path / "fleet.csv"
    path.write_text(header + good + bad, encoding="utf-8")
    report = examine(path, columns)
    assert [instance.id for instance in report] == ["good"], "the good neighbour goes on"
    (problem,) = report.set_aside
    assert problem.file == str(path)
    assert problem.fix
    return problem


def refused(path: Path, content: str | bytes, columns: ColumnMap | None = None) -> Problem:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError) as caught:
        read(path, columns)
    assert caught.value.problem.file == str(path)
    assert caught.value.problem.fix
    assert caught.value.exit_code == 2
    return caught.value.problem


@pytest.mark.parametrize(
    ("rows", "row", "column", "what", "fix"),
    [
        ("bad,0,1,1\nbad,1,nan,1\n", 5, "y", "'nan' is not a finite number", "Leave the cell empty"),
        ("bad,0,1,1\nbad,1,-inf,1\n", 5, "y", "'-inf' is not a finite number", "Leave the cell empty"),
        ("bad,0,1,1\nbad,inf,1,1\n", 5, "t", "'inf' is not a finite number", "remove the row"),
        ("bad,0,1,1\nbad,1,n/a,1\n", 5, "y", "'n/a' is not a number", "Leave the cell empty"),
        ("bad,0,1,1\nbad,1,1_000,1\n", 5, "y", "'1_000' is not a number", "Leave the cell empty"),
        ('bad,0,1,1\nbad,1,"3,5",1\n', 5, "y", "'3,5' is not a number", "decimal point"),
        ("bad,2020-01-01,1,1\nbad,1,2,1\n", 4, "t", "'2020-01-01' is not a number", "counted from a start"),
        ("bad,,1,1\nbad,1,2,1\n", 4, "t", "The cell is empty", "Fill it"),
        ("bad,0,1,-2\nbad,1,2,1\n", 4, "v", "variance -2 is negative", "not its logarithm"),
        ("bad,0,1,\nbad,1,2,1\n", 4, "v", "A value has no variance", "Fill the cell"),
        ("bad,0,1,1\n", 4, "t", "Only one time point (0)", "two times or more"),
        ("bad,0,,\nbad,1,,\n", 4, "y", "no observed value", "two times or more"),
        ("bad,0,1,1\nbad,1,2\n", 5, None, "3 cells, and the header has 4", "one cell per column"),
        ("bad,0,1,1\nbad,1,2,1,9\n", 5, None, "5 cells, and the header has 4", "quotation marks"),
        ("bad,0,1,1\nbad,1,2,1\nbad,1,3,1\n", 6, "y", "2 in row 5, 3 here", "columns.duplicates"),
        ("bad,5,1,1\nbad,1,2,1\nbad,4,3,1\nbad,2,4,1\nbad,3,5,1\n", 5, "t", "2 of 4 steps go back", "Sort the rows"),
    ],
)
def test_a_bad_instance_is_set_aside_with_its_place(
    tmp_path: Path, rows: str, row: int, column: str | None, what: str, fix: str
) -> None:
    problem = set_aside(tmp_path, rows)
    assert (problem.instance, problem.row, problem.column) == ("bad", row, column)
    assert what in problem.what
    assert fix in problem.fix


def test_an_na_of_r_is_a_value_that_was_not_observed(tmp_path: Path) -> None:
    path, rows = tmp_path / "f.csv", "time,gene,value\n0,NA,1\n1,NA, NA \n2,NA,3\n"
    columns = ColumnMap(time="time", output="gene", values="value")
    assert refused(path, f"{rows}NA,NA,4\n", columns).what == "The cell is empty.", "a time cannot be missing"
    path.write_text(rows)
    (instance,) = read(path, columns).instances
    assert instance.outputs == ("NA",), "a name is a name"
    assert instance.mask.tolist() == [[True, False, True]]


def test_only_the_first_problem_of_an_instance_is_told_and_the_others_counted(tmp_path: Path) -> None:
    problem = set_aside(tmp_path, "bad,0,nan,1\nbad,1,x,-1\n")
    assert problem.row == 4
    assert "2 more problems" in problem.what


def test_an_unknown_output_names_the_known_ones(tmp_path: Path) -> None:
    columns = ColumnMap(instance="id", time="t", output="g", values="y", expected_outputs=("BIK", "p21"))
    problem = set_aside(
        tmp_path, "bad,0,BIKK,1\nbad,1,BIK,2\n", columns, header="id,t,g,y\n", good="good,0,BIK,1\ngood,1,BIK,1\n"
    )
    assert (problem.row, problem.column) == (4, "g")
    assert "'BIKK' is not known" in problem.what
    assert "BIK, p21" in problem.fix


def test_a_row_without_output_name_is_told(tmp_path: Path) -> None:
    columns = ColumnMap(instance="id", time="t", output="g", values="y")
    problem = set_aside(tmp_path, "bad,0,,1\nbad,1,A,2\n", columns, "id,t,g,y\n", "good,0,A,1\ngood,1,A,1\n")
    assert (problem.row, problem.column) == (4, "g")


def test_conflicting_truth_is_refused_too(tmp_path: Path) -> None:
    columns = ColumnMap(instance="id", time="t", values="y", truth_force="f")
    rows = "bad,0,1,1\nbad,0,1,2\nbad,1,1,1\n"
    problem = set_aside(tmp_path, rows, columns, header="id,t,y,f\n")
    assert (problem.row, problem.column) == (5, "f")


@pytest.mark.parametrize(("line", "column"), [(",1,2,1\n", "id"), ('""\n', None)])
def test_a_row_that_names_no_instance_is_left_out_and_told(tmp_path: Path, line: str, column: str | None) -> None:
    problem = set_aside(tmp_path, line)
    assert (problem.instance, problem.row, problem.column) == (None, 4, column)
    assert "left out" in problem.what


def test_line_numbers_count_lines_and_not_records(tmp_path: Path) -> None:
    assert set_aside(tmp_path, '\n"bad",0,"1",1\n\nbad,1,x,1\n').row == 7


def test_a_misspelt_column_names_the_nearest(tmp_path: Path) -> None:
    problem = refused(tmp_path / "f.csv", "id,time_h,level\na,0,1\n", ColumnMap(time="time", values="level"))
    assert problem.column == "time"
    assert "Did you mean 'time_h'?" in problem.fix
    assert "columns.time" in problem.fix
    assert "id, time_h, level" in problem.fix


@pytest.mark.parametrize(
    ("content", "row", "what", "fix"),
    [
        ("", None, "The file is empty", "header"),
        ("\n\n", None, "The file is empty", "header"),
        ("t,y\n", None, "header and no rows", "two rows"),
        ("t,y\n0,1\n1,caf\xe9\n".encode("latin-1"), 3, "not UTF-8 text: it has byte 0xe9", "encoding UTF-8"),
        ("t,y\n0,1\n".encode("utf-16"), 1, "not UTF-8", "encoding UTF-8"),
        ("t,y\n0,1\n".encode("utf-16-le"), 1, "not UTF-8", "encoding UTF-8"),
        ('t,y\n0,1\n1,"2\n', 3, "not valid CSV", "quotation mark"),
        ("t,y,y\n0,1,2\n", 1, "Two columns are named 'y'", "own name"),
        ("t;y\n0;1\n", 1, "semicolons", "commas"),
        ("t\ty\n0\t1\n", 1, "tabs", "commas"),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    tmp_path: Path, content: str | bytes, row: int | None, what: str, fix: str
) -> None:
    problem = refused(tmp_path / "f.csv", content)
    assert problem.row == row
    assert what in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize("cut", [3, 20, -9])
def test_a_truncated_gzip_is_refused(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(b"t,y\n" + b"".join(b"%d,%d\n" % (i, i * 7919 % 1000) for i in range(200)))
    problem = refused(tmp_path / "f.csv.gz", packed[:cut])
    assert "cut short or damaged" in problem.what
    assert "Copy it again" in problem.fix


def test_a_file_whose_only_instance_is_bad_is_refused_with_its_place(tmp_path: Path) -> None:
    problem = refused(tmp_path / "f.csv", "t,y\n0,1\n1,nan\n")
    assert (problem.instance, problem.row, problem.column) == ("f", 3, "y")


def test_where_that_matches_no_row_is_refused(tmp_path: Path) -> None:
    problem = refused(tmp_path / "f.csv", "t,y,arm\n0,1,a\n", ColumnMap(time="t", values="y", where={"arm": "b"}))
    assert "No row has arm = 'b'" in problem.what


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").touch()
    with pytest.raises(DataError, match=r"Did you mean 'patients.csv'\?"):
        read(tmp_path / "patient.csv")


def test_an_unknown_ending_names_the_known_ones(tmp_path: Path) -> None:
    assert ".csv, .csv.gz, .npz, .parquet" in refused(tmp_path / "f.xlsx", "x").fix


def test_parquet_problems_have_rows_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    table = pa.table({"id": ["a", "a", "b", "b"], "t": [0.0, 1.0, 0.0, 1.0], "y": [1.0, 2.0, 3.0, np.nan]})
    pq.write_table(table, path)
    report = read(path)
    (problem,) = report.set_aside
    assert (problem.file, problem.instance, problem.row, problem.column) == (str(path), "b", 4, "y")
    assert "'nan' is not a finite number" in problem.what


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"t": [0.0, 1.0], "y": [1.0, 2.0]}), path)
    assert "not readable Parquet" in refused(path, path.read_bytes()[:-20]).what
    assert "not readable Parquet" in refused(path, b"").what


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table([pa.array([0.0]), pa.array([0.0])], names=["t", "t"]), path)
    assert "Two columns are named 't'" in refused(path, path.read_bytes()).what


# ---- several series in one -------------------------------------------------------------------------------------------

WARDS = "hour,who,ward,level\n" + "".join(f"{t},{who},w,{t + len(who)}\n" for t in range(4) for who in ("ann", "bo"))


@pytest.mark.parametrize("stacked", [True, False], ids=["one after another", "interleaved"])
@pytest.mark.parametrize("names", [("ann", "bo"), ("1", "2")], ids=["text", "numbers"])
def test_series_that_nobody_told_apart_are_not_made_one(tmp_path: Path, stacked: bool, names: tuple[str, str]) -> None:
    header, *rows = WARDS.replace("ann", names[0]).replace("bo", names[1]).splitlines()
    rows = sorted(rows, key=lambda row: row.split(",")[1]) if stacked else rows
    path = tmp_path / "wards.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(DataError) as caught:
        read(path, ColumnMap(time="hour", values="level"))
    problem = caught.value.problem
    assert problem.column == "who"
    assert f"2 series in one: times are in order within each value of 'who' ('{names[0]}', '{names[1]}')" in str(
        problem
    )
    assert "Set columns.instance=who" in str(problem)
    assert len(read(path, ColumnMap(time="hour", values="level", instance="who"))) == 2


def test_series_that_are_averaged_on_demand_are_named(tmp_path: Path) -> None:
    path = tmp_path / "wards.csv"
    path.write_text(WARDS)
    report = read(path, ColumnMap(time="hour", values="level", duplicates="average"))
    assert report[0].values.tolist() == [[2.5, 3.5, 4.5, 5.5]]
    assert any("Rows of 2 values of 'who' ('ann', 'bo') were put into one series" in str(one) for one in report.notices)


def test_a_column_that_explains_no_disorder_is_no_series(tmp_path: Path) -> None:
    """One series, two of whose rows were swapped, with a remark in each row."""
    rows = [f"{t},{'fed' if t % 3 else 'fasting'},{t}\n" for t in (0, 1, 2, 4, 3, 5, 6, 7, 8)]
    path = tmp_path / "one.csv"
    path.write_text("hour,remark,level\n" + "".join(rows))
    report = read(path, ColumnMap(time="hour", values="level"))
    assert report[0].times.tolist() == list(range(9))
    assert any("Times were sorted" in str(one) for one in report.notices)
