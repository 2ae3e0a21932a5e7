"""The elements with which the paper's software is run on fields are those of its finite elements."""

from __future__ import annotations

import numpy as np

from benchmarks.paper_fields import assembled


def test_waves_of_linear_elements_decay_at_the_rate_that_theory_gives() -> None:
    num_cells, wave = 40, 3
    nodes = np.linspace(0, 1, num_cells + 1)
    mass, stiff = assembled(nodes)
    shape = np.sin(wave * np.pi * nodes)
    turn = np.cos(wave * np.pi / num_cells)
    rate = 6 * num_cells**2 * (1 - turn) / (2 + turn)
    np.testing.assert_allclose((stiff @ shape)[1:-1], rate * (mass @ shape)[1:-1], atol=1e-9)


def test_elements_of_uneven_width_integrate_a_line_and_its_slope_exactly() -> None:
    nodes = np.array([0.0, 0.1, 0.4, 1.0])
    mass, stiff = assembled(nodes)
    line = 2 + 3 * nodes
    assert np.isclose(line @ mass @ line, 4 + 6 + 3)  # the integral of (2 + 3x)²
    assert np.isclose(line @ stiff @ line, 9)
