"""NumPy archives of both forms, and what is wrong with bad ones."""

from __future__ import annotations

import io
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlfm.data import examine, read
from distlfm.errors import DataError, Problem

T = np.array([0.0, 1.0, 2.0])
Y = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def only_problem(path: Path, **arrays: Any) -> Problem:
    np.savez(path, **arrays)
    (problem,) = examine(path).set_aside
    assert problem.file == str(path)
    assert problem.fix
    return problem


def refused(path: Path) -> Problem:
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.problem.file == str(path)
    return caught.value.problem


def test_times_and_values_are_enough(tmp_path: Path) -> None:
    np.savez(tmp_path / "cell.npz", times=T, values=Y)
    (instance,) = read(tmp_path / "cell.npz")
    assert (instance.id, instance.outputs) == ("cell", ("output_0", "output_1"))
    assert instance.mask.all()
    np.savez(
        tmp_path / "two.npz", **{f"{i}/{key}": array for i in range(2) for key, array in (("times", T), ("values", Y))}
    )
    assert [one.id for one in read(tmp_path / "two.npz")] == ["two_0", "two_1"]
    np.savez(tmp_path / "flat.npz", times=T, values=Y[0])
    assert read(tmp_path / "flat.npz").instances[0].values.shape == (1, 3)


def test_a_simulation_keeps_its_truth_apart(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "sim.npz",
        t=T,
        y=np.stack([Y, Y + 1]),
        force=np.ones((2, 3)),
        decay=np.array([[0.1, 0.2], [0.3, 0.4]]),
        decay_as_recorded=np.zeros((2, 2)),
        train_stride=np.array(2),
    )
    _, second = read(tmp_path / "sim.npz")
    assert second.id == "sim_1"
    assert second.metadata == {"train_stride": "2"}
    assert second.truth is not None
    assert second.truth.force is not None
    assert second.truth.force.shape == (1, 3)
    assert {key: value.tolist() for key, value in second.truth.parameters.items()} == {"decay": [0.3, 0.4]}
    assert second.truth.outputs is not None
    np.testing.assert_array_equal(second.truth.outputs, Y + 1)


@pytest.mark.parametrize(
    ("changes", "column", "what"),
    [
        ({"values": np.where(Y == 5, np.nan, Y)}, "values", "values[1, 1] is nan"),
        ({"values": np.array([["a", "b", "c"]])}, "values", "holds <U1 and not numbers"),
        ({"times": np.zeros((2, 2, 2))}, "times", "has 3 dimensions"),
        ({"maks": Y > 0}, "maks", "'maks' is not known"),
        ({"times": T[::-1]}, None, "Times do not increase"),
        ({"values": Y[:, :2]}, None, "values has shape (2, 2)"),
        ({"variance": -Y}, None, "variance is negative"),
        ({"truth/force": np.ones((1, 2))}, "truth/force", "has shape (1, 2) for 3 true times"),
        ({"truth/outputs": np.ones((1, 3))}, "truth/outputs", "has shape (1, 3)"),
        ({"truth/positions": np.ones((2, 1))}, "truth/positions", "has shape (2, 1)"),
        ({"truth/parameters/decay": np.array("x")}, "truth/parameters/decay", "not numbers"),
        ({"mask": np.array([["x"]])}, "mask", "not numbers"),
    ],
)
def test_a_bad_array_is_named(tmp_path: Path, changes: dict[str, Any], column: str | None, what: str) -> None:
    problem = only_problem(tmp_path / "f.npz", **({"times": T, "values": Y} | changes))
    assert (problem.instance, problem.column) == ("f", column)
    assert what in problem.what


def test_the_bad_instance_is_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    y = np.stack([Y, np.full_like(Y, np.inf), Y])
    np.savez(tmp_path / "f.npz", t=T, y=y)
    report = read(tmp_path / "f.npz")
    assert [instance.id for instance in report] == ["f_0", "f_2"]
    assert [problem.instance for problem in report.set_aside] == ["f_1"]


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    np.savez(path, times=np.array([{}, {}], dtype=object), values=Y)
    assert "holds Python objects" in refused(path).what


@pytest.mark.parametrize("content", [b"", b"not a zip file at all", b"PK\x03\x04 then nothing"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.npz").write_bytes(content)
    assert "not a readable npz archive" in refused(tmp_path / "f.npz").what


def test_a_truncated_or_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    np.savez_compressed(path, times=T, values=Y)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "cut short" in refused(path).what
    path.write_bytes(whole[:80] + bytes(60) + whole[140:])
    assert "not a readable npz archive" in refused(path).what


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_damage_in_an_archive_that_is_not_compressed_is_a_data_error_or_a_report(data: st.DataObject) -> None:
    whole = io.BytesIO()
    np.savez(whole, times=T, values=Y, outputs=np.array(["a", "b"]), mask=Y > 0)
    damaged = bytearray(whole.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.npz"
        path.write_bytes(bytes(damaged))
        with suppress(DataError):
            for problem in examine(path).set_aside:
                assert problem.file == str(path)
                assert problem.fix


def test_an_archive_of_another_form_names_what_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", weights=T, bias=T)
    problem = refused(tmp_path / "f.npz")
    assert "neither of the known forms" in problem.what
    assert "weights, bias" in problem.fix


def test_a_simulation_of_other_shapes_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", t=T, y=Y)
    assert "y (2, 3)" in refused(tmp_path / "f.npz").what
    np.savez(tmp_path / "f.npz", t=T, y=Y[np.newaxis], force=np.ones((4, 3)))
    assert "force has shape (4, 3) for 1 instances" in refused(tmp_path / "f.npz").what
