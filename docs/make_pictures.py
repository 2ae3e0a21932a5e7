"""Draw the pictures of docs/method.md into docs/images: a force that is really inferred, and the choice of a method.

python docs/make_pictures.py            write them
python docs/make_pictures.py --check    exit code 1 if a committed picture is not the one this program draws
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from make_road import BOX_HEIGHT, Box, framed, road

FOLDER = Path(__file__).parent / "images"
BASAL, DECAY, NOISE, LENGTHSCALE = 0.3, 0.6, 0.06, 1.4
TIMES = np.linspace(0.0, 10.0, 101)
SEEN = np.arange(2, 101, 12)  # where it is observed
PANEL_WIDTH, PANEL_HEIGHT, GAP, TOP = 290, 190, 30, 56

CURVES = """
    .title { font-size: 15px; font-weight: 600; fill: #1b2733; }
    .axis { stroke: #55636f; stroke-width: 1; fill: none; }
    .draw { fill: none; stroke: #2f6fb0; stroke-width: 1.4; opacity: 0.75; }
    .mean { fill: none; stroke: #2f6fb0; stroke-width: 2; }
    .band { fill: #2f6fb0; opacity: 0.18; }
    .truth { fill: none; stroke: #b34a00; stroke-width: 2; stroke-dasharray: 6 4; }
    .seen { fill: #1b2733; }
    @media (prefers-color-scheme: dark) {
      .title { fill: #e8eef4; }
      .seen { fill: #e8eef4; }
      .axis { stroke: #a3b1bd; }
      .draw, .mean { stroke: #6aa9e6; }
      .band { fill: #6aa9e6; opacity: 0.25; }
      .truth { stroke: #ff9a4d; }
    }
"""

Curve = np.ndarray


# ---- a force, inferred ----------------------------------------------------------------------------------------------


def solution_map() -> Curve:
    """The matrix [T, T] that turns a force on the times into the course of ẏ = f − decay · y that starts at zero."""
    step = TIMES[1] - TIMES[0]
    found = np.tril(np.exp(-DECAY * (TIMES[:, None] - TIMES[None, :])) * step)
    found[np.diag_indices_from(found)] *= 0.5  # the trapezoidal rule counts its ends by half
    found[1:, 0] *= 0.5
    found[0] = 0.0
    return found


def kernel(one: Curve, other: Curve) -> Curve:
    return np.exp(-0.5 * ((one[:, None] - other[None, :]) / LENGTHSCALE) ** 2)


def prior_draws(number: int, features: int = 64) -> Curve:
    """Forces [number, T] before any data, by random Fourier features."""
    generator = np.random.default_rng(5)
    frequencies = generator.normal(0.0, 1.0 / LENGTHSCALE, (number, features, 1))
    phases = generator.uniform(0.0, 2 * np.pi, (number, features, 1))
    return np.sqrt(2.0 / features) * np.cos(frequencies * TIMES + phases).sum(1)


def true_force() -> Curve:
    return 1.6 * np.exp(-0.5 * ((TIMES - 2.6) / 0.9) ** 2) - 1.1 * np.exp(-0.5 * ((TIMES - 6.4) / 1.1) ** 2)


def posterior(values: Curve) -> tuple[Curve, Curve]:
    """Mean and standard deviation [T] of the force, given values where it was observed: the equation is linear, so
    force and observations are jointly Gaussian."""
    observe = solution_map()[SEEN]
    across = kernel(TIMES, TIMES) @ observe.T
    covariance = observe @ across + NOISE**2 * np.eye(len(SEEN))
    mean = across @ np.linalg.solve(covariance, values)
    variance = 1.0 - np.einsum("to,ot->t", across, np.linalg.solve(covariance, across.T))
    return mean, np.sqrt(np.maximum(variance, 0.0))


def path(panel: int, values: Curve, height: Callable[[Curve], Curve]) -> str:
    left = 20 + panel * (PANEL_WIDTH + GAP)
    across = left + TIMES / TIMES[-1] * PANEL_WIDTH
    return " L ".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, height(values), strict=True))


def line(panel: int, values: Curve, height: Callable[[Curve], Curve], kind: str) -> str:
    return f'<path class="{kind}" d="M {path(panel, values, height)}"/>'


def scale(low: float, high: float) -> Callable[[Curve], Curve]:
    """Where a value is in a panel, from its top."""
    return lambda values: TOP + (high - np.asarray(values)) / (high - low) * PANEL_HEIGHT


def frame(panel: int, title: str, note: str) -> list[str]:
    left = 20 + panel * (PANEL_WIDTH + GAP)
    bottom, middle = TOP + PANEL_HEIGHT, left + PANEL_WIDTH // 2
    return [
        f'<text class="title" x="{middle}" y="24">{title}</text>',
        f'<text class="note" x="{middle}" y="44">{note}</text>',
        f'<path class="axis" d="M {left} {TOP} L {left} {bottom} L {left + PANEL_WIDTH} {bottom}"/>',
        f'<text class="note" x="{middle}" y="{bottom + 18}">time</text>',
    ]


def inferred() -> str:
    """Three panels: forces before the data, what the equation makes of them, and the force given observations."""
    solve, truth = solution_map(), true_force()
    noise = np.random.default_rng(11).normal(0.0, NOISE, len(SEEN))
    values = (solve @ truth)[SEEN] + noise
    mean, sd = posterior(values)
    force, output = scale(-2.2, 2.4), scale(-2.2, 3.0)
    start = BASAL / DECAY
    parts = frame(0, "before the data", "any smooth force f(t) is possible")
    parts += [line(0, draw, force, "draw") for draw in prior_draws(7)]
    parts += frame(1, "through the equation", "each force gives a course y(t); points were observed")
    parts += [line(1, start + solve @ draw, output, "draw") for draw in prior_draws(7)]
    across = 20 + PANEL_WIDTH + GAP + TIMES[SEEN] / TIMES[-1] * PANEL_WIDTH
    parts += [
        f'<circle class="seen" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        for x, y in zip(across, output(start + values), strict=True)
    ]
    parts += frame(2, "given the data", "mean, 95 % band, and the true force (dashed)")
    upper, lower = path(2, mean + 1.96 * sd, force), path(2, (mean - 1.96 * sd), force)
    backwards = " L ".join(reversed(lower.split(" L ")))
    parts.append(f'<path class="band" d="M {upper} L {backwards} Z"/>')
    parts += [line(2, mean, force, "mean"), line(2, truth, force, "truth")]
    title = "Forces from the prior, the courses they lead to, nine observations, and the force inferred from these"
    return framed(title, parts, (3 * PANEL_WIDTH + 2 * GAP + 40, TOP + PANEL_HEIGHT + 30), CURVES)


# ---- which method ---------------------------------------------------------------------------------------------------


def choice() -> str:
    """What `inference.method=auto` asks, and where each answer leads."""
    top, below, step = 20, 140, 200
    asked = Box("the equation", "is it linear?", 20 + 3 * step // 2, top)
    ends = [
        Box("collapsed", "linear", 20, below),
        Box("filter", "linear, long, Matérn", 20 + step, below),
        Box("nested", "nonlinear, or counts", 20 + 2 * step, below),
        Box("laplace", "nonlinear in space", 20 + 3 * step, below),
    ]
    half = (asked.top + BOX_HEIGHT + below) // 2
    roads = [
        road(
            (asked.centre, asked.top + BOX_HEIGHT + 4),
            (asked.centre, half),
            (end.centre, half),
            (end.centre, below - 6),
        )
        for end in ends
    ]
    title = "A linear equation leads to collapsed or filter; a nonlinear one to nested, or in space to laplace"
    return framed(title, [*roads, *(box.draw() for box in (asked, *ends))], (3 * step + 192, below + BOX_HEIGHT + 20))


PICTURES = {"inferred.svg": inferred, "choice.svg": choice}


def main(arguments: Sequence[str]) -> int:
    drawn = {FOLDER / name: draw() for name, draw in PICTURES.items()}
    if list(arguments) == ["--check"]:
        return (
            0 if all(file.exists() and file.read_text(encoding="utf-8") == text for file, text in drawn.items()) else 1
        )
    for file, text in drawn.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
