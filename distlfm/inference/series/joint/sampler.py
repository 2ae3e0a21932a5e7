"""Many short chains of Hamiltonian Monte Carlo an instance, in coordinates in which its posterior is nearly round.

Chains begin at draws from the Gaussians of the modes. A transition moves the kernels' parameters with what they ask of
the force, and then all else along a trajectory with the kernels held. Step sizes and coordinates are adapted in rounds
of warm-up, from all chains of an instance together; the draws that count are made with both held fast, so that they are
valid under the exact density. Chains run on where they have not mixed, each instance by itself.

Shapes: `C` chains, `A` instances, `W` unknowns, `S` draws, `K` modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.series.joint.density import Density
from distlfm.inference.series.joint.metric import Factor, Metric, held
from distlfm.inference.series.joint.modes import Modes
from distlfm.runtime.reporting import stepped

LENGTHS = (0.9, 1.9)
"""Lengths of trajectories, in deviations, between which each is drawn: a quarter of a turn of a Gaussian is π/2."""

ACCEPTED = 0.7
"""Share of proposals that are accepted, which step sizes are adapted to."""

FIRST_STEP, LOG_STEPS, UP, DOWN = 0.5, (math.log(0.005), math.log(1.2)), 2.0, 0.8
"""The first step, the range of its logarithm, and how much that follows the share of accepted proposals."""

BELOW, NEARER = 10.0, 7
"""Chains begin no further below their mode than one for each unknown and this; how often their way there is halved."""

MOST_LEAPS = 20
"""Steps of one trajectory; where they are very short, more of the shorter trajectories are needed."""

KERNEL_MOVES, KERNELS_ACCEPTED = 4, 0.35
"""Moves of the kernels' parameters before each trajectory, and the share of them that their size is adapted to."""

FIRST_SPREAD, LEAST_SPREAD, KERNEL_SIZES, LOG_SCALES = 0.5, 1e-4, 0.6, (math.log(0.05), math.log(3.0))
"""Deviations of the first of these moves, the variance that is added to that of the chains, the logarithm of how much
single moves are longer or shorter, and the range of their size in deviations of the chains."""

STUCK = 2.0
"""Effective draws of the worst parameter, for each chain, below which chains have not forgotten where they began."""

JITTER = 0.2
"""Step sizes of single trajectories lie within this share of the adapted one."""

LEAST_EVIDENCE = math.log(1e-3)
"""Modes with less evidence than this, relative to the best, get no chain."""


@dataclass(frozen=True)
class SamplerConfig:
    """chains: of an instance. warm: transitions of each round of warm-up. kept: transitions that count.

    extensions: how often chains that have not mixed run on, for as long as before. enough: effective draws.
    """

    chains: int = 32
    warm: tuple[int, ...] = (3, 3, 4, 5)
    kept: int = 16
    extensions: int = 3
    enough: float = 100.0


@dataclass
class _Chains:
    """w, gradient: [C, A, W]; value: [C, A]; log_step: [A], of trajectories.

    spread: [A, k, k], root of the covariance of the kernels' parameters; log_scale: [A], of their moves in units of it.
    """

    w: Tensor
    value: Tensor
    gradient: Tensor
    log_step: Tensor
    spread: Tensor
    log_scale: Tensor

    def rows(self, index: Tensor) -> _Chains:
        """Of the instances at `index`."""
        w, value, gradient = (one[:, index] for one in (self.w, self.value, self.gradient))
        return _Chains(w, value, gradient, self.log_step[index], self.spread[index], self.log_scale[index])


@dataclass(frozen=True)
class Sampled:
    """draws: [S, A, W]; effective: [A], independent draws that they are worth; worst: [A], of the worst parameter.

    accepted: [A]; step: [A].
    """

    draws: Tensor
    effective: Tensor
    worst: Tensor
    accepted: Tensor
    step: Tensor


@dataclass
class Streams:
    """Random numbers of each instance, from its own stream, whatever its neighbours. active: [A, W]."""

    streams: list[torch.Generator]
    active: Tensor

    @staticmethod
    def seeded(seeds: Sequence[int], active: Tensor) -> Streams:
        return Streams([torch.Generator().manual_seed(seed) for seed in seeds], active)

    def rows(self, index: Tensor) -> Streams:
        """Of the instances at `index`."""
        return Streams([self.streams[i] for i in index.tolist()], self.active[index])

    def normal(self, rows: Tensor, count: int) -> Tensor:
        """[count, A, W], zero for unknowns that do not count."""
        found = torch.zeros(len(rows), count, self.active.shape[-1], dtype=torch.float64)
        for place, i in enumerate(rows.tolist()):
            mine = self.active[i]
            found[place, :, mine] = torch.randn(count, int(mine.sum()), generator=self.streams[i], dtype=torch.float64)
        return found.transpose(0, 1)

    def uniform(self, rows: Tensor, *shape: int) -> Tensor:
        """[*shape, A]."""
        parts = [torch.rand(shape, generator=self.streams[i], dtype=torch.float64) for i in rows.tolist()]
        return torch.stack(parts, -1)


