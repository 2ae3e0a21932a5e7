"""Long series of linear mechanisms: the same marginal likelihood and posterior by a Kalman filter, in time linear in T.

A Matérn force of half-integer smoothness is itself the output of a linear stochastic equation (Hartikainen & Särkkä
2010). Joined with the mechanism it makes one stable linear system, `dx = M x dt + dw`, observed with noise; its
stationary covariance Π gives the noise of any step as Π − Φ Π Φᵀ with Φ = e^{M Δ}.

Shapes: `B` instances, `T` times, `Q` query times, `D` states of the mechanism, `L` forces, `n` states of the system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.expression import Scaled, Stationary
from distlfm.inference.marginal import Marginal, Moments
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.collapsed import LinearMethod
from distlfm.mechanisms.priors import Values
from distlfm.solvers.kalman import Chain
from distlfm.solvers.linear import LinearSystem, extract

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

SMOOTHNESS = {"matern12": 1, "matern32": 2, "matern52": 3}
"""States of the stochastic equation of each kernel."""

ROUNDING = 1e-13
"""Part of the span by which the gaps of even times differ at most."""

LONG = 24
"""Times from which the filter is faster than dense matrices, for a batch of instances."""


@dataclass(frozen=True)
class _Joint:
    """drift M, stationary covariance Π and covariance at the start: [B, n, n]; mean of the mechanism apart."""

    drift: Tensor
    stationary: Tensor
    first: Tensor
    outputs: Tensor
    """[B, P, n]: which combination of the states each output is."""
    observed: Tensor
    """The same of what is observed but for white noise: the output, and an error that wanders if there is one."""
    forces: tuple[int, ...]
    """Where each force stands among the states."""


def supports(model: Model) -> bool:
    """Whether a model is a stable linear system with Matérn forces and Gaussian noise."""
    constant = model.integrable and model.linearity.affine
    if not constant or any(_shape_of(kernel.expression) is None for kernel in model.kernels):
        return False
    space = model.space
    draws = torch.randn(7, space.num_free, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eigenvalues = torch.linalg.eigvals(extract(model.mechanism, space.unpack(draws)).A)
    return bool((eigenvalues.real < 0).all())


def _shape_of(expression: object) -> str | None:
    if isinstance(expression, Scaled) and isinstance(expression.part, Stationary):
        return expression.part.shape if expression.part.shape in SMOOTHNESS else None
    return None


class StateSpace(Marginal):
    """Marginal likelihood and posterior by filtering and smoothing."""

    at_once = True
    draws_together = True

    def __init__(self, model: Model, observations: Observations) -> None:
        super().__init__(model, observations)
        self.shapes = [_shape_of(kernel.expression) or "" for kernel in model.kernels]
        drift = model.likelihood.drift
        self.errors = [] if drift is None else [drift.kind] * len(model.mechanism.outputs)

    @property
    def size(self) -> int:
        """States of mechanism, forces and errors that wander, in this order."""
        return self.model.mechanism.num_states + sum(SMOOTHNESS[shape] for shape in [*self.shapes, *self.errors])

    def row_bytes(self, num_query: int) -> int:
        size = self.size
        return 8 * 4 * size**2 * (num_query + self.observations.times.shape[-1])

    def log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        found = self.chain(z, rows).log_density()
        return torch.where(torch.isfinite(found), found, -torch.inf)

    def innovations(self, z: Tensor, rows: Tensor) -> Tensor:
        return self.chain(z, rows).innovations()

    def chain(self, z: Tensor, rows: Tensor) -> Chain:
        """What was observed of the instances `rows` [A], given z [A, n]."""
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        system = extract(self.model.mechanism, values)
        residual, noise = data.values - self._offset(system, data.times), self.model.noise_variance(values, data)
        return self._chain(self._joint(system, values), data.times, residual, noise, data.mask)

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        joint, chain, offset, back = self._with_queries(z, rows, query)
        mean, variance = chain.smoothed(self._shown(joint))
        mean, variance = (_at(one, back) for one in (mean, variance.clamp_min(0)))
        num_forces = len(joint.forces)
        return Moments(
            mean[:, :num_forces], variance[:, :num_forces], _at(offset, back) + mean[:, num_forces:],
            variance[:, num_forces:],
        )  # fmt: skip

    def draw(self, z: Tensor, rows: Tensor, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One joint draw given z [A, n] at times `query` [A, Q]: forces [A, L, Q] and outputs [A, P, Q].

        A path of the prior, corrected by what its own noisy observations miss of the real ones (Matheron's rule).
        """
        joint, chain, offset, back = self._with_queries(z, rows, query)
        shown = self._shown(joint)
        path = chain.drawn(generator).mT  # [A, n, T]
        error = chain.noise.sqrt() * torch.randn(chain.noise.shape, generator=generator, dtype=z.dtype)
        missed = chain.residual - joint.observed @ path - error
        mean, _ = chain.seeing(missed).smoothed(shown)
        found, num_forces = _at(shown @ path + mean, back), len(joint.forces)
        return found[:, :num_forces], _at(offset, back) + found[:, num_forces:]

    def _shown(self, joint: _Joint) -> Tensor:
        """Forces, then outputs, as combinations [A, L + P, n] of the states."""
        forces = torch.eye(self.size, dtype=joint.outputs.dtype)[list(joint.forces)]
        return torch.cat([forces.expand(len(joint.outputs), -1, -1), joint.outputs], 1)

    def _with_queries(self, z: Tensor, rows: Tensor, query: Tensor) -> tuple[_Joint, Chain, Tensor, Tensor]:
        """Joint system and observations at all times, outputs [A, P, T] there while no force acts, and the query
        times' places among them, [A, Q]: those that are no observed times take part without data.
        """
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        system = extract(self.model.mechanism, values)
        noise = self.model.noise_variance(values, data).expand_as(data.values)
        place = torch.searchsorted(data.times.contiguous(), query.contiguous())
        known = data.times.gather(-1, place.clamp_max(data.times.shape[-1] - 1)) == query
        more = torch.nonzero(~known.all(0)).squeeze(-1)
        times, order = torch.cat([data.times, query[:, more]], -1).sort(dim=-1, stable=True)
        blank = query.new_zeros(*data.values.shape[:-1], len(more))
        seen, observed, noise = (
            _at(torch.cat([one, empty], -1), order)
            for one, empty in ((data.mask, blank.bool()), (data.values, blank), (noise, blank + 1))
        )
        offset, joint = self._offset(system, times), self._joint(system, values)
        place[:, more] = data.times.shape[-1] + torch.arange(len(more))
        back = torch.argsort(order, -1).gather(-1, place)
        return joint, self._chain(joint, times, observed - offset, noise, seen), offset, back

    def _offset(self, system: LinearSystem, times: Tensor) -> Tensor:
        """Outputs [B, P, T] while no force acts."""
        rest = -torch.linalg.solve(system.A, system.c)
        since = times - times[:, :1]
        away = (system.start - rest).unsqueeze(-1)
        if not bool((system.A - torch.diag_embed(torch.diagonal(system.A, dim1=-2, dim2=-1))).any()):
            rates = torch.diagonal(system.A, dim1=-2, dim2=-1)
            states = rest.unsqueeze(-1) + torch.exp(rates.unsqueeze(-1) * since.unsqueeze(-2)) * away
        else:
            moved = torch.linalg.matrix_exp(system.A.unsqueeze(1) * since[..., None, None]) @ away.unsqueeze(1)
            states = rest.unsqueeze(-1) + moved.squeeze(-1).mT
        outputs: Tensor = system.C @ states + system.e.unsqueeze(-1)
        return outputs

    def _joint(self, system: LinearSystem, values: Values) -> _Joint:
        num_states, size, batch = system.A.shape[-1], self.size, len(system.A)
        drift = system.A.new_zeros(batch, size, size)
        first = torch.zeros_like(drift)
        drift[:, :num_states, :num_states] = system.A
        forces, at = [], num_states
        for i, (shape, hyper) in enumerate(zip(self.shapes, self.model.hyper(values), strict=True)):
            part = slice(at, at + SMOOTHNESS[shape])
            equation, covariance = _matern(shape, hyper["lengthscale"], hyper["variance"])
            drift[:, part, part] = equation
            drift[:, :num_states, at] = system.B[..., i]
            first[:, part, part] = covariance
            forces.append(at)
            at = part.stop
        padding = system.C.new_zeros(batch, system.C.shape[-2], size - num_states)
        outputs = torch.cat([system.C, padding], -1)
        observed = outputs.clone()
        num_forced = at - num_states
        for p, shape in enumerate(self.errors):
            part = slice(at, at + SMOOTHNESS[shape])
            error, scale = (one[:, min(p, one.shape[-1] - 1)] for one in self.model.likelihood.drift_scales(values))
            equation, covariance = _matern(shape, scale, error.square())
            drift[:, part, part] = equation
            first[:, part, part] = covariance
            observed[:, p, at] = 1.0
            at = part.stop
        return _Joint(drift, _stationary(drift, first, num_states, num_forced), first, outputs, observed, tuple(forces))

    def _chain(self, joint: _Joint, times: Tensor, residual: Tensor, noise: Tensor, seen: Tensor) -> Chain:
        """The joint system at times [B, T], with residuals, noise and mask [B, P, T]."""
        # Few gaps differ in regular series, and have one matrix each. In others each row has its own.
        lengths, which = _gaps(times)
        if lengths.shape[-1] > which.shape[-1]:
            lengths = lengths.gather(-1, which)
            which = torch.arange(which.shape[-1]).expand_as(which)
        return Chain(
            *(joint.drift, joint.stationary, lengths, which, joint.first),
            *(joint.observed, residual, noise.expand_as(residual), seen),
        )


