"""Long series of linear mechanisms: the same marginal likelihood and posterior by a Kalman filter, in time linear in T.

A Matérn force of half-integer smoothness is itself the output of a linear stochastic equation (Hartikainen & Särkkä
2010). Joined with the mechanism it makes one stable linear system, `dx = M x dt + dw`, observed with noise; its
stationary covariance Π gives the noise of any step as Π − Φ Π Φᵀ with Φ = e^{M Δ}. Smoothing is by the modified
Bryson–Frazier recursion, which inverts nothing but numbers.

Shapes: `B` instances, `T` times, `Q` query times, `D` states of the mechanism, `L` forces, `n` states of the system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.expression import Scaled, Stationary
from distlfm.inference.marginal import Marginal, Moments
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.collapsed import LinearMethod
from distlfm.likelihoods.gaussian import DRIFT
from distlfm.mechanisms.priors import Values
from distlfm.solvers.linear import LinearSystem, extract

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

SMOOTHNESS = {"matern12": 1, "matern32": 2, "matern52": 3}
"""States of the stochastic equation of each kernel."""

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


class _Visit(NamedTuple):
    """One time: the step [B, n, n] that leads there, mean [B, n] and covariance [B, n, n] before anything is observed,
    and what each scalar update did.
    """

    step: Tensor | None
    mean: Tensor
    covariance: Tensor
    updates: list[tuple[Tensor, Tensor, Tensor, Tensor]]


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
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        system = extract(self.model.mechanism, values)
        residual = data.values - self._offset(system, data.times)
        noise = self.model.noise_variance(values, data)
        found, _ = self._filter(self._joint(system, values), data.times, residual, noise, data.mask, keep=False)
        return torch.where(torch.isfinite(found), found, -torch.inf)

    def innovations(self, z: Tensor, rows: Tensor) -> Tensor:
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        system = extract(self.model.mechanism, values)
        residual, noise = data.values - self._offset(system, data.times), self.model.noise_variance(values, data)
        _, visits = self._filter(self._joint(system, values), data.times, residual, noise, data.mask, keep=True)
        found = torch.zeros_like(residual)
        for t, visit in enumerate(visits):
            for p, (_, _, error, precision) in enumerate(visit.updates):
                found[:, p, t] = error * precision.sqrt()
        return found

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        system = extract(self.model.mechanism, values)
        noise = self.model.noise_variance(values, data).expand_as(data.values)
        # Query times take part as times at which nothing was observed.
        times, order = torch.cat([data.times, query], -1).sort(dim=-1, stable=True)
        blank = query.new_zeros(*data.values.shape[:-1], query.shape[-1])
        place = order.unsqueeze(-2).expand(*data.values.shape[:-1], -1)
        seen = torch.cat([data.mask, blank.bool()], -1).gather(-1, place)
        values_there = torch.cat([data.values, blank], -1).gather(-1, place)
        noise_there = torch.cat([noise, blank + 1], -1).gather(-1, place)
        offset = self._offset(system, times)
        joint = self._joint(system, values)
        _, visits = self._filter(joint, times, values_there - offset, noise_there, seen, keep=True)
        mean, covariance = _smooth(visits)
        back = torch.argsort(order, -1)[:, data.times.shape[-1] :]
        mean = mean.gather(1, back.unsqueeze(-1).expand(-1, -1, mean.shape[-1]))
        covariance = covariance.gather(1, back[..., None, None].expand(-1, -1, *covariance.shape[-2:]))
        at = offset.gather(-1, back.unsqueeze(-2).expand(-1, offset.shape[-2], -1))
        outputs = joint.outputs.unsqueeze(1)
        forces = list(joint.forces)
        return Moments(
            mean[..., forces].mT,
            torch.diagonal(covariance, dim1=-2, dim2=-1)[..., forces].mT.clamp_min(0),
            at + (outputs @ mean.unsqueeze(-1)).squeeze(-1).mT,
            ((outputs @ covariance) * outputs).sum(-1).mT.clamp_min(0),
        )

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
        diffusion = torch.zeros_like(drift)
        first = torch.zeros_like(drift)
        drift[:, :num_states, :num_states] = system.A
        forces, at = [], num_states
        for i, (shape, hyper) in enumerate(zip(self.shapes, self.model.hyper(values), strict=True)):
            part = slice(at, at + SMOOTHNESS[shape])
            equation, intensity, covariance = _matern(shape, hyper["lengthscale"], hyper["variance"])
            drift[:, part, part] = equation
            drift[:, :num_states, at] = system.B[..., i]
            diffusion[:, part.stop - 1, part.stop - 1] = intensity
            first[:, part, part] = covariance
            forces.append(at)
            at = part.stop
        padding = system.C.new_zeros(batch, system.C.shape[-2], size - num_states)
        outputs = torch.cat([system.C, padding], -1)
        observed = outputs.clone()
        for p, shape in enumerate(self.errors):
            part = slice(at, at + SMOOTHNESS[shape])
            error, scale = (values[name][:, min(p, values[name].shape[-1] - 1)] for name in DRIFT)
            equation, intensity, covariance = _matern(shape, scale, error.square())
            drift[:, part, part] = equation
            diffusion[:, part.stop - 1, part.stop - 1] = intensity
            first[:, part, part] = covariance
            observed[:, p, at] = 1.0
            at = part.stop
        return _Joint(drift, _stationary(drift, diffusion), first, outputs, observed, tuple(forces))

    def _filter(
        self, joint: _Joint, times: Tensor, residual: Tensor, noise: Tensor, mask: Tensor, *, keep: bool
    ) -> tuple[Tensor, list[_Visit]]:
        """Run through times [B, T] with residuals, noise and mask [B, P, T].

        Returns the log density [B], and the visits of all times if they are to be kept.
        """
        gaps = torch.diff(times, dim=-1)
        # Few gaps differ in regular series: each is exponentiated once. In others each row has its own.
        lengths, which = torch.unique(gaps, return_inverse=True)
        if len(lengths) > gaps.shape[-1]:
            lengths, which = gaps, torch.arange(gaps.shape[-1]).expand_as(gaps)
        steps = torch.linalg.matrix_exp(joint.drift.unsqueeze(1) * lengths[..., None, None])
        stationary = joint.stationary.unsqueeze(1)
        noises = stationary - steps @ stationary @ steps.mT
        row = torch.arange(len(times))
        observed = mask.any(0).any(0).tolist()
        mean, covariance = joint.first.new_zeros(joint.first.shape[:-1]), joint.first
        log_density = joint.first.new_zeros(len(times))
        visits: list[_Visit] = []
        step: Tensor | None = None
        for t in range(times.shape[-1]):
            if t:
                step = steps[row, which[:, t - 1]]
                mean = (step @ mean.unsqueeze(-1)).squeeze(-1)
                covariance = step @ covariance @ step.mT + noises[row, which[:, t - 1]]
            visit = _Visit(step, mean, covariance, [])
            if keep:
                visits.append(visit)
            for p in range(residual.shape[-2] if observed[t] else 0):
                seen = mask[:, p, t].to(mean.dtype)
                direction = joint.observed[:, p]
                cross = (covariance @ direction.unsqueeze(-1)).squeeze(-1)
                spread = (direction * cross).sum(-1) + noise[:, p, t]
                error = residual[:, p, t] - (direction * mean).sum(-1)
                density = -0.5 * (error.square() / spread + torch.log(2 * math.pi * spread))
                log_density = log_density + seen * density
                precision = seen / spread
                gain = cross * precision.unsqueeze(-1)
                visit.updates.append((direction, gain, error, precision))
                mean = mean + gain * error.unsqueeze(-1)
                covariance = covariance - gain.unsqueeze(-1) * cross.unsqueeze(-2)
        return log_density, visits


def _matern(shape: str, lengthscale: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Drift [B, k, k], intensity of the noise in the last state [B], stationary covariance [B, k, k]."""
    size = SMOOTHNESS[shape]
    rate = math.sqrt(2 * size - 1) / lengthscale
    drift = rate.new_zeros(len(rate), size, size)
    covariance = torch.zeros_like(drift)
    for i in range(size - 1):
        drift[:, i, i + 1] = 1.0
    for i in range(size):
        drift[:, size - 1, i] = -math.comb(size, i) * rate ** (size - i)
    covariance[:, 0, 0] = variance
    if size == 1:
        return drift, 2 * variance * rate, covariance
    if size == 2:
        covariance[:, 1, 1] = variance * rate**2
        return drift, 4 * variance * rate**3, covariance
    bend = variance * rate**2 / 3
    covariance[:, 1, 1] = bend
    covariance[:, 0, 2] = covariance[:, 2, 0] = -bend
    covariance[:, 2, 2] = variance * rate**4
    return drift, 16 / 3 * variance * rate**5, covariance