def shares(modes: Modes) -> Tensor:
    """Weights [K, A] of the modes by their evidence; those found several times count once."""
    count = len(modes.w)
    weight = modes.evidence.clone()
    for k in range(1, count):
        for j in range(k):
            away = torch.linalg.solve_triangular(modes.root[j], (modes.w[k] - modes.w[j]).unsqueeze(-1), upper=False)
            same = torch.isfinite(weight[j]) & (away.square().sum((-2, -1)) < 1.0)
            weight[k] = torch.where(same, -torch.inf, weight[k])
    best = weight.amax(0)
    weight = torch.where(weight - best < LEAST_EVIDENCE, -torch.inf, weight)
    return torch.softmax(torch.where(torch.isfinite(best), weight, 0.0), 0)


def sample(density: Density, modes: Modes, streams: Streams, options: SamplerConfig) -> Sampled:
    """Sample all A instances, those with about as many steps together: none pays for steps that another needs."""
    size = (density.grid.lengths > 0).sum(-1).double().log2().ceil()
    groups = [torch.nonzero(size == one).squeeze(-1) for one in size.unique()]
    parts = [_sample(density.rows(rows), modes.rows(rows), streams.rows(rows), options) for rows in groups]
    place = torch.cat(groups).argsort()
    draws = torch.cat([one.draws for one in parts], 1)[:, place]
    names = ("effective", "worst", "accepted", "step")
    return Sampled(draws, *(torch.cat([getattr(one, name) for one in parts])[place] for name in names))


