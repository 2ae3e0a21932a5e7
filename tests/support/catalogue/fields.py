"""Cases of fields: diffusion along a rod between cold ends, by finite differences that share no code with the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from distlfm.instance import FloatArray, Instance, Truth
from tests.support.catalogue.case import Case

DIFFUSION, DECAY, NOISE = 0.02, 0.5, 0.02
CELLS = 80
TIMES, PLACES = np.linspace(0.0, 1.0, 7), np.linspace(0.0, 1.0, 9)

ROD: dict[str, Any] = {
    "kind": "reaction_diffusion",
    "mesh": {"kind": "interval", "lower": [0.0], "upper": [1.0], "size": 0.1},
    "boundary": {"all": {"kind": "dirichlet"}},
    "fixed": {"sensitivity": 1.0, "decay": DECAY, "diffusion": DIFFUSION},
}
SMOOTH = {"priors": {"lengthscale": {"kind": "lognormal", "median": 0.4, "spread": 0.2}}}
LIKELIHOOD = {"prior": {"kind": "lognormal", "median": 0.02, "spread": 0.3}}
FEW = {"posterior": {"draws": 16}}


def source(t: FloatArray, x: FloatArray) -> FloatArray:
    return np.sin(3 * t) * np.sin(2 * np.pi * x) + 1.0


def rod(rng: np.random.Generator, start: float = 0.0, *, insulated: bool = False) -> Instance:
    """The rod's heat. start: of a bump that it begins with; insulated: ends that let nothing through."""
    grid = np.linspace(0.0, 1.0, CELLS + 1)
    step = grid[1]

    def rate(t: float, y: FloatArray) -> FloatArray:
        ends = (y[1], y[-2]) if insulated else (-y[1], -y[-2])
        wide = np.concatenate([[ends[0]], y, [ends[1]]])
        found = source(np.array(t), grid) - DECAY * y + DIFFUSION * (wide[2:] - 2 * y + wide[:-2]) / step**2
        if not insulated:
            found[[0, -1]] = 0.0
        return found

    solved = solve_ivp(rate, (0.0, 1.0), start * np.sin(np.pi * grid), "LSODA", TIMES, rtol=1e-7, atol=1e-9)
    times, places = np.repeat(TIMES, len(PLACES)), np.tile(PLACES, len(TIMES))
    heat = np.array([np.interp(PLACES, grid, column) for column in solved.y.T]).reshape(1, -1)
    values = heat + NOISE * rng.standard_normal(heat.shape)
    truth = Truth(times, source(times, places)[None], heat, places[:, None])
    return Instance("rod", ("output",), times, values, positions=places[:, None], truth=truth)


CASES = [
    Case("a rod between cold ends", ROD, rod, SMOOTH, LIKELIHOOD, FEW, slow=True),
    Case("a rod that is warm at the start", ROD, lambda rng: rod(rng, start=1.0), SMOOTH, LIKELIHOOD, FEW, slow=True),
    Case(
        "a rod whose ends are insulated", ROD, lambda rng: rod(rng, insulated=True), SMOOTH, LIKELIHOOD, FEW, slow=True
    ),
]