def _stationary(drift: Tensor, diffusion: Tensor) -> Tensor:
    """Π with M Π + Π Mᵀ + diffusion = 0, [B, n, n]."""
    size = drift.shape[-1]
    identity = torch.eye(size, dtype=drift.dtype)
    both = torch.einsum("bij,kl->bikjl", drift, identity) + torch.einsum("ij,bkl->bikjl", identity, drift)
    flat = torch.linalg.solve(both.reshape(-1, size * size, size * size), -diffusion.flatten(-2))
    covariance: Tensor = flat.unflatten(-1, (size, size))
    return 0.5 * (covariance + covariance.mT)


def _smooth(visits: list[_Visit]) -> tuple[Tensor, Tensor]:
    """Means [B, T, n] and covariances [B, T, n, n] given all data."""
    slope, curve = torch.zeros_like(visits[0].mean), torch.zeros_like(visits[0].covariance)
    means, covariances = [], []
    for step, mean, covariance, updates in reversed(visits):
        for direction, gain, error, precision in reversed(updates):
            # Undo one scalar update: C = I − gain · directionᵀ.
            slope = slope - direction * ((gain * slope).sum(-1) + precision * error).unsqueeze(-1)
            across = curve - direction.unsqueeze(-1) * (gain.unsqueeze(-2) @ curve)
            curve = across - (across @ gain.unsqueeze(-1)) * direction.unsqueeze(-2)
            curve = curve + precision[:, None, None] * direction.unsqueeze(-1) * direction.unsqueeze(-2)
        means.append(mean - (covariance @ slope.unsqueeze(-1)).squeeze(-1))
        covariances.append(covariance - covariance @ curve @ covariance)
        if step is not None:
            slope = (step.mT @ slope.unsqueeze(-1)).squeeze(-1)
            curve = step.mT @ curve @ step
    return torch.stack(means[::-1], 1), torch.stack(covariances[::-1], 1)


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
