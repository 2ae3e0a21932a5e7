"""Instances of an ODE drawn together: parameters, forces, and the trajectories that follow, at given breaks of time.

A force of time is drawn on an even grid in O(n log n) by circulant embedding (Dietrich and Newsam 1997). A stationary
covariance there is a Toeplitz matrix, a corner of a circulant one, whose square root is two Fourier transforms. The
circle is long enough for the covariance to die out on the way around, so the corner is exact up to `TAIL`. Kernels that
do not die out, or are not stationary, are drawn by Cholesky. Between breaks a force is continued by local polynomials.
A force of the state is a sum of random features.

Linear mechanisms are integrated by Gauss–Legendre panels, the others by rk4, with steps halved until all settles.

Shapes: `B` instances of a block, `P` outputs, `L` forces, `N` breaks or grid points, `n` points of the circle, `D`
states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import WorkError
from distlfm.gp.expression import Node, Periodic, Product, Scaled, Stationary, Sum
from distlfm.gp.kernels import FunctionalKernel, Hyper
from distlfm.gp.linalg import Cholesky, safe_cholesky
from distlfm.gp.pathwise import Domain, ForcePrior, draw_prior
from distlfm.inference.model import Model
from distlfm.instance import FloatArray, Instance
from distlfm.mechanisms.priors import ParameterSpace, Values
from distlfm.solvers.base import Force, SolverConfig, reads_state
from distlfm.solvers.linear import extract, panels, propagate
from distlfm.solvers.ode import solve

Generators = Sequence[np.random.Generator]
"""One for each instance, which depends on no other."""

TAIL = 1e-10
"""Covariance around the circle, in units of the variance, that counts as none; as small as a Cholesky's jitter."""

LARGEST = 16384
"""Points of the longest circle; what needs more is drawn by Cholesky."""

LANES = 16
"""Numbers that a processor may take at once."""

SOFT = 1e-10
"""Eigenvalues below this part of the variance fade out. A root near zero would make 1e-8 of a rounding of 1e-16."""


def draw_paths(
    kernels: Sequence[FunctionalKernel], hyper: Sequence[Hyper], times: Tensor, generators: Generators
) -> tuple[Tensor, Tensor]:
    """Forces [B, L, N] at even times [N], and whether [B] they could be drawn. hyper: L dicts of values [B, ...].

    An instance's numbers come from its own generator, as many as its own hyperparameters ask for.
    """
    paths = [_draw(kernel, one, times, generators) for kernel, one in zip(kernels, hyper, strict=True)]
    return torch.stack([path for path, _ in paths], 1), torch.stack([ok for _, ok in paths]).all(0)


def normals(generators: Generators, *shape: int) -> Tensor:
    """Standard normal numbers [B, *shape], those of each instance from its own generator."""
    # Copied into torch's memory: where an array begins, to a few bytes, may change the last digit of its products.
    return torch.tensor(np.stack([generator.standard_normal(shape) for generator in generators]))


def draw_values(space: ParameterSpace, generators: Generators) -> dict[str, Tensor]:
    """Parameters from their priors, each [B, K]."""
    z = normals(generators, space.num_free)
    # What is left over at the end of an array is computed by other instructions than whole vectors are, and an
    # ill-conditioned covariance makes much of a lengthscale's last digit. So there is nothing left over.
    whole = torch.nn.functional.pad(z, (0, 0, 0, -len(z) % LANES))
    return {name: value[: len(z)] for name, value in space.unpack(whole).items()}


def steady_factor(evaluate: Callable[[Hyper], Tensor], hyper: Hyper) -> Cholesky:
    """The factor of evaluate(hyper) [B, n, n], the same to the last digit whatever else is in the batch.

    For that there is a row more, which takes what is left over, and every matrix begins at a multiple of `LANES`.
    """
    covariance = evaluate({name: torch.cat([value, value[-1:]]) for name, value in hyper.items()})[:-1]
    size = covariance.shape[-1]
    more = -size % LANES
    padded = torch.nn.functional.pad(covariance, (0, more, 0, more))
    torch.diagonal(padded, dim1=-2, dim2=-1)[:, size:] = covariance[:, :1, 0]
    factor, ok = safe_cholesky(padded)
    return Cholesky(factor[:, :size, :size], ok)


