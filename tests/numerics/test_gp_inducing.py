"""Inducing points: they span the data of their own instance, and never coincide."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distlfm.errors import UsageError
from distlfm.gp.inducing import (
    MAX_INDUCING,
    MIN_INDUCING,
    default_num_inducing,
    place_on_box,
    place_on_points,
    place_on_times,
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(2, 12), num_inducing=st.integers(2, 15))
def test_points_span_the_observed_times_and_differ(seed: int, n: int, num_inducing: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    times = torch.randint(0, 9, (3, n), generator=generator).double()
    mask = torch.rand(3, n, generator=generator) < 0.7
    mask[:, 0] = True
    times[:, 1], mask[:, 1] = times[:, 0] + 1, True
    points = place_on_times(times, mask, num_inducing=num_inducing)
    assert points.shape == (3, num_inducing, 1)
    for b in range(3):
        seen = times[b][mask[b]]
        torch.testing.assert_close(points[b, 0, 0], seen.min())
        torch.testing.assert_close(points[b, -1, 0], seen.max())
        assert (points[b, 1:] > points[b, :-1]).all()
        alone = place_on_times(seen[None], num_inducing=num_inducing)
        torch.testing.assert_close(points[b], alone[0])


def test_quantiles_follow_the_density_of_the_observations() -> None:
    times = torch.cat([torch.linspace(0, 1, 30), torch.linspace(1.1, 10, 10)]).double()[None]
    points = place_on_times(times, num_inducing=20)
    assert (points < 1.1).sum() >= 10  # of 20; equal gaps would put 3 there


def test_an_instance_without_observations_is_placed_by_its_times() -> None:
    times = torch.linspace(0, 4, 5).double().expand(2, 5)
    mask = torch.tensor([[True] * 5, [False] * 5])
    points = place_on_times(times, mask, num_inducing=3)
    assert torch.equal(points[0], points[1])


def test_farthest_points_spread_and_ignore_what_is_masked() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2, 200, 2, generator=generator, dtype=torch.float64) * torch.tensor([100.0, 0.1])
    mask = torch.ones(2, 200, dtype=torch.bool)
    points[1, 100:], mask[1, 100:] = 1e6, False
    chosen = place_on_points(points, mask, num_inducing=12)
    assert chosen.shape == (2, 12, 2)
    unit = chosen / torch.tensor([100.0, 0.1])
    assert unit.max() <= 1
    for b in range(2):
        # Twelve points on the unit square can be about 0.3 apart at best.
        assert torch.pdist(unit[b]).min() > 0.18
    alone = place_on_points(points[1:, :100], num_inducing=12)
    torch.testing.assert_close(chosen[1:], alone)


def test_more_points_than_data_still_differ() -> None:
    corners = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1], [1, 1]]).double()[None]
    chosen = place_on_points(corners, num_inducing=10)
    assert torch.pdist(chosen[0]).min() > 0.05
    assert {tuple(row) for row in chosen[0, :4].tolist()} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_the_box_grid_has_its_corners() -> None:
    grid = place_on_box(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 5.0]]), (3, 2))
    assert grid.tolist() == [[[0, 1], [0, 5], [1, 1], [1, 5], [2, 1], [2, 5]]]
    with pytest.raises(UsageError, match="one per dimension"):
        place_on_box(torch.zeros(1, 2), torch.ones(1, 2), (3,))


def test_the_default_number_follows_the_distinct_observed_times() -> None:
    times = torch.arange(30).double().expand(2, 30)
    mask = torch.ones(2, 30, dtype=torch.bool)
    assert default_num_inducing(times) == 30
    mask[:, 20:] = False
    assert default_num_inducing(times, mask) == 20
    assert default_num_inducing(times[:, :5]) == MIN_INDUCING
    assert default_num_inducing(torch.arange(500).double()[None]) == MAX_INDUCING
    repeated = torch.arange(15).double().repeat_interleave(4)[None]
    assert default_num_inducing(repeated) == 15
    with pytest.raises(UsageError, match="at least one"):
        place_on_times(times, num_inducing=0)