def _gaps(times: Tensor) -> tuple[Tensor, Tensor]:
    """Gaps [B, U] that times [B, T] have, and which one of them is before each time but the first, [B, T − 1].

    Gaps that only the rounding of times tells apart are one, whose length is that of the shortest in the same row.
    """
    gaps = torch.diff(times, dim=-1)
    # Powers of two: rows of all spans share their gaps, and no row depends on another.
    grain = (ROUNDING * (times[:, -1:] - times[:, :1])).clamp_min(1e-300).log2().ceil().exp2()
    lengths, which = torch.unique((gaps / grain).round() * grain, return_inverse=True)
    return lengths.repeat(len(times), 1).scatter_reduce(-1, which, gaps, "amin", include_self=False), which


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Of values [A, P, T] those at places [A, Q], [A, P, Q]."""
    return values.gather(-1, places.unsqueeze(1).expand(-1, values.shape[1], -1))


def _matern(shape: str, lengthscale: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Drift and stationary covariance, [B, k, k].

    States are the process and its derivatives in units of its rate, so that all numbers are of one size.
    """
    size = SMOOTHNESS[shape]
    rate = math.sqrt(2 * size - 1) / lengthscale
    binomial = [-float(math.comb(size, i)) for i in range(size)]
    equation = torch.diag(torch.ones(size - 1, dtype=rate.dtype), 1)
    equation[-1] = torch.tensor(binomial, dtype=rate.dtype)
    among = {1: [[1.0]], 2: [[1.0, 0.0], [0.0, 1.0]], 3: [[1.0, 0.0, -1 / 3], [0.0, 1 / 3, 0.0], [-1 / 3, 0.0, 1.0]]}
    covariance = torch.tensor(among[size], dtype=rate.dtype)
    return rate[:, None, None] * equation, variance[:, None, None] * covariance


