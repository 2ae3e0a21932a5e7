"""The joint density of parameters and amplitudes given the data, its gradient, and Jacobians of the outputs.

Unknowns are w = (z, a): whitened parameters, and whitened amplitudes of the force's waves, all standard normal a
priori. Shapes: `C` samples, `A` instances, `n` parameters, `W` unknowns, `D` states, `P` outputs, `T` times, `Q` query
times, `L` forces, `M` amplitudes a force.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.joint.flow import Driving, Flow, March, Shape, sensitivities
from distlfm.inference.series.joint.grid import Grid
from distlfm.inference.series.joint.waves import Circle, Waves, tabulated
from distlfm.mechanisms.priors import Values

NUDGE = 1e-5
"""Step of the differences that tell how parameters' natural values follow z."""


@dataclass(frozen=True)
class Linearised:
    """Outputs [C, A, P, T] at some w, and their Jacobian [C, A, P, T, W]; ok: [C, A]."""

    values: Values
    outputs: Tensor
    jacobian: Tensor
    ok: Tensor


@dataclass(frozen=True)
class Density:
    """Of A instances."""

    model: Model
    data: Observations
    grid: Grid
    waves: Waves
    shape: Shape

    @staticmethod
    def of(model: Model, data: Observations, grid: Grid, waves: Waves) -> Density:
        return Density(model, data, grid, waves, Shape.of(model.mechanism, model.space))

    def rows(self, index: Tensor) -> Density:
        """Of the instances at `index`."""
        if len(index) == len(self.data) and bool((index == torch.arange(len(index))).all()):
            return self
        found = Density(self.model, self.data.rows(index), self.grid.rows(index), self.waves.rows(index), self.shape)
        if "_table" in self.__dict__ and self._table is not None:
            # Sines and cosines are not computed again.
            found.__dict__["_table"] = self._table[index, : 2 * found.grid.lengths.shape[-1] + 1]
        return found

    @property
    def num_free(self) -> int:
        """n."""
        return self.model.space.num_free

    @property
    def size(self) -> int:
        """W."""
        return self.active.shape[-1]

    @cached_property
    def active(self) -> Tensor:
        """Unknowns [A, W] that count; the others stay zero."""
        mine = self.waves.active.repeat(1, len(self.model.kernels))
        return torch.cat([torch.ones(len(mine), self.num_free, dtype=torch.bool), mine], -1)

    @cached_property
    def noise(self) -> Tensor:
        """Which of the n parameters are of the noise."""
        space = self.model.space
        return torch.tensor([one.kind == "noise" for one in space.parameters for _ in one.free], dtype=torch.bool)

    def split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w [C, A, W] → z [C, A, n] and a [C, A, L, M]."""
        return w[..., : self.num_free], w[..., self.num_free :].unflatten(-1, (len(self.model.kernels), -1))

    @cached_property
    def _stages(self) -> Tensor:
        return self.grid.stages

    @cached_property
    def _table(self) -> Tensor | None:
        return self.waves.table(self._stages) if isinstance(self.waves, Circle) else None

    @cached_property
    def flow(self) -> Flow:
        names = tuple(one.name for one in self.model.space.parameters)
        lengths = self.grid.lengths.T[:, None, :, None].contiguous()
        return Flow(self.model.mechanism, names, self._stages.T[:, None].contiguous(), lengths, self.shape)

    def _forces(self, values: Values, amplitudes: Tensor) -> Tensor:
        """[2·N + 1, C, A, L] at all stages."""
        if self._table is None:
            return self.waves.force(values, amplitudes, self._stages)
        assert isinstance(self.waves, Circle)
        return tabulated(self._table, self.waves.roots(values) * amplitudes)

    def start(self, values: Values, shape: torch.Size) -> Tensor:
        """States [C, A, D] at the first time; shape: [C, A, ...]."""
        return self.model.mechanism.initial_state(values).expand(*shape[:2], self.model.mechanism.num_states)

    @cached_property
    def _place(self) -> Tensor:
        return self.grid.place.T[:, None, :, None]

    def _observed(self, states: Tensor, values: Values) -> Tensor:
        """Outputs [C, A, P, T] of states [N + 1, C, A, D]."""
        shape = (-1, *states.shape[1:])
        seen = states.gather(0, self._place.expand(*shape))
        return self.model.mechanism.observe(seen, values).permute(1, 2, 3, 0)

    def outputs(self, w: Tensor) -> tuple[Values, Tensor, Tensor]:
        """Natural values, outputs [C, A, P, T] at w [C, A, W], and whether the solve went well, [C, A]."""
        z, amplitudes = self.split(w)
        values = self.model.space.unpack(z)
        table = self._forces(values, amplitudes)
        start = self.start(values, w.shape)
        states, ok = March.apply(self.flow, table, start, *values.values())  # type: ignore[no-untyped-call]
        return values, self._observed(states, values), ok

    def log_density(self, w: Tensor) -> Tensor:
        """log p(y, w) [C, A], up to a constant; −∞ where the solve failed."""
        values, outputs, ok = self.outputs(w)
        density = self.model.likelihood.log_prob(values, outputs, self.data)
        ok = ok & torch.isfinite(density)
        return torch.where(ok, density - 0.5 * w.square().sum(-1), -torch.inf)

    def with_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """`log_density` [C, A] with its gradient [C, A, W], zero where it is not finite."""
        with torch.enable_grad():
            at = w.detach().requires_grad_()
            value = self.log_density(at)
            (gradient,) = torch.autograd.grad(torch.where(torch.isfinite(value), value, 0.0).sum(), at)
        fine = torch.isfinite(gradient).all(-1)
        value = torch.where(fine, value.detach(), -torch.inf)
        return value, torch.where(fine.unsqueeze(-1) & self.active, gradient, 0.0)

    @torch.no_grad()
    def linearised(self, w: Tensor) -> Linearised:
        """Outputs and their Jacobian at w [C, A, W], by chained sensitivities of the steps."""
        z, amplitudes = self.split(w)
        values = self.model.space.unpack(z)
        table = self._forces(values, amplitudes)
        named = list(values.values())
        states, ok = self.flow.march(table, self.start(values, w.shape), named)
        driving = self._driving(z, values, amplitudes, table)
        by_z, by_waves = sensitivities(self.flow, states, table, named, driving)
        index = self._place.expand(-1, *states.shape[1:])
        seen = states.gather(0, index)
        each = torch.cat(
            [one.gather(0, index.unsqueeze(-1).expand(-1, *one.shape[1:])) for one in (by_z, by_waves)], -1
        )  # [T, C, A, D, W]
        shown, found = self._shown(seen, each, values, driving.values)
        fine = ok & torch.isfinite(found).flatten(2).all(-1)
        return Linearised(values, shown, torch.where(fine[..., None, None, None], found, 0.0), fine)

    def _shown(self, seen: Tensor, each: Tensor, values: Values, by_values: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [C, A, P, T] of states [T, C, A, D], and their Jacobian [C, A, P, T, W] from that of the states."""
        with torch.enable_grad():
            y = seen.detach().requires_grad_()
            inputs = {k: v.detach().expand(len(y), *v.shape).clone().requires_grad_() for k, v in values.items()}
            shown = self.model.mechanism.observe(y, inputs)
        if shown is y:
            return seen.permute(1, 2, 3, 0), each.permute(1, 2, 3, 0, 4)
        rows = []
        for i in range(shown.shape[-1]):
            unit = torch.zeros_like(shown)
            unit[..., i] = 1.0
            grads = torch.autograd.grad(
                shown, [y, *inputs.values()], unit, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            row = (grads[0].unsqueeze(-2) @ each).squeeze(-2)
            row[..., : self.num_free] += (torch.cat(grads[1:], -1).unsqueeze(-2) @ by_values).squeeze(-2)
            rows.append(row)
        return shown.detach().permute(1, 2, 3, 0), torch.stack(rows).permute(2, 3, 0, 1, 4)

    def _driving(self, z: Tensor, values: Values, amplitudes: Tensor, table: Tensor) -> Driving:
        """How start, values and forces follow the unknowns at z [C, A, n]: the parameters' part by differences."""
        space, n, count = self.model.space, self.num_free, len(z)
        both = NUDGE * torch.cat([torch.eye(n), -torch.eye(n)]).to(z)[:, None, None]
        moved = space.unpack((z + both).flatten(0, 1))

        def slope(of: Tensor) -> Tensor:
            """Of [2n·C, A, K] at all moved places, [C, A, K, n]."""
            if n == 0:
                return z.new_zeros(*z.shape[:2], of.shape[-1], 0)
            of = of.expand(2 * n * count, *z.shape[1:2], -1).unflatten(0, (2 * n, count))
            return ((of[:n] - of[n:]) / (2 * NUDGE)).movedim(0, -1)

        by_table = table.new_zeros(*table.shape, n)
        kinds = [one.kind for one in space.parameters for _ in one.free]
        for i in [i for i, kind in enumerate(kinds) if kind == "kernel"]:
            above, below = (
                self._forces({name: one.unflatten(0, (2 * n, count))[k] for name, one in moved.items()}, amplitudes)
                for k in (i, n + i)
            )
            by_table[..., i] = (above - below) / (2 * NUDGE)
        if self._table is None:
            waves, roots = self.waves.columns(values, self._stages), torch.ones_like(amplitudes)
        else:
            assert isinstance(self.waves, Circle)
            waves, roots = self._table.transpose(0, 1)[:, None, :, None], self.waves.roots(values)
        start = slope(self.start(moved, torch.Size((2 * n * count, z.shape[1]))))
        return Driving(start, slope(torch.cat(list(moved.values()), -1)), by_table, waves, roots)

    def weighted(self, values: Values, outputs: Tensor, columns: Tensor) -> Tensor:
        """Columns [C, A, P, T, k] in units of the noise, zero where nothing was observed, [C, A, P·T, k].

        The product of such columns is the expected curvature of the log likelihood.
        """
        likelihood, mask = self.model.likelihood, self.data.mask
        seen = torch.where(mask.unsqueeze(-1), columns, 0.0)
        if (factor := likelihood.noise_factor(values, self.data)) is not None:
            white: Tensor = torch.linalg.solve_triangular(factor, seen, upper=False)
            return white.flatten(-3, -2)
        variance = likelihood.noise_variance(values, self.data, outputs)
        scale = torch.where(mask, variance, 1.0).clamp_min(1e-300).rsqrt()
        return (seen * scale.unsqueeze(-1)).flatten(-3, -2)