def circle_root(kernel: FunctionalKernel, hyper: Hyper, step: float, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Roots of the eigenvalues [B, n // 2 + 1] of a circle of n = `size` points, a power of two, and [B] whether it is

    long enough for `count` of them. A covariance that goes around both ways is a positive one (Poisson's sum), but for
    what is below `TAIL`.
    """
    lags = step * torch.arange(size, dtype=torch.float64)
    covariance = _at_lags(kernel, hyper, lags)
    around = torch.cat([covariance[:, :1], covariance[:, 1:] + covariance[:, 1:].flip(-1)], -1)
    eigenvalues = torch.fft.rfft(around).real
    root = eigenvalues / (eigenvalues.clamp_min(0.0) + SOFT * covariance[:, :1]).sqrt()
    return root, _dies_out(covariance, count)


def _draw(kernel: FunctionalKernel, hyper: Hyper, times: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    count, step = len(times), float(times[-1] - times[0]) / (len(times) - 1)
    paths = torch.zeros(len(generators), count, dtype=torch.float64)
    ok = torch.ones(len(generators), dtype=torch.bool)
    on_circle = torch.zeros_like(ok)
    if _is_stationary(kernel.expression):
        last = step * torch.cat([torch.zeros(1), torch.arange(LARGEST - count + 1, LARGEST)]).double()
        on_circle = _dies_out(_at_lags(kernel, hyper, last), count)
    waiting, size = torch.nonzero(on_circle).flatten(), 2 ** (count + count // 4).bit_length()
    while len(waiting):
        root, fits = circle_root(kernel, _rows(hyper, waiting), step, count, size)
        chosen = waiting[fits]
        if len(chosen):
            noise = normals([generators[int(row)] for row in chosen], size)
            paths[chosen] = torch.fft.irfft(root[fits] * torch.fft.rfft(noise), size)[:, :count]
        waiting, size = waiting[~fits], 2 * size
    others = torch.nonzero(~on_circle).flatten()
    if len(others):
        place = times.unsqueeze(-1)
        factor, ok[others] = steady_factor(lambda own: kernel.covariance(own, place, place), _rows(hyper, others))
        noise = normals([generators[int(row)] for row in others], count)
        paths[others] = (factor @ noise.unsqueeze(-1)).squeeze(-1)
    return paths, ok


def _at_lags(kernel: FunctionalKernel, hyper: Hyper, lags: Tensor) -> Tensor:
    """Covariance [B, n] of the first of the lags [n] with each."""
    return kernel.covariance(hyper, lags[:1, None], lags[:, None]).squeeze(-2)


def _dies_out(covariance: Tensor, count: int) -> Tensor:
    """Whether [B] the last count − 1 of the lags [B, n] are as good as uncorrelated with the first."""
    return covariance[:, 1 - count :].abs().amax(-1) <= TAIL * covariance[:, 0]


def _rows(hyper: Hyper, rows: Tensor) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in hyper.items()}


def _is_stationary(node: Node) -> bool:
    if isinstance(node, Scaled):
        return _is_stationary(node.part)
    if isinstance(node, Sum | Product):
        return all(_is_stationary(part) for part in node.parts)
    return isinstance(node, Stationary | Periodic)


WINDOW = 6
"""Breaks whose polynomial, of degree 5, continues a force between the two in the middle."""

NODES = 3
"""Gauss–Legendre nodes between two breaks."""

NUM_FEATURES = 1024
"""Frequencies of a force of the state."""

FARTHEST = 3.0
"""A flow is drawn as far around the start as it gets at this many standard deviations of its speed."""

ACCURACY = 1e-6
"""rk4 steps are halved until all states change by less than this part of their size."""

FEWEST_STEPS, MOST_STEPS = 64, 4096
"""Steps that are tried first, and those after which an instance is taken as it is."""


INTERVALS = 200
"""The time axis is cut into at least this many parts, at whose ends (the breaks) forces of time are drawn.

What a force does between two breaks beyond the polynomial is missing in the outputs. At lengthscales of 1/12, 1/24 and
1/48 of the axis that is, relative to the outputs: 1e-7, 1e-7, 8e-6 (RBF); 3e-5, 2e-4, 1e-3 (Matérn-5/2); 6e-4, 2e-3,
7e-3 (Matérn-3/2); 3e-2, 4e-2, 7e-2 (Matérn-1/2).
"""

BATCH = 64
"""Trajectories solved together: enough to share the cost of a step, few enough to stay in the cache."""

ATTEMPTS = 5
"""A draw whose trajectory diverges is drawn anew, at most this often."""


@dataclass(frozen=True)
class Drawn:
    """What a block of instances is. values: each [B, K]; forces: [B, L, N]; outputs: [B, P, N]; ok: [B].

    For fields, N are the points of a lattice. ok: False if it diverged.
    """

    values: Values
    forces: Tensor
    outputs: Tensor
    ok: Tensor


def draw(
    model: Model,
    breaks: FloatArray,
    generators: Generators,
    draw_forces: Callable[[Sequence[FunctionalKernel], Sequence[Hyper], Tensor, Generators], tuple[Tensor, Tensor]],
) -> Drawn:
    """Draw one instance from each generator, at the breaks [N].

    draw_forces: `draw_paths` for even breaks, `draw_exactly` for any; it is asked for forces of time.
    """
    mechanism = model.mechanism
    values = draw_values(model.space, generators)
    times = torch.from_numpy(breaks).expand(len(generators), -1)
    if reads_state(mechanism):
        flow, ok = _draw_flow(model, values, times, generators)
        states, finite = _settle(model, flow, values, times)
        forces = flow(mechanism.force_input(times, states).unsqueeze(0))[0]
        return Drawn(values, forces, _outputs(model, states, values), ok & finite)
    forces, ok = draw_forces(model.kernels, model.hyper(values), times[0], generators)
    force = _Path(times[0].contiguous(), forces)
    if model.linearity.affine:
        grid = panels(times[:1], 1, NODES)
        at_nodes = force(grid.nodes.unsqueeze(-1))[0]
        outputs = propagate(extract(mechanism, values), grid, at_nodes, diagonal=model.linearity.diagonal)
        return Drawn(values, forces, outputs, ok & outputs.isfinite().flatten(1).all(-1))
    states, finite = _settle(model, force, values, times)
    return Drawn(values, forces, _outputs(model, states, values), ok & finite)


class Trajectories:
    """Series of one model, drawn with their forces at `INTERVALS` or more even breaks, the shown times among them.

    Its attributes are those of `Lattice`, of a grid without space.
    """

    batch = BATCH
    mesh = None

    def __init__(self, model: Model, times: FloatArray) -> None:
        self.model, self.times, self.points = model, times, times[:, None]
        self.axes: list[FloatArray] = []
        self.parts = -(-INTERVALS // (len(times) - 1))
        self.breaks = np.linspace(times[0], times[-1], (len(times) - 1) * self.parts + 1)

    @torch.no_grad()
    def draw(self, generators: Generators) -> Drawn:
        """Draw one instance from each generator."""
        drawn = draw(self.model, self.breaks, generators, draw_paths)
        rows = {name: value.unsqueeze(-2) for name, value in drawn.values.items()}
        shown = self.model.mechanism.act(drawn.forces[..., :: self.parts].mT, rows).mT
        return replace(drawn, forces=shown, outputs=drawn.outputs[..., :: self.parts])


def draw_finite(
    indices: Sequence[int],
    seed: int,
    draw: Callable[[Generators], Drawn],
    observe: Callable[[Drawn, int, str, np.random.Generator], Instance],
) -> list[Instance]:
    """Draw the instances `indices`, those that diverge anew, at most `ATTEMPTS` times in all.

    observe: makes an instance of a row of what was drawn, its name and its generator.
    """
    found: dict[int, Instance] = {}
    for attempt in range(ATTEMPTS):
        waiting = [index for index in indices if index not in found]
        if not waiting:
            break
        generators = [np.random.default_rng([seed, index, attempt]) for index in waiting]
        drawn = draw(generators)
        for row, index in enumerate(waiting):
            if bool(drawn.ok[row]):
                found[index] = observe(drawn, row, f"sim-{index:06d}", generators[row])
    if len(found) < len(indices):
        raise WorkError(
            f"{len(indices) - len(found)} of {len(indices)} instances diverge, however often they are drawn.",
            "Narrow the priors of the mechanism, or shorten the times.",
        )
    return [found[index] for index in indices]


@dataclass(frozen=True)
class _Path:
    """A function of time through given values. points: [N]; values: [B, L, N]."""

    points: Tensor
    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[1, B, L, n] at x [B or 1, n, 1], by the polynomial through the nearest `WINDOW` points (Lagrange's form)."""
        t = x[..., 0]
        first = (torch.searchsorted(self.points, t.contiguous()) - WINDOW // 2).clamp(0, len(self.points) - WINDOW)
        index = first.unsqueeze(-1) + torch.arange(WINDOW)
        near = self.points[index]
        same = torch.eye(WINDOW, dtype=torch.bool)
        above = (t[..., None, None] - near.unsqueeze(-2)).masked_fill(same, 1.0).prod(-1)
        below = (near.unsqueeze(-1) - near.unsqueeze(-2)).masked_fill(same, 1.0).prod(-1)
        values = torch.take_along_dim(self.values.unsqueeze(-2), index.unsqueeze(-3), -1)
        return (values * (above / below).unsqueeze(-3)).sum(-1).unsqueeze(0)


def draw_exactly(
    kernels: Sequence[FunctionalKernel], hyper: Sequence[Hyper], breaks: Tensor, generators: Generators
) -> tuple[Tensor, Tensor]:
    """Draw forces of time [B, L, N] at any breaks [N], exact up to the jitter, and whether [B] they could be drawn."""
    factor, ok = ForcePrior(tuple(kernels)).factor(hyper, breaks[None, :, None])
    noise = normals(generators, len(kernels), breaks.shape[-1])
    return (factor @ noise.unsqueeze(-1)).squeeze(-1), ok


def _draw_flow(model: Model, values: Values, breaks: Tensor, generators: Generators) -> tuple[Force, Tensor]:
    """Forces of the state as sums of features, good around the start, and whether [B] they could be drawn."""
    hyper = model.hyper(values)
    start = model.mechanism.initial_state(values)
    speed = torch.stack([one["variance"] for one in hyper], -1).amax(-1, keepdim=True).sqrt()
    reach = FARTHEST * speed * (breaks[:, -1:] - breaks[:, :1])
    noise = normals(generators, 1, len(model.kernels), 2, NUM_FEATURES).transpose(0, 1)
    draw = draw_prior(ForcePrior(model.kernels), hyper, Domain(start - reach, start + reach), noise)
    return draw, draw.ok


def _settle(model: Model, force: Force, values: Values, breaks: Tensor) -> tuple[Tensor, Tensor]:
    """States [B, N, D] by rk4, each instance's from the first steps that suffice, and [B] whether it stays finite."""
    trajectory = solve(model.mechanism, force, values, breaks, SolverConfig(steps=FEWEST_STEPS))
    states, ok, steps = trajectory.states[0], trajectory.ok[0], 2 * FEWEST_STEPS
    settled = torch.zeros_like(ok)
    while steps <= MOST_STEPS and not bool(settled.all()):
        trajectory = solve(model.mechanism, force, values, breaks, SolverConfig(steps=steps))
        finer = trajectory.states[0]
        change = ((finer - states).abs().amax(-2) / finer.abs().amax(-2).clamp_min(1e-300)).amax(-1)
        # Steps that are too long diverge where shorter ones do not: only what diverges twice is given up.
        done = torch.where(ok & trajectory.ok[0], change < ACCURACY, ~ok & ~trajectory.ok[0])
        states = torch.where(settled[:, None, None], states, finer)
        ok = torch.where(settled, ok, trajectory.ok[0])
        settled = settled | done
        steps *= 2
    return states, ok


def _outputs(model: Model, states: Tensor, values: Values) -> Tensor:
    """What the states [B, N, D] show, [B, P, N]."""
    rows = {name: value.unsqueeze(-2) for name, value in values.items()}
    return model.mechanism.observe(states, rows).mT
