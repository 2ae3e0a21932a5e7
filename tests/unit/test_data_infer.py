"""Columns are guessed only where the header leaves no doubt, and the guess is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlfm.data import read
from distlfm.errors import DataError


@pytest.mark.parametrize(
    ("header", "row", "taken"),
    [
        ("t,y", "{t},1", "time = 't', values = 'y'"),
        ("Patient,Time_min,glucose", "a,{t},5", "time = 'Time_min', instance = 'Patient', values = 'glucose'"),
        (
            "replicate,time_h,gene,expression,variance",
            "1,{t},BIK,2,3",
            "time = 'time_h', instance = 'replicate', output = 'gene', values = 'expression', variance = 'variance'",
        ),
        ("Sample ID,Time (h),level", "a,{t},5", "time = 'Time (h)', instance = 'Sample ID', values = 'level'"),
        ("donor,time [min],level", "a,{t},5", "time = 'time [min]', instance = 'donor', values = 'level'"),
        ("year,x,u", "{t},0.5,1", "time = 'year', values = 'u', positions = 'x'"),
        ("t,position,output", "{t},0.5,1", "time = 't', values = 'output', positions = 'position'"),
        ("subject_id,t,output,level", "s,{t},A,1", "instance = 'subject_id', output = 'output', values = 'level'"),
    ],
)
def test_a_clear_header_is_taken_and_told(tmp_path: Path, header: str, row: str, taken: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text("\n".join([header, row.format(t=0), row.format(t=1)]))
    report = read(path)
    assert len(report) == 1
    (notice,) = report.notices
    assert notice.file == str(path)
    assert "guessed" in notice.what
    assert taken in notice.what


@pytest.mark.parametrize(
    ("header", "row", "what"),
    [
        ("when,y", "0,1", "No column is clearly the time"),
        ("t,time_h,y", "0,0,1", "'t', 'time_h' could each be the time"),
        ("id,patient,t,y", "a,b,0,1", "'id', 'patient' could each be the instance"),
        ("t,force,output", "0,1,2", "'force', 'output' could each be the observed values"),
        ("t,gene,output,y", "0,A,B,2", "'gene', 'output' could each name the output"),
        ("t,x", "0,1", "No column is clearly the observed values"),
        ("t,note", "0,hello", "No column is clearly the observed values"),
    ],
)
def test_doubt_is_refused_and_names_the_keys_to_set(tmp_path: Path, header: str, row: str, what: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text(f"{header}\n{row}\n{row}\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert what in caught.value.problem.what
    for key in ("columns.time", "columns.values", "columns.instance", "columns.truth_force", header.replace(",", ", ")):
        assert key in caught.value.problem.fix
