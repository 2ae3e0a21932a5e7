"""Quantiles of mixtures, which the bands of every answer are."""

from __future__ import annotations

import pytest
import torch

from distlfm.inference.base import AT_ONCE, Mixture


def test_quantiles_of_many_points_are_those_of_each_point_alone() -> None:
    stream = torch.Generator().manual_seed(0)
    shape = (96, 3, AT_ONCE // 96)
    means = torch.randn(shape, generator=stream, dtype=torch.float64)
    variances = torch.rand(shape, generator=stream, dtype=torch.float64)
    together = Mixture(means, variances).quantile(0.975)
    assert together.shape == shape[1:]
    for place in ((0, 0), (1, 7), (2, shape[2] - 1)):
        alone = Mixture(means[:, *place], variances[:, *place]).quantile(0.975)
        torch.testing.assert_close(together[place], alone, rtol=0, atol=1e-10)


def test_the_quantile_of_one_component_is_the_normal_ones() -> None:
    found = Mixture(torch.full((1, 4), 2.0).double(), torch.full((1, 4), 9.0).double()).quantile(0.975)
    torch.testing.assert_close(found, torch.full_like(found, 2 + 3 * 1.959963984540054), rtol=0, atol=1e-9)


def test_a_search_that_has_arrived_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, normal = [], torch.special.ndtr
    monkeypatch.setattr(torch.special, "ndtr", lambda x: (steps.append(1), normal(x))[1])
    stream = torch.Generator().manual_seed(1)
    means, variances = (torch.rand(96, 300, generator=stream, dtype=torch.float64) for _ in range(2))
    Mixture(means, 0.1 + variances).quantile(0.025)
    assert len(steps) < 15
