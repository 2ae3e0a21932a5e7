"""A folder is read file by file; a bad file does not stop the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distlfm.data import ColumnMap, iter_instances, read
from distlfm.errors import DataError, DistlfmWarning


def test_every_format_is_read_and_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("patient,t,y\n001,0,1\n001,1,2\n002,0,1\n002,1,2\n")
    (tmp_path / "b.csv").write_text("t,y\n0,1\n1,2\n")
    (tmp_path / "c.csv").write_text("patient,t,y\nc,0,1\nc,1,2\n")
    np.savez(tmp_path / "d.npz", times=np.array([0.0, 1.0]), values=np.array([[1.0, 2.0]]), outputs=np.array(["y"]))
    assert [instance.id for instance in read(tmp_path)] == ["a/001", "a/002", "b", "c", "d"]


def test_an_unreadable_file_is_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,y\n0,1\n1,2\n")
    (tmp_path / "b.csv.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "c.csv").write_text("patient,t,y\n1,0,1\n1,1,nan\n1,2,3\n2,0,1\n2,1,2\n")
    report = read(tmp_path)
    assert [instance.id for instance in report] == ["a", "c/2"]
    assert [(Path(p.file).name, p.instance, p.row) for p in report.set_aside] == [
        ("b.csv.gz", None, None),
        ("c.csv", "c/1", 3),
    ]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".hidden.csv").touch()
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert caught.value.problem.file == str(tmp_path)
    assert "no file that can be read (1 other" in caught.value.problem.what
    assert ".csv.gz" in caught.value.problem.fix


def test_a_folder_of_bad_files_is_refused_with_the_first_problem(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").touch()
    with pytest.raises(DataError, match=r"a\.csv: The file is empty\. \(There are 2 more problems\.\)"):
        read(tmp_path)


def test_two_files_of_one_name_do_not_hide_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,y\n0,1\n1,2\n")
    np.savez(tmp_path / "a.npz", times=np.array([0.0, 1.0]), values=np.array([[1.0, 2.0]]), outputs=np.array(["y"]))
    report = read(tmp_path)
    assert len(report) == 1
    assert "already there, from a.csv" in report.set_aside[0].what


def test_what_is_said_of_whole_files_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("t,y\n0,1\n1,2\n")
    notices = [notice.what for notice in read(tmp_path).notices]
    assert len(notices) == 2
    assert "README.md was not read" in notices[0]
    assert "guessed" in notices[1]


def test_what_was_left_in_a_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,y\n0,1\n1,2\n")
    (tmp_path / "b.xlsx").touch()
    (one,) = [notice for notice in read(tmp_path).notices if "not read" in notice.what]
    assert one.what == "b.xlsx was not read."
    assert "end in .csv, .csv.gz, .npz, .parquet are: save other data as .csv." in one.fix
    assert "Folders" not in one.fix
    (tmp_path / "b.xlsx").unlink()
    (tmp_path / "north").mkdir()
    (one,) = [notice for notice in read(tmp_path).notices if "not read" in notice.what]
    assert one.what == "north (a folder) was not read."
    assert one.fix.startswith("Folders inside are not opened: move data out of them")
    for name in "cdef":
        (tmp_path / name).touch()
    (both,) = [notice for notice in read(tmp_path).notices if "not read" in notice.what]
    assert both.what == "c, d, e and 2 more were not read."
    assert ".csv" in both.fix
    assert "Folders" in both.fix


def test_a_folder_of_folders_says_that_one_of_them_is_to_be_given(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    with pytest.raises(DataError, match=r"Folders inside it are not opened: give one of them, such as .*north\."):
        read(tmp_path)


def test_other_outputs_and_other_units_between_files_are_noticed(tmp_path: Path) -> None:
    columns = ColumnMap(time="t", output="gene", values="y")
    (tmp_path / "a.csv").write_text("t,gene,y\n0,A,1\n0,B,1\n1,A,2\n1,B,2\n")
    (tmp_path / "b.csv").write_text("t,gene,y\n0,B,1\n0,A,1\n1,B,2\n1,A,2\n")
    (tmp_path / "c.csv").write_text("t,gene,y\n0,A,1000\n0,B,1\n1,A,2000\n1,B,2\n")
    first, second = read(tmp_path, columns).notices
    assert (first.instance, second.instance, second.column) == ("b", "c", "A")
    assert "columns.expected_outputs" in first.fix
    fixed = read(tmp_path, columns.model_copy(update={"expected_outputs": ("A", "B")}))
    assert {instance.outputs for instance in fixed} == {("A", "B")}


def test_one_file_is_held_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,y\n0,1\n1,2\n")
    (tmp_path / "b.csv").touch()
    stream = iter_instances(tmp_path)
    assert next(stream).id == "a"
    with pytest.warns(DistlfmWarning, match="The file is empty"):
        assert list(stream) == []