def _stationary(drift: Tensor, known: Tensor, num_states: int, num_forced: int) -> Tensor:
    """Π with M Π + Π Mᵀ + diffusion = 0, [B, n, n], whose part of forces and errors is known.

    The first states follow the `num_forced` that come next; the equations of their covariances are solved in turn.
    """
    own, other = slice(num_states), slice(num_states, num_states + num_forced)
    A, across, forced = drift[:, own, own], drift[:, own, other], drift[:, other, other]
    met = _sylvester(A, forced, across @ known[:, other, other])  # [B, D, K]
    pushed = across @ met.mT
    covariance = known.clone()
    covariance[:, own, other], covariance[:, other, own] = met, met.mT
    within = _sylvester(A, A, pushed + pushed.mT)
    covariance[:, own, own] = 0.5 * (within + within.mT)
    return covariance


def _sylvester(left: Tensor, right: Tensor, source: Tensor) -> Tensor:
    """X [B, i, j] with left X + X rightᵀ + source = 0."""
    rows, columns = left.shape[-1], right.shape[-1]
    both = torch.einsum("bij,kl->bikjl", left, torch.eye(columns, dtype=left.dtype))
    both = both + torch.einsum("ij,bkl->bikjl", torch.eye(rows, dtype=left.dtype), right)
    flat = torch.linalg.solve(both.reshape(len(left), rows * columns, -1), -source.flatten(-2))
    found: Tensor = flat.unflatten(-1, (rows, columns))
    return found


@register_method("filter")
class Filter(LinearMethod):
    """By a Kalman filter, for long series."""

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        super().check(model, options)
        if not supports(model):
            raise UsageError(
                "The method 'filter' needs a stable mechanism and a kernel matern12, matern32 or matern52.",
                "Use inference.method=collapsed, which takes any kernel.",
            )

    @classmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        return 8 * 60 * num_times * (3 + model.mechanism.num_states) ** 2 * options.restarts

    def marginal(self, model: Model, observations: Observations) -> Marginal:
        return StateSpace(model, observations)
