"""Tables of either shape become the same instances, and the truth never becomes a value."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from distlfm.data import ColumnMap, examine, iter_instances, read
from distlfm.errors import DistlfmWarning

LONG = """who,hour,gene,level,noise
a,0,X,1,0.1
a,0,Y,2,0.2
a,1,X,3,0.3
a,1,Y,4,0.4
b,0,X,5,0.5
b,2,X,7,0.7
b,2,Y,8,0.8
"""
LONG_MAP = ColumnMap(instance="who", time="hour", output="gene", values="level", variance="noise")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_of_one_value_become_outputs_by_points(tmp_path: Path) -> None:
    a, b = read(write(tmp_path / "f.csv", LONG), LONG_MAP)
    assert (a.id, b.id) == ("a", "b")
    assert a.outputs == b.outputs == ("X", "Y")
    assert a.values.tolist() == [[1, 3], [2, 4]]
    assert b.times.tolist() == [0, 2]
    assert b.mask.tolist() == [[True, True], [False, True]]
    assert b.values[1, 0] == 0
    assert a.variance is not None
    assert a.variance.tolist() == [[0.1, 0.3], [0.2, 0.4]]
    assert a.metadata["source"] == "f.csv"


def test_rows_of_several_values_give_one_output_a_column(tmp_path: Path) -> None:
    path = write(tmp_path / "one.csv", "t,X,Y,vx,vy\n0,1,2,.1,.2\n1,3,,.3,\n")
    columns = ColumnMap(time="t", values=("X", "Y"), variance={"X": "vx", "Y": "vy"})
    (instance,) = read(path, columns)
    assert instance.id == "one"
    assert instance.values.tolist() == [[1, 3], [2, 0]]
    assert instance.mask.tolist() == [[True, True], [True, False]]
    assert instance.variance is not None
    assert instance.variance[:, 0].tolist() == [0.1, 0.2]
    assert np.isfinite(instance.variance).all()


def test_byte_order_mark_blank_lines_quotes_and_gzip_are_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "f.csv.gz"
    path.write_bytes(gzip.compress('\ufefft,"y, scaled"\r\n0,1\r\n\r\n" 1 ", 2 \r\n'.encode()))
    (instance,) = read(path, ColumnMap(time="t", values="y, scaled"))
    assert instance.id == "f"
    assert instance.values.tolist() == [[1, 2]]


def test_truth_covers_points_that_were_not_observed_and_stays_out_of_values(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", "t,y,force,clean\n0,1,10,1.5\n1,,20,2.5\n2,3,30,3.5\n3,4,,\n")
    (instance,) = read(path, ColumnMap(time="t", values="y", truth_force="force", truth_outputs="clean"))
    assert instance.outputs == ("y",)
    assert instance.mask.tolist() == [[True, False, True, True]]
    assert instance.truth is not None
    assert instance.truth.times.tolist() == [0, 1, 2]
    assert instance.truth.force is not None
    assert instance.truth.force.tolist() == [[10, 20, 30]]
    assert instance.truth.outputs is not None
    assert instance.truth.outputs.tolist() == [[1.5, 2.5, 3.5]]


def test_truth_of_rows_of_one_value_is_shared_force_and_own_output(tmp_path: Path) -> None:
    text = "t,gene,y,f,clean\n0,A,1,10,1.5\n0,B,2,10,2.5\n1,A,3,20,3.5\n1,B,4,20,4.5\n"
    columns = ColumnMap(time="t", output="gene", values="y", truth_force="f", truth_outputs="clean")
    (instance,) = read(write(tmp_path / "f.csv", text), columns)
    assert instance.truth is not None
    assert instance.truth.force is not None
    assert instance.truth.force.tolist() == [[10, 20]]
    assert instance.truth.outputs is not None
    assert instance.truth.outputs.tolist() == [[1.5, 3.5], [2.5, 4.5]]


def test_where_keeps_only_the_rows_that_match_and_forgives_the_others(tmp_path: Path) -> None:
    text = "t,arm,y\n0,drug,1\n0,placebo,nan\n1,drug,2\n1,placebo\n1,placebo,5\n"
    report = read(write(tmp_path / "f.csv", text), ColumnMap(time="t", values="y", where={"arm": "drug"}))
    assert report.instances[0].values.tolist() == [[1, 2]]
    assert report.set_aside == []


def test_expected_outputs_fix_the_order(tmp_path: Path) -> None:
    columns = LONG_MAP.model_copy(update={"expected_outputs": ("Y", "X")})
    assert read(write(tmp_path / "f.csv", LONG), columns).instances[0].outputs == ("Y", "X")


def test_values_a_thousand_times_larger_get_a_unit_notice(tmp_path: Path) -> None:
    rows = [f"{who},{t},{(5 + t) * (1000 if who == 'c' else 1)}" for who in "abcd" for t in range(3)]
    path = write(tmp_path / "f.csv", "\n".join(["id,t,y", *rows]))
    report = read(path, ColumnMap(instance="id", time="t", values="y"))
    (notice,) = report.notices
    assert (notice.instance, notice.column) == ("c", "y")
    assert "1e+03 times larger" in notice.what
    assert "unit" in notice.fix


def test_an_output_that_some_instances_lack_is_noticed(tmp_path: Path) -> None:
    report = read(write(tmp_path / "f.csv", LONG.replace("b,2,Y,8,0.8\n", "")), LONG_MAP)
    assert ["'Y' has values in 1 of 2" in notice.what for notice in report.notices] == [True]


def test_typed_parquet_columns_read_like_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "who": pa.array([1, 1, 2, 2]),
            "t": pa.array([0, 1, 0, 1], pa.int32()),
            "gene": pa.array(["X", "X", "X", "X"]).dictionary_encode(),
            "y": pa.array([1.0, None, 3.0, 4.0]),
            "z": pa.array(["1", "2", "3", "4"]),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet")
    columns = ColumnMap(instance="who", time="t", output="gene", values="y", truth_force="z")
    report = examine(tmp_path / "f.parquet", columns)
    assert [instance.id for instance in report] == ["2"]
    assert report.instances[0].truth is not None
    assert report.set_aside[0].what == "Only one time point (0) has a value."


def test_instances_can_be_taken_one_by_one_with_a_warning_for_each_set_aside(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", LONG.replace("b,2,X,7", "b,2,X,nan"))
    with pytest.warns(DistlfmWarning, match="row 7"):
        assert [instance.id for instance in iter_instances(path, LONG_MAP)] == ["a"]


def test_fifty_thousand_rows_take_well_under_a_second(tmp_path: Path) -> None:
    rows = "\n".join(f"p{i // 2000},{i % 2000 * 5.0},{i % 97}.5" for i in range(50_000))
    path = write(tmp_path / "f.csv", "patient,time_min,glucose\n" + rows)
    best = min(_seconds(path) for _ in range(3))
    assert best < 1.0


def _seconds(path: Path) -> float:
    start = time.process_time()
    assert len(read(path)) == 25
    return time.process_time() - start


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"values": ()}, "at least 1 item"),
        ({"values": "y", "colour": "red"}, "Extra inputs are not permitted"),
        ({"values": ("y", "z"), "output": "gene"}, "`values` is one column"),
        ({"values": "t"}, "'t' is given two parts"),
        ({"values": ("y", "z"), "variance": "v"}, "must map each value column"),
        ({"values": ("y", "z"), "variance": {"y": "v"}}, "exactly the keys"),
        ({"values": ("y", "z"), "truth_outputs": "c"}, "one column for each"),
        ({"values": "y", "expected_outputs": "a"}, "belongs with `output`"),
        ({"values": "y", "duplicates": "drop"}, "'refuse' or 'average'"),
    ],
)
def test_a_column_map_that_contradicts_itself_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ColumnMap.model_validate({"time": "t"} | fields)
