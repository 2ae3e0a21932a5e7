"""Instances go into a store and come back the same: gaps, variances, positions and the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlfm.errors import UsageError
from distlfm.instance import Instance
from distlfm.store import STATUSES, Store, StoreSpec, pack
from distlfm.store.block import unpack
from tests.support.store_factories import NODES, SQUARE, make_block, make_spec, make_store


def make_instance(spec: StoreSpec, seed: int, points: int, variance: bool = False) -> Instance:
    rng = np.random.default_rng(seed)
    shape = (len(spec.outputs), points)
    mask = rng.random(shape) > 0.4
    mask[0, 0] = True
    positions = rng.normal(size=(points, len(spec.space))) if spec.space else None
    return Instance(
        id=f"ä-{seed}",
        outputs=spec.outputs,
        times=np.cumsum(0.1 + rng.random(points)),
        values=np.where(mask, rng.normal(size=shape), 0.0),
        mask=mask,
        positions=positions,
        variance=rng.random(shape) if variance else None,
    )


def assert_same(found: Instance, expected: Instance) -> None:
    assert (found.id, found.outputs) == (expected.id, expected.outputs)
    for name in ("times", "values", "mask", "positions", "variance"):
        one, two = getattr(found, name), getattr(expected, name)
        assert (one is None) == (two is None), name
        if one is not None:
            np.testing.assert_array_equal(one, two, err_msg=name)


@given(
    seed=st.integers(0, 10**6),
    points=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    with_variance=st.lists(st.booleans(), min_size=4, max_size=4),
    in_space=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_observations_come_back_whatever_is_missing(
    seed: int, points: list[int], with_variance: list[bool], in_space: bool
) -> None:
    spec = make_spec(variance=any(with_variance), **(SQUARE if in_space else {}))
    given_ones = [
        make_instance(spec, seed + i, count, with_variance[i] and spec.variance) for i, count in enumerate(points)
    ]
    for found, expected in zip(unpack(spec, pack(spec, given_ones)), given_ones, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("layout", [{}, {"times": None}, SQUARE, NODES])
def test_instances_are_read_from_the_disk_without_truth_from_a_fit(tmp_path: Path, layout: dict[str, object]) -> None:
    spec = make_spec(variance=True, instances=5, **layout)
    expected = [make_instance(spec, i, 2 + i % 5, variance=i % 2 == 0) for i in range(5)]
    store = Store.create(tmp_path / "s.zarr", spec)
    for index in range(spec.num_blocks):
        part = [expected[i] for i in store.block_range(index)]
        status = np.full(len(part), STATUSES["converged"])
        store.write_block(index, {**pack(spec, part), "status": status}, [{}] * len(part))
    for found, one in zip(Store.open(store.path).instances(), expected, strict=True):
        assert_same(found, one)
        assert found.truth is None


def test_outputs_in_another_order_are_sorted_into_the_stores(tmp_path: Path) -> None:
    spec = make_spec()
    one = make_instance(spec, 3, 5)
    turned = replace(one, outputs=one.outputs[::-1], values=one.values[::-1], mask=one.mask[::-1])
    assert_same(unpack(spec, pack(spec, [turned]))[0], one)


@pytest.mark.parametrize("times", [(0.0, 1.0, 2.0, 3.0, 4.5), None])
def test_generated_store_gives_the_truth_on_its_grid(tmp_path: Path, times: tuple[float, ...] | None) -> None:
    store = make_store(tmp_path / "s.zarr", kind="generate", times=times)
    arrays, _ = make_block(store, 1)
    truth = store.instances(4, 8)[2].truth
    assert truth is not None
    np.testing.assert_array_equal(truth.times, times if times is not None else arrays["time"][2])
    np.testing.assert_array_equal(truth.force, arrays["force_mean"][2])
    np.testing.assert_array_equal(truth.outputs, arrays["solution_mean"][2])
    assert set(truth.parameters) == {"decay", "noise"}
    np.testing.assert_array_equal(truth.parameters["decay"], arrays["params_mean"][2, :2])
    np.testing.assert_array_equal(truth.parameters["noise"], arrays["params_mean"][2, 2:])
    assert truth.positions is None


@pytest.mark.parametrize("layout", [SQUARE, NODES])
def test_truth_of_a_field_has_a_place_for_every_value(tmp_path: Path, layout: dict[str, object]) -> None:
    store = make_store(tmp_path / "s.zarr", kind="generate", **layout)
    arrays, _ = make_block(store, 0)
    truth = store.instances(0, 2)[1].truth
    assert truth is not None
    assert truth.positions is not None
    assert truth.force is not None
    for point in range(len(truth.times)):
        step = store.spec.times.index(truth.times[point])  # type: ignore[union-attr]
        if store.spec.lattice is not None:
            where = tuple(axis.index(at) for axis, at in zip(store.spec.lattice, truth.positions[point], strict=True))
        else:
            assert store.spec.nodes is not None
            where = (store.spec.nodes.index(tuple(truth.positions[point])),)
        assert truth.force[0, point] == arrays["force_mean"][(1, 0, step, *where)]
        assert truth.outputs[1, point] == arrays["solution_mean"][(1, 1, step, *where)]  # type: ignore[index]


def test_rows_without_observations_and_missing_blocks_are_left_out(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", blocks=[0])
    arrays, rows = make_block(store, 1)
    arrays["observed"][2] = np.nan
    store.write_block(1, arrays, rows)
    assert [one.id for one in store.instances()] == [f"patient-{i}" for i in (0, 1, 2, 3, 4, 5, 7)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": ("a", "b")}, "has the outputs p21, DDB2, and the store a, b"),
        ({"samples": 3}, "5 observation points, and the store has room for 3"),
        (SQUARE, "0 space dimensions, and the store has 2"),
    ],
)
def test_instance_that_does_not_fit_the_store_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pack(make_spec(**change), [make_instance(make_spec(), 1, 5)])
    with pytest.raises(UsageError, match="no room for them"):
        pack(make_spec(), [make_instance(make_spec(variance=True), 1, 5, variance=True)])
