"""Whatever instance is written comes back the same, from each format."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distlfm.data import ColumnMap, read, write_npz
from distlfm.instance import Instance, Truth

finite = st.floats(-1e9, 1e9, allow_nan=False).map(lambda number: number + 0.0)
names = st.text("abcXYZ019 _-é/", min_size=1, max_size=6).map(lambda text: f"i{text}".strip())


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


def records(fleet: list[Instance], long: bool) -> list[dict[str, Any]]:
    """Rows of a table; None where nothing was observed."""
    rows: list[dict[str, Any]] = []
    for instance in fleet:
        truth, variance = instance.truth, instance.variance
        assert truth is not None
        assert truth.force is not None
        assert truth.outputs is not None
        assert variance is not None
        for n, t in enumerate(instance.times):
            row: dict[str, Any] = {"who": instance.id, "t": float(t), "f": float(truth.force[0, n])}
            if instance.positions is not None:
                row |= {f"x{k}": float(instance.positions[n, k]) for k in range(instance.positions.shape[1])}
            for p, output in enumerate(instance.outputs):
                seen = bool(instance.mask[p, n])
                cells = {
                    "value": float(instance.values[p, n]) if seen else None,
                    "noise": float(variance[p, n]) if seen else None,
                    "clean": float(truth.outputs[p, n]),
                }
                if long:
                    rows.append(row | {"output": output} | cells)
                else:
                    row |= {f"{kind}_{output}": cell for kind, cell in cells.items()}
            if not long:
                rows.append(row)
    return rows


def column_map(outputs: tuple[str, ...], long: bool, d: int = 0) -> ColumnMap:
    common: dict[str, Any] = {"instance": "who", "time": "t", "truth_force": "f"}
    common["positions"] = tuple(f"x{k}" for k in range(d))
    if long:
        return ColumnMap(output="output", values="value", variance="noise", truth_outputs="clean", **common)
    return ColumnMap(
        values=tuple(f"value_{name}" for name in outputs),
        variance={f"value_{name}": f"noise_{name}" for name in outputs},
        truth_outputs=tuple(f"clean_{name}" for name in outputs),
        **common,
    )


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("d", [0, 2])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_tables_give_instances_back(suffix: str, long: bool, d: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(names, min_size=1, max_size=3, unique=True))
    fleet = [data.draw(instances(name, d=d)) for name in ids]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"fleet{suffix}"
        write_table(path, records(fleet, long))
        report = read(path, column_map(("a", "b"), long, d))
    assert report.set_aside == []
    for given_, back in zip(fleet, report.instances, strict=True):
        outputs = back.outputs if long else tuple(name.removeprefix("value_") for name in back.outputs)
        assert outputs == given_.outputs
        assert_same(given_, Instance(**{**vars(back), "outputs": outputs}))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_npz_gives_instances_back_with_their_truth(data: st.DataObject) -> None:
    ids = data.draw(st.lists(names, min_size=1, max_size=12, unique=True))
    fleet = []
    for name in ids:
        instance = data.draw(instances(name, d=data.draw(st.sampled_from([0, 1]))))
        truth = instance.truth
        assert truth is not None
        truth = Truth(truth.times, truth.force, truth.outputs, truth.positions, {"decay": np.array([0.1, 0.2])})
        changes: dict[str, Any] = data.draw(st.sampled_from([{"truth": truth}, {"truth": None}, {"variance": None}]))
        fleet.append(Instance(**{**vars(instance), "metadata": {"ward": "ä 3", "empty": ""}, **changes}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.npz"
        write_npz(path, fleet)
        assert [entry.name for entry in Path(folder).iterdir()] == ["fleet.npz"]
        report = read(path)
    assert report.set_aside == []
    for given_, back in zip(fleet, report.instances, strict=True):
        assert_same(given_, back)
        assert back.metadata == given_.metadata
