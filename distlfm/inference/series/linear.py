"""The joint prior of force and outputs of any linear mechanism, by the quadrature of `solvers.linear`.

How much outputs vary if the forces do is carried from one time to the next. With the weights w of
`solvers.linear.response` the variances are wᵀ K w for each output and time, which takes products of large matrices: all
outputs and times by all nodes, by all nodes. Between two breaks only the force at the panel's own nodes is new, so that
a step needs no more than its covariance with the state so far.

Shapes: `B` instances, `D` states, `P` outputs, `T` times, `N = P·T` observations, `L` forces, `n` panels with `Q` nodes
each, `G = n·Q` nodes; in predictions `Q` query times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.marginal import GaussianMarginal, Moments, QueryPrior
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.mechanisms.priors import Values
from distlfm.solvers.linear import Linearity, LinearSystem, Panels, extract, panels, propagate, response


def output_variance(
    system: LinearSystem, grid: Panels, among: Sequence[Tensor], explained: Tensor, *, diagonal: bool
) -> Tensor:
    """Variances [B, P, n + 1] of the outputs at all breaks.

    among: covariance [B, G, G] of each force at the nodes, before data; forces are independent of each other then.
    explained: [B, N, L, G], what data take from it: together, forces have the covariance among − explainedᵀ explained.
    """
    plain = diagonal and _shows_states(system)
    steps, kicks = _diagonal_moves(system, grid) if diagonal else _dense_moves(system, grid)
    if diagonal and not plain:
        steps = torch.diag_embed(steps)
    left = -_explained(steps, kicks, explained)
    for i, one in enumerate(among):
        left = left + _before_data(steps, kicks[:, :, :, i], one)
    if plain:
        return left.mT
    seen = system.C.unsqueeze(1)
    return ((seen @ left) * seen).sum(-1).mT


def _shows_states(system: LinearSystem) -> bool:
    identity = torch.eye(system.C.shape[-1], dtype=system.C.dtype)
    return system.C.shape[-2:] == identity.shape and torch.equal(system.C, identity.expand_as(system.C))


def _diagonal_moves(system: LinearSystem, grid: Panels) -> tuple[Tensor, Tensor]:
    """What is left [B, n, D] of a state after each panel, and what forces at its nodes add to it, [B, n, D, L, Q]."""
    rates = torch.diagonal(system.A, dim1=-2, dim2=-1)
    length, lag = _lengths(grid)
    arriving = torch.exp(rates[:, None, :, None] * lag.unsqueeze(2)) * _by_panel(grid.weights, grid).unsqueeze(2)
    return torch.exp(rates.unsqueeze(1) * length.unsqueeze(-1)), arriving.unsqueeze(3) * system.B[:, None, :, :, None]


def _dense_moves(system: LinearSystem, grid: Panels) -> tuple[Tensor, Tensor]:
    """The same for any A: [B, n, D, D] and [B, n, D, L, Q]."""
    A = system.A.unsqueeze(1)
    length, lag = _lengths(grid)
    arriving = torch.linalg.matrix_exp(A.unsqueeze(1) * lag[..., None, None])
    arriving = arriving * _by_panel(grid.weights, grid)[..., None, None]
    kicks = arriving @ system.B[:, None, None]
    return torch.linalg.matrix_exp(A * length[..., None, None]), kicks.permute(0, 1, 3, 4, 2)


def _lengths(grid: Panels) -> tuple[Tensor, Tensor]:
    """Of the panels, [B, n], and from each of their nodes to their ends, [B, n, Q]."""
    return torch.diff(grid.breaks, dim=-1), grid.breaks[:, 1:, None] - _by_panel(grid.nodes, grid)


def _by_panel(values: Tensor, grid: Panels) -> Tensor:
    parted: Tensor = values.unflatten(-1, (grid.breaks.shape[-1] - 1, -1))
    return parted


def _before_data(steps: Tensor, kicks: Tensor, among: Tensor) -> Tensor:
    """Variances [B, n + 1, D], or covariances [B, n + 1, D, D] for steps [B, n, D, D], that one force gives the states.

    kicks: [B, n, D, Q].
    """
    num_panels, size = kicks.shape[1], kicks.shape[-1]
    state = torch.zeros(len(among), kicks.shape[2], among.shape[-1], dtype=among.dtype)
    met = []  # covariance [B, D, Q] of the state at the start of each panel with the force at the panel's nodes
    for i, (step, kick) in enumerate(zip(steps.unbind(1), kicks.unbind(1), strict=True)):
        met.append(state[..., :size])
        state = _stepped(step, state[..., size:], kick, among[:, i * size : (i + 1) * size, (i + 1) * size :])
    blocks = among.unflatten(2, (num_panels, size)).unflatten(1, (num_panels, size))
    own = blocks.diagonal(dim1=1, dim2=3).movedim(-1, 1)  # [B, n, Q, Q]
    before = torch.stack(met, 1)
    if steps.dim() == 3:
        gained = ((2 * steps.unsqueeze(-1) * before + kicks @ own) * kicks).sum(-1)
    else:
        mixed = steps @ before @ kicks.mT
        gained = mixed + mixed.mT + kicks @ own @ kicks.mT
    found = [torch.zeros_like(gained[:, 0])]
    for step, gain in zip(steps.unbind(1), gained.unbind(1), strict=True):
        kept = step.square() * found[-1] if steps.dim() == 3 else step @ found[-1] @ step.mT
        found.append(kept + gain)
    return torch.stack(found, 1)


def _explained(steps: Tensor, kicks: Tensor, explained: Tensor) -> Tensor:
    """Of the same, what data explain."""
    num_panels = kicks.shape[1]
    sources = explained.unflatten(-1, (num_panels, -1)).permute(3, 0, 2, 4, 1).flatten(2, 3)  # [n, B, L·Q, N]
    state = torch.zeros(len(explained), kicks.shape[2], explained.shape[1], dtype=explained.dtype)
    found = [_squared(state, steps.dim() == 3)]
    for step, kick, source in zip(steps.unbind(1), kicks.flatten(-2).unbind(1), sources, strict=True):
        state = _stepped(step, state, kick, source)
        found.append(_squared(state, steps.dim() == 3))
    return torch.stack(found, 1)


def _stepped(step: Tensor, state: Tensor, kick: Tensor, source: Tensor) -> Tensor:
    """The state [B, D, m] after a panel in which kicks [B, D, k] come from the source [B, k, m]."""
    kept = state * step.unsqueeze(-1) if step.dim() == 2 else step @ state
    return torch.baddbmm(kept, kick, source)


def _squared(state: Tensor, plain: bool) -> Tensor:
    return state.square().sum(-1) if plain else state @ state.mT


TOLERANCE = 3e-4
"""Largest change of a prior standard deviation, relative, that halving the panels may bring."""

MOST_NODES = 4
MAX_SUBSTEPS = 32
MAX_NODES = 4096
MAX_BEYOND = 2000
TRIAL_DRAWS = 8
TRIAL_TIMES = 64
"""Times on which rules are compared: of a longer series those around its longest gap."""


@dataclass(frozen=True)
class Quadrature:
    """How finely the time between two observations is cut: panels a gap, nodes a panel.

    breaks: further times at which a panel ends, as the coefficients of the equation jump there.
    """

    substeps: int = 1
    order: int = MOST_NODES
    breaks: tuple[float, ...] = ()

    def finer(self) -> Quadrature:
        if self.order < MOST_NODES:
            return Quadrature(self.substeps, 2 * self.order)
        return Quadrature(2 * self.substeps, self.order)

    def num_nodes(self, num_times: int) -> int:
        return self.substeps * self.order * num_times


class LinearGaussian(GaussianMarginal):
    """Outputs are sums over quadrature nodes of the force, so every covariance is a product of small matrices."""

    def __init__(self, model: Model, observations: Observations, linearity: Linearity, quadrature: Quadrature) -> None:
        assert linearity.affine
        super().__init__(model, observations)
        self.linearity, self.quadrature = linearity, quadrature

    @property
    def matrix_size(self) -> int:
        return max(super().matrix_size, self.quadrature.num_nodes(self.observations.times.shape[-1]))

    def row_bytes(self, num_query: int) -> int:
        num_times = self.observations.times.shape[-1]
        dense = num_query >= 2 * num_times
        rule = Quadrature(self.quadrature.substeps, self._order(dense=dense))
        num_nodes = rule.num_nodes(num_query + num_times)
        return 8 * num_nodes * (5 * num_nodes + 6 * super().matrix_size)

    def observed_prior(self, values: Values, times: Tensor) -> tuple[Tensor, Tensor]:
        grid = panels(times, self.quadrature.substeps, self.quadrature.order)
        offset, weight = self._map(values, times, grid)
        return offset, self._between(values, weight, weight, grid)

    def query_prior(self, values: Values, times: Tensor, query: Tensor) -> tuple[tuple[Tensor, Tensor], QueryPrior]:
        grid, (offset, weight), (query_offset, query_weight) = self._query_map(values, times, query)
        nodes, at = grid.nodes.unsqueeze(-1), query.unsqueeze(-1)
        observed = torch.zeros(())
        cross, variance = torch.zeros(()), torch.zeros(())
        force_cross, force_variance = [], []
        for i, (kernel, hyper) in enumerate(zip(self.model.kernels, self.model.hyper(values), strict=True)):
            among = kernel.covariance(hyper, nodes, nodes)
            pushed = among @ weight[:, i].mT
            observed = observed + weight[:, i] @ pushed
            cross = cross + query_weight[:, i] @ pushed
            variance = variance + ((query_weight[:, i] @ among) * query_weight[:, i]).sum(-1)
            force_cross.append(kernel.covariance(hyper, at, nodes) @ weight[:, i].mT)
            force_variance.append(kernel.diagonal(hyper, at))
        prior = QueryPrior(query_offset, cross, variance, torch.stack(force_cross, 1), torch.stack(force_variance, 1))
        return (offset, observed), prior

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        """The force at the nodes is conditioned once, and outputs follow from it; equal to that of the base class.

        There, the covariance of all outputs at all query times with all observations is made and solved for.
        """
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        grid = self._query_grid(data.times, query)
        system = extract(self.model.mechanism, values)
        offset, weight = self._map(values, data.times, grid)
        nodes, at = grid.nodes.unsqueeze(-1), query.unsqueeze(-1)
        kernels = list(zip(self.model.kernels, self.model.hyper(values), strict=True))
        among = [kernel.covariance(hyper, nodes, nodes) for kernel, hyper in kernels]
        pushed = [weight[:, i] @ one for i, one in enumerate(among)]  # [B, N, G]
        observed = sum((one @ weight[:, i].mT for i, one in enumerate(pushed)), torch.zeros(()))
        covariance, residual = self._noisy(values, data, offset, observed)
        factor, _ = safe_cholesky(covariance)
        mask = data.mask.flatten(-2).unsqueeze(-1)
        solved = torch.cholesky_solve(residual.unsqueeze(-1), factor) * mask

        def whitened(cross: Tensor) -> Tensor:
            found: Tensor = torch.linalg.solve_triangular(factor, cross * mask, upper=False)
            return found

        force_mean, force_var = [], []
        for i, (kernel, hyper) in enumerate(kernels):
            cross = weight[:, i] @ kernel.covariance(hyper, nodes, at)
            force_mean.append((cross.mT @ solved).squeeze(-1))
            force_var.append((kernel.diagonal(hyper, at) - whitened(cross).square().sum(-2)).clamp_min(0))
        at_nodes = torch.stack([(one.mT @ solved).squeeze(-1) for one in pushed], 1)
        place = torch.searchsorted(grid.breaks, query.contiguous()).unsqueeze(1)
        mean = propagate(system, grid, at_nodes, diagonal=self.linearity.diagonal)
        explained = torch.stack([whitened(one) for one in pushed], 2)
        variance = output_variance(system, grid, among, explained, diagonal=self.linearity.diagonal)
        return Moments(
            torch.stack(force_mean, 1),
            torch.stack(force_var, 1),
            mean.take_along_dim(place, -1),
            variance.take_along_dim(place, -1).clamp_min(0),
        )

    def draw(self, z: Tensor, rows: Tensor, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One joint draw given z [A, n] at times `query` [A, Q]: forces [A, L, Q] and outputs [A, P, Q].

        A draw of the prior, corrected by what its own noisy observations miss of the real ones (Matheron's rule).
        """
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        grid, (offset, weight), (query_offset, query_weight) = self._query_map(values, data.times, query)
        places = torch.cat([grid.nodes, query], -1).unsqueeze(-1)
        sizes = [grid.nodes.shape[-1], query.shape[-1]]
        forces, force_cross = [], []
        seen, shown, observed, cross = [torch.zeros(())] * 4
        for i, (kernel, hyper) in enumerate(zip(self.model.kernels, self.model.hyper(values), strict=True)):
            covariance = kernel.covariance(hyper, places, places)
            factor, _ = safe_cholesky(covariance)
            of_nodes, of_query = (covariance[..., : sizes[0]] @ weight[:, i].mT).split(sizes, -2)
            observed, cross = observed + weight[:, i] @ of_nodes, cross + query_weight[:, i] @ of_nodes
            force_cross.append(of_query)
            noise = torch.randn(*places.shape[:-1], 1, generator=generator, dtype=z.dtype)
            at_nodes, at_query = (factor @ noise).squeeze(-1).split(sizes, -1)
            forces.append(at_query)
            seen = seen + (weight[:, i] @ at_nodes.unsqueeze(-1)).squeeze(-1)
            shown = shown + (query_weight[:, i] @ at_nodes.unsqueeze(-1)).squeeze(-1)
        covariance, residual = self._noisy(values, data, offset, observed)
        factor, _ = safe_cholesky(covariance)
        noise_sd = self.model.noise_variance(values, data).flatten(-2).sqrt()
        error = noise_sd * torch.randn(residual.shape, generator=generator, dtype=z.dtype)
        drift = self.model.likelihood.drift_covariance(values, data)
        if drift is not None:
            factor_of_drift, _ = safe_cholesky(drift)
            wander = torch.randn(data.values.shape, generator=generator, dtype=z.dtype)
            error = error + (factor_of_drift @ wander.unsqueeze(-1)).squeeze(-1).flatten(-2)
        missed = residual - seen - error
        mask = data.mask.flatten(-2)
        solved = torch.cholesky_solve((missed * mask).unsqueeze(-1), factor) * mask.unsqueeze(-1)
        force = torch.stack(forces, 1) + (torch.stack(force_cross, 1) @ solved.unsqueeze(1)).squeeze(-1)
        outputs = query_offset + shown + (cross @ solved).squeeze(-1)
        return force, outputs.unflatten(-1, (len(self.model.mechanism.outputs), -1))

    def _query_grid(self, times: Tensor, query: Tensor) -> Panels:
        """The grid that query times share with observations."""
        breaks = torch.sort(torch.cat([times, query, breaks_beyond(times, query)], -1), -1).values
        # Query times cut the panels further: where they do so everywhere, two nodes a panel are enough.
        dense = torch.diff(breaks, dim=-1).amax() <= 0.5 * torch.diff(times, dim=-1).amax()
        return panels(breaks, self.quadrature.substeps, self._order(dense=bool(dense)))

    def _order(self, *, dense: bool) -> int:
        return min(2, self.quadrature.order) if dense else self.quadrature.order

    def _query_map(
        self, values: Values, times: Tensor, query: Tensor
    ) -> tuple[Panels, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The grid that query times share with observations, and the maps of both on it."""
        grid = self._query_grid(times, query)
        return grid, self._map(values, times, grid), self._map(values, query, grid)

    def _map(self, values: Values, times: Tensor, grid: Panels) -> tuple[Tensor, Tensor]:
        """Offset [B, N] and weight [B, L, N, G] of the outputs at `times`."""
        system = extract(self.model.mechanism, values)
        offset, weight = response(system, times, grid, diagonal=self.linearity.diagonal)
        return offset.flatten(-2), weight.flatten(-3, -2)

    def _between(self, values: Values, left: Tensor, right: Tensor, grid: Panels) -> Tensor:
        nodes = grid.nodes.unsqueeze(-1)
        parts = [
            left[:, i] @ kernel.covariance(hyper, nodes, nodes) @ right[:, i].mT
            for i, (kernel, hyper) in enumerate(zip(self.model.kernels, self.model.hyper(values), strict=True))
        ]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def breaks_beyond(times: Tensor, query: Tensor) -> Tensor:
    """Breaks [B, K] after the last observation, no farther apart than observations are, up to the last query time."""
    last, end = times[:, -1:], torch.maximum(query[:, -1:], times[:, -1:])
    gap = torch.diff(times, dim=-1).amax(-1, keepdim=True).clamp_min(1e-300)
    count = min(MAX_BEYOND, int(torch.ceil((end - last) / gap).amax()))
    share = torch.arange(1, count + 1, dtype=times.dtype) / max(count, 1)
    return last + (end - last) * share


@torch.no_grad()
def choose_quadrature(model: Model, observations: Observations, linearity: Linearity) -> Quadrature:
    """The coarsest rule that the next finer one does not change visibly, judged by the outputs' prior deviations."""
    generator = torch.Generator().manual_seed(0)
    times = _around_longest_gap(observations.times).repeat_interleave(TRIAL_DRAWS, 0)
    z = torch.randn(TRIAL_DRAWS, model.space.num_free, generator=generator, dtype=times.dtype)
    draws = z.repeat(len(observations), 1)

    def deviation(quadrature: Quadrature) -> Tensor:
        marginal = LinearGaussian(model, observations, linearity, quadrature)
        # One draw after the other: the finest rules have matrices of hundreds of megabytes.
        pairs = zip(draws.split(1), times.split(1), strict=True)
        found = [marginal.observed_prior(model.space.unpack(one), some)[1] for one, some in pairs]
        return torch.cat([torch.diagonal(one, dim1=-2, dim2=-1) for one in found]).clamp_min(0).sqrt()

    # Many times are close to each other as a rule, and one node between two of them may do.
    num_times = observations.times.shape[-1]
    quadrature = Quadrature(order=1) if num_times > TRIAL_TIMES else Quadrature()
    coarse = deviation(quadrature)
    while quadrature.substeps < MAX_SUBSTEPS and quadrature.num_nodes(num_times) <= MAX_NODES:
        fine = deviation(quadrature.finer())
        scale = fine.amax(-1, keepdim=True)
        change = ((fine - coarse).abs() / scale.clamp_min(1e-300)).amax(-1)
        # The median over draws: a draw from the prior's far end should not set the cost of all fits.
        if float(change.median()) <= TOLERANCE:
            return quadrature
        quadrature, coarse = quadrature.finer(), fine
    return quadrature


def _around_longest_gap(times: Tensor) -> Tensor:
    """At most TRIAL_TIMES consecutive ones of times [B, T], the longest gap of all among them."""
    if times.shape[-1] <= TRIAL_TIMES:
        return times
    longest = int(torch.diff(times, dim=-1).amax(0).argmax())
    first = min(max(0, longest - TRIAL_TIMES // 2), times.shape[-1] - TRIAL_TIMES)
    return times[:, first : first + TRIAL_TIMES]