@torch.no_grad()
def _sample(density: Density, modes: Modes, streams: Streams, options: SamplerConfig) -> Sampled:
    everyone = torch.arange(len(density.data))
    chains = _begin(density, modes, streams, everyone, options)
    for number, count in enumerate(options.warm):
        stepped("warm-up", number + 1, len(options.warm))
        metric = Metric.of(density, chains.w, modes)
        seen, _ = _run(metric, chains, streams, everyone, count, adapt=True)
        _rescue(chains, streams, everyone, density.active)
        chains.spread = _spread_of(seen[count // 2 :][..., metric.kernels], chains.spread)
    draws, accepted = _run(metric, chains, streams, everyone, options.kept, adapt=False)
    effective, worst = mixing(draws, density.num_free)
    kept = list(draws.unbind(2))
    for extension in range(options.extensions):
        rows = torch.nonzero((effective < options.enough) | (worst < STUCK * options.chains)).squeeze(-1)
        if len(rows) == 0:
            break
        stepped("longer chains", extension + 1, options.extensions)
        part = chains.rows(rows)
        longest = max(len(kept[i]) for i in rows.tolist())
        more, _ = _run(metric.rows(rows), part, streams, rows, longest, adapt=False)
        for place, i in enumerate(rows.tolist()):
            kept[i] = torch.cat([kept[i], more[:, :, place]])
            found = mixing(kept[i].unsqueeze(2), density.num_free)
            effective[i], worst[i] = found[0][0], found[1][0]
        chains.w[:, rows], chains.value[:, rows], chains.gradient[:, rows] = part.w, part.value, part.gradient
    size = options.kept * options.chains
    thinned = [one.flatten(0, 1)[_spread(len(one), options)] for one in kept]
    assert all(len(one) == size for one in thinned)
    return Sampled(torch.stack(thinned, 1), effective, worst, accepted, chains.log_step.exp())


def _spread(length: int, options: SamplerConfig) -> Tensor:
    """Which of `length` transitions of all chains are kept: as many as of chains that never ran on, evenly."""
    every = length // options.kept
    return (
        (torch.arange(options.kept).unsqueeze(-1) * every + every - 1)
        .mul(options.chains)
        .add(torch.arange(options.chains))
        .flatten()
    )


def _begin(density: Density, modes: Modes, streams: Streams, rows: Tensor, options: SamplerConfig) -> _Chains:
    weight = shares(modes)
    offset = streams.uniform(rows)
    marks = (torch.arange(options.chains).unsqueeze(-1) + offset) / options.chains
    chosen = torch.searchsorted(weight.cumsum(0).T.contiguous(), marks.T.contiguous()).T.clamp_max(len(weight) - 1)
    noise = streams.normal(rows, options.chains)
    middle, away = torch.empty_like(noise), torch.empty_like(noise)
    for k in range(len(weight)):
        mine = (chosen == k).unsqueeze(-1)
        middle = torch.where(mine, modes.w[k], middle)
        away = torch.where(mine, (noise.transpose(0, 1) @ modes.root[k].mT).transpose(0, 1), away)
    # Where the density is bent, a Gaussian's draws lie far below it: those come nearer to the mode.
    least = density.log_density(middle) - density.active.sum(-1) - BELOW
    part = torch.ones_like(least)
    for _ in range(NEARER):
        short = ~(density.log_density(middle + part.unsqueeze(-1) * away) >= least)
        if not bool(short.any()):
            break
        part = torch.where(short, 0.5 * part, part)
    w = middle + part.unsqueeze(-1) * away
    value, gradient = density.with_gradient(w)
    kernels = torch.nonzero(held(density)).squeeze(-1)
    spread = FIRST_SPREAD * torch.eye(len(kernels), dtype=w.dtype).expand(len(rows), -1, -1)
    step, scale = torch.full((len(rows),), math.log(FIRST_STEP), dtype=w.dtype), torch.zeros(len(rows), dtype=w.dtype)
    return _Chains(w, value, gradient, step, spread, scale)


def _run(
    metric: Metric, chains: _Chains, streams: Streams, rows: Tensor, count: int, *, adapt: bool
) -> tuple[Tensor, Tensor]:
    """`count` transitions of all chains, which are changed; returns where they were, [count, C, A, W], and the share

    of accepted proposals [A]. rows: the instances' numbers in `streams`.
    """
    density, seen, accepted = metric.density, [], []
    num_chains = len(chains.w)
    moves = KERNEL_MOVES if len(metric.kernels) else 0
    place = metric.waves(chains.w[..., : density.num_free])
    for number in range(count):
        noise = streams.normal(rows, (moves + 1) * num_chains).unflatten(0, (moves + 1, num_chains))
        drawn = streams.uniform(rows, 2 * moves + 3, num_chains)
        for move in range(moves):
            place, share = _move_kernels(metric, chains, place, noise[move], drawn[2 * move], drawn[2 * move + 1])
            if adapt:
                chains.log_scale = (chains.log_scale + share - KERNELS_ACCEPTED).clamp(*LOG_SCALES)
        if moves:
            chains.value, chains.gradient = density.with_gradient(chains.w)
        jitter = 1 + JITTER * (2 * drawn[-3] - 1)
        length = LENGTHS[0] + (LENGTHS[1] - LENGTHS[0]) * drawn[-2, 0]
        share = _transition(metric, chains, metric.factor(*place), noise[-1], jitter, drawn[-1], length)
        accepted.append(share)
        if adapt:
            chains.log_step = (chains.log_step + 0.8 * (share - ACCEPTED)).clamp(*LOG_STEPS)
        seen.append(chains.w.clone())
        stepped("transition", number + 1, count)
    return torch.stack(seen), torch.stack(accepted).mean(0)


def _transition(
    metric: Metric, chains: _Chains, factor: Factor, momentum: Tensor, jitter: Tensor, uniform: Tensor, length: Tensor
) -> Tensor:
    """One trajectory of each chain with its kernel held; returns the mean probability [A] of being accepted."""
    step = chains.log_step.exp()
    count = (length / step).ceil().clamp(1, MOST_LEAPS).long()
    size = (step * jitter).unsqueeze(-1)
    momentum[..., metric.kernels] = 0.0
    w, gradient, value = chains.w.clone(), chains.gradient.clone(), chains.value.clone()
    gradient[..., metric.kernels] = 0.0
    p = momentum + 0.5 * size * factor.back(gradient)
    for leap in range(int(count.max())):
        rows = torch.nonzero(count > leap).squeeze(-1)
        part, own = (metric, factor) if len(rows) == len(count) else (metric.rows(rows), factor.rows(rows))
        w[:, rows] += own.away(size[:, rows] * p[:, rows])
        value[:, rows], slope = part.density.with_gradient(w[:, rows])
        gradient[:, rows] = slope
        slope[..., metric.kernels] = 0.0
        # The last kick of a trajectory is half a kick.
        kick = torch.where(count[rows] - 1 > leap, 1.0, 0.5)[None, :, None]
        p[:, rows] += kick * size[:, rows] * own.back(slope)
    change = value - chains.value - 0.5 * (p.square().sum(-1) - momentum.square().sum(-1))
    chance = torch.where(torch.isfinite(change), change.clamp_max(0.0).exp(), 0.0)
    taken = uniform < chance
    chains.w = torch.where(taken.unsqueeze(-1), w, chains.w)
    chains.gradient = torch.where(taken.unsqueeze(-1), gradient, chains.gradient)
    chains.value = torch.where(taken, value, chains.value)
    return chance.mean(0)


def _move_kernels(
    metric: Metric, chains: _Chains, place: tuple[Tensor, Tensor], noise: Tensor, size: Tensor, uniform: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Move the kernels' parameters of all chains, and with them their forces as far as data leave those open.

    place: what `Metric.waves` gave for where they are. Returns that of where they are then, and the mean probability
    [A] of being accepted.
    """
    n = metric.density.num_free
    z, amplitudes = chains.w[..., :n].clone(), chains.w[..., n:, None]
    scale = (chains.log_scale + KERNEL_SIZES * (2 * size - 1)).exp().unsqueeze(-1)
    z[..., metric.kernels] += scale * (chains.spread @ noise[..., metric.kernels, None]).squeeze(-1)
    there = metric.waves(z)
    moved = torch.linalg.solve_triangular(there[0].mT, place[0].mT @ amplitudes, upper=True).squeeze(-1)
    w = torch.cat([z, moved], -1)
    value = metric.density.log_density(w)
    before, after = (torch.diagonal(one[0], dim1=-2, dim2=-1).log().sum(-1) for one in (place, there))
    change = value - chains.value + before - after
    chance = torch.where(torch.isfinite(change), change.clamp_max(0.0).exp(), 0.0)
    taken = uniform < chance
    chains.w = torch.where(taken.unsqueeze(-1), w, chains.w)
    chains.value = torch.where(taken, value, chains.value)
    factor = torch.where(taken[..., None, None], there[0], place[0])
    return (factor, torch.where(taken.unsqueeze(-1), there[1], place[1])), chance.mean(0)


def _rescue(chains: _Chains, streams: Streams, rows: Tensor, active: Tensor) -> None:
    """Move chains that lie far below the others, in warm-up only, to where one of the others is."""
    middle = chains.value.median(0).values
    lost = chains.value < middle - 3 * active.sum(-1).sqrt() - 10
    pick = (streams.uniform(rows, len(chains.w)) * len(chains.w)).long()
    if not bool(lost.any()):
        return
    order = torch.argsort(chains.value, dim=0, descending=True)[: len(chains.w) // 2]
    source = order.gather(0, pick % len(order))
    for name in ("w", "gradient"):
        one = getattr(chains, name)
        setattr(chains, name, torch.where(lost.unsqueeze(-1), one.gather(0, source.unsqueeze(-1).expand_as(one)), one))
    chains.value = torch.where(lost, chains.value.gather(0, source), chains.value)


def _spread_of(seen: Tensor, before: Tensor) -> Tensor:
    """Root [A, k, k] of the covariance of kernels' parameters [S, C, A, k]."""
    flat = seen.flatten(0, 1).transpose(0, 1)  # [A, S·C, k]
    centred = flat - flat.mean(1, keepdim=True)
    factor, ok = safe_cholesky(centred.mT @ centred / centred.shape[1] + LEAST_SPREAD * torch.eye(seen.shape[-1]))
    return torch.where(ok[:, None, None], factor, before)


def mixing(draws: Tensor, num_free: int) -> tuple[Tensor, Tensor]:
    """Effective draws [A] of draws [S, C, A, W], and those of the parameter that mixes worst.

    Chains are independent, so the scatter of their means says how much one chain's draws are worth (Gelman & Rubin). It
    is averaged over the n parameters, as that of one unknown says little with few chains.
    """
    draws = draws[..., : max(1, num_free)]
    length, count = draws.shape[:2]
    total = draws.flatten(0, 1).var(0)
    between = draws.mean(0).var(0)
    share = torch.where(total > 1e-300, between / total.clamp_min(1e-300), 0.0)
    most = float(length * count)
    return tuple((count / one.clamp_min(1e-9)).clamp_max(most) for one in (share.mean(-1), share.amax(-1)))  # type: ignore[return-value]
