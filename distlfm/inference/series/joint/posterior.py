"""Draws of parameters and amplitudes: force and outputs at any times.

Beyond the data's circle a force goes on as the Gaussian process given its last stretch. Shapes: `S` draws, `A`
instances, `Q` query times, `L` forces, `P` outputs, `N` steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distlfm.gp.linalg import solve_samples
from distlfm.gp.pathwise import Domain, Draw, ForcePrior, draw_posterior, make_base_noise
from distlfm.inference.base import Mixture, Posterior, Predicted, Unknowns
from distlfm.inference.collapsed import enumerate_chunks
from distlfm.inference.series.joint.density import Density
from distlfm.inference.series.joint.flow import Flow
from distlfm.inference.series.joint.grid import Grid
from distlfm.inference.series.joint.waves import Circle, lengthscales
from distlfm.mechanisms.priors import Values
from distlfm.runtime.reporting import stepped

CHUNK_ROWS = 4096
"""Trajectories solved at once when predicting."""

KNOTS, KNOT_GAP, FEATURES = 12, 0.5, 64
"""Places whose values lead a force on beyond its circle, their distance in lengthscales, features of what is new."""


class JointPosterior(Posterior):
    """Draws of equal weight."""

    method = "joint"

    def __init__(self, density: Density, w: Tensor, seeds: tuple[int, ...]) -> None:
        """w: [S, B, W]; seeds: of what a force does beyond its circle, one for each instance."""
        self.density, self.w, self.seeds = density, w, seeds
        self.model, self.observations = density.model, density.data

    def unknowns(self) -> Unknowns:
        z = self.w[..., : self.density.num_free]
        return Unknowns(z, torch.full(z.shape[:2], 1 / len(z), dtype=z.dtype))

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        order = torch.randperm(len(self.w), generator=torch.Generator().manual_seed(seed))
        chosen = order[torch.arange(count) % len(order)]
        force, outputs = self._solve(rows, times)
        return force[chosen], outputs[chosen], self.w[chosen][:, rows, : self.density.num_free]

    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        force, outputs = self._solve(rows, times)
        return Predicted(Mixture(force, torch.zeros_like(force)), Mixture(outputs, torch.zeros_like(outputs)))

    @torch.no_grad()
    def _solve(self, rows: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [S, A, L, Q] and outputs [S, A, P, Q] of all draws."""
        parts, size = [], max(1, CHUNK_ROWS // len(self.w))
        for start, some in enumerate_chunks(rows, size):
            stepped("prediction", start, len(rows))
            parts.append(self._solve_some(some, times[start : start + size]))
        force, outputs = zip(*parts, strict=True)
        return torch.cat(force, 1), torch.cat(outputs, 1)

    def _solve_some(self, rows: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        density, w = self.density.rows(rows), self.w[:, rows]
        mechanism = self.model.mechanism
        z, amplitudes = density.split(w)
        values = self.model.space.unpack(z)
        grid = density.grid.until(times[:, -1])
        force = _Force(density, values, amplitudes, [self.seeds[int(i)] for i in rows], times[:, -1])
        stages = grid.stages
        flow = Flow(mechanism, density.flow.names, stages.T[:, None], grid.lengths.T[:, None, :, None], density.shape)
        table = force(stages)
        states, _ = flow.march(table, density.start(values, w.shape), list(values.values()))
        rates = mechanism.vector_field(grid.nodes.T[:, None], states, table[::2], values)
        seen = _interpolated(states, rates, grid, times)
        shown = mechanism.act(force(times), values)
        return shown.permute(1, 2, 3, 0), mechanism.observe(seen, values).permute(1, 2, 3, 0)

    def state(self) -> dict[str, Tensor]:
        kept = {
            "w": self.w.movedim(0, 1),
            "nodes": self.density.grid.nodes,
            "place": self.density.grid.place,
            "steps": self.density.grid.steps,
            "seeds": torch.tensor(self.seeds),
        }
        waves = self.density.waves
        if isinstance(waves, Circle):
            kept["circle"] = torch.stack([waves.origin, waves.length, waves.count.double()], -1)
        return kept


class _Force:
    """Forces of all draws as a function of time; those beyond their circle go on from its end."""

    def __init__(self, density: Density, values: Values, amplitudes: Tensor, seeds: list[int], last: Tensor) -> None:
        self.density, self.values, self.amplitudes = density, values, amplitudes
        self.edge = density.data.times[:, -1]
        self.beyond: Draw | None = None
        if isinstance(density.waves, Circle) and bool((last > self.edge).any()):
            self.beyond = self._continued(seeds, last)

    def __call__(self, times: Tensor) -> Tensor:
        """[Q, S, A, L] at times [A, Q]."""
        within = torch.minimum(times, self.edge.unsqueeze(-1)) if self.beyond is not None else times
        found = self.density.waves.force(self.values, self.amplitudes, within)
        if self.beyond is None:
            return found
        count = len(self.amplitudes)
        after = self.beyond(torch.maximum(times, self.edge.unsqueeze(-1)).repeat(count, 1).unsqueeze(-1))
        after = after[0].unflatten(0, (count, -1)).permute(3, 0, 1, 2)
        return torch.where((times > self.edge.unsqueeze(-1)).T[:, None, :, None], after, found)

    def _continued(self, seeds: list[int], last: Tensor) -> Draw:
        density, model = self.density, self.density.model
        count = len(self.amplitudes)
        first = density.data.times[:, 0]
        shortest = _shortest(density, self.values)
        gap = torch.minimum(KNOT_GAP * shortest, (self.edge - first) / (KNOTS - 1))  # [S, A]
        knots = self.edge.unsqueeze(-1) - gap.unsqueeze(-1) * torch.arange(KNOTS - 1, -1, -1)  # [S, A, M]
        at = torch.stack(
            [
                density.waves.force(
                    {name: value[s : s + 1] for name, value in self.values.items()},
                    self.amplitudes[s : s + 1],
                    knots[s],
                )[:, 0]
                for s in range(count)
            ]
        )  # [S, M, A, L]
        flat = {name: value.flatten(0, 1) for name, value in self.values.items()}
        inducing = knots.flatten(0, 1).unsqueeze(-1)
        prior, hyper = ForcePrior(model.kernels), model.hyper(flat)
        whitened = solve_samples(prior.factor(hyper, inducing).factor, at.permute(0, 2, 3, 1).flatten(0, 1)[None])
        noise = make_base_noise(seeds, count, len(model.kernels), FEATURES).flatten(0, 1)[None]
        domain = Domain(inducing[:, 0], torch.maximum(last, self.edge).repeat(count).unsqueeze(-1))
        return draw_posterior(prior, hyper, domain, noise, inducing, whitened)


def _shortest(density: Density, values: Values) -> Tensor:
    """The shortest lengthscale [S, A] of all forces."""
    space = density.model.space
    like = next(iter(values.values()))
    z = space.pack(values, like.new_zeros(*like.shape[:-1], space.num_free))
    return lengthscales(density.model, z, torch.zeros_like(z))[0]


def _interpolated(states: Tensor, rates: Tensor, grid: Grid, times: Tensor) -> Tensor:
    """States [Q, S, A, D] at times [A, Q] by cubic Hermite interpolation of states and rates [N + 1, S, A, D]."""
    nodes = grid.nodes.contiguous()
    left = (torch.searchsorted(nodes, times.contiguous(), right=True) - 1).clamp(0, nodes.shape[-1] - 2)
    begin, end = nodes.gather(-1, left), nodes.gather(-1, left + 1)
    width = end - begin
    part = torch.where(width > 0, (times - begin) / width.clamp_min(1e-300), 0.0).clamp(0, 1).T[:, None, :, None]
    index = left.T[:, None, :, None].expand(-1, *states.shape[1:])
    y0, y1 = states.gather(0, index), states.gather(0, index + 1)
    d0, d1 = (width.T[:, None, :, None] * rates.expand_as(states).gather(0, i) for i in (index, index + 1))
    rise, rest = part * part * (3 - 2 * part), 1 - part
    return y0 + rise * (y1 - y0) + part * rest * (rest * d0 - part * d1)
