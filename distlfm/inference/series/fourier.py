"""Linear mechanisms with smooth forces, by a Fourier basis: a density whose cost hardly grows with the number of times.

On a circle of circumference ρ, longer than the span of the data by several lengthscales, a stationary force is a sum of
waves with independent amplitudes, f(s) = Σ_k a_k cos ω_k s + b_k sin ω_k s with ω_k = 2πk/ρ, whose variances are values
of the kernel's spectral density. A linear mechanism answers each wave by the same wave, turned and scaled, and by a
transient, so its outputs are columns times amplitudes. Products of waves over the observed times are made once; what is
left for each value of the unknowns are small matrices of as many rows as there are amplitudes.

Shapes: `A` rows, `B` instances, `P` outputs, `T` times, `Q` query times, `D` states, `L` forces, `F` frequencies with
zero among them, `J` transients an output (one where each output is a state of its own, else D), `M = 2·L·F` amplitudes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from distlfm.gp.expression import Node, Scaled, Stationary
from distlfm.gp.kernels import VARIANCE
from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.marginal import CACHED, Marginal, Moments
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.linear import LinearGaussian, choose_quadrature
from distlfm.mechanisms.priors import Values
from distlfm.solvers.linear import Linearity, LinearSystem, extract

REACH = 4.0
"""Lengthscales between the end of the data and their image on the circle, and of the highest frequency, at least."""

NEAREST = 2.5
"""Lengthscales that a time to predict at keeps from the image of the data."""

MOST_WAVES = 72
"""Frequencies of a circle, beyond which dense matrices of few data cost less."""


@dataclass(frozen=True)
class Basis:
    """Circles of B instances. origin: [B], where time starts; length: [B], around; count: [B], frequencies."""

    origin: Tensor
    length: Tensor
    count: Tensor

    @staticmethod
    def of(first: Tensor, last: Tensor, shortest: Tensor, longest: Tensor, reach: Tensor | float = REACH) -> Basis:
        """For data from `first` to `last` [B] and lengthscales from `shortest` to `longest` [B]."""
        length = last - first + reach * longest
        count = (1 + reach / shortest * length / (2 * math.pi)).ceil().clamp_max(2 * MOST_WAVES)
        return Basis(first, length, count.long())

    @staticmethod
    def read(state: Tensor) -> Basis:
        """The basis whose numbers [B, 3] these are, as `FourierGaussian.state` gives them."""
        origin, length, count = state.unbind(-1)
        return Basis(origin, length, count.long())


@dataclass(frozen=True)
class _Waves:
    """Products over the observed times of B instances, weighted by mask or given precision; `p` is one for all outputs

    whose weights are the same. cc, cs, ss: [B, p, F, F]; ones, data: [B, P, 2, F]; of data about `middle` [B, P].
    """

    cos: Tensor
    sin: Tensor
    weight: Tensor
    cc: Tensor
    cs: Tensor
    ss: Tensor
    ones: Tensor
    data: Tensor
    middle: Tensor
    values: Tensor
    count: Tensor
    total: Tensor
    square: Tensor


@dataclass(frozen=True)
class _Answer:
    """How outputs answer unit amplitudes. real, imaginary: [A, P, L·F] of each wave; transient: [A, P, J, 2·L·F] what

    of each transient goes with it; rest: [A, P] and fall: [A, P, J] of the outputs while no force acts.
    """

    real: Tensor
    imaginary: Tensor
    transient: Tensor
    rest: Tensor
    fall: Tensor


def supports(model: Model) -> bool:
    """Whether all forces have an RBF kernel, and noise is the same at all times but for variances that are given."""
    shapes = [kernel.expression for kernel in model.kernels]
    smooth = all(
        isinstance(one, Scaled) and isinstance(one.part, Stationary) and one.part.shape == "rbf" for one in shapes
    )
    constant = model.integrable and model.linearity.affine
    if not (smooth and constant and model.likelihood.steady):
        return False
    draws = torch.randn(7, model.space.num_free, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rates = torch.linalg.eigvals(extract(model.mechanism, model.space.unpack(draws)).A)
    return bool((rates.abs() > 1e-9).all())


class FourierGaussian(Marginal):
    """The marginal likelihood and the posterior of a linear mechanism with RBF forces."""

    def __init__(self, model: Model, observations: Observations, linearity: Linearity, basis: Basis) -> None:
        super().__init__(model, observations)
        self.basis, self.linearity = basis, linearity
        number = torch.arange(int(basis.count.max()), dtype=torch.float64)
        self.frequency = 2 * math.pi * number / basis.length.unsqueeze(-1)  # [B, F]
        self.active = number < basis.count.unsqueeze(-1)
        self.since = observations.times - basis.origin.unsqueeze(-1)

    @property
    def size(self) -> int:
        """M."""
        return 2 * len(self.model.kernels) * self.frequency.shape[-1]

    @property
    def rows_at_once(self) -> int:
        return max(16, CACHED // (8 * 4 * self.size**2))

    def log_joint(self, z: Tensor, rows: Tensor) -> Tensor:
        order = self.basis.count[rows].argsort(stable=True)  # rows of few waves do not pay for those of many
        found: Tensor = super().log_joint(z[order], rows[order])[order.argsort()]
        return found

    def _own_waves(self, rows: Tensor) -> Tensor:
        """Frequencies [A, F] of the instances `rows`, no more than one of them needs."""
        return self.frequency[rows, : int(self.basis.count[rows].max())]

    def row_bytes(self, num_query: int) -> int:
        return 8 * self.size * (4 * num_query * (1 + len(self.model.mechanism.outputs)) + 4 * self.size)

    def state(self) -> dict[str, Tensor]:
        return {"circle": torch.stack([self.basis.origin, self.basis.length, self.basis.count.double()], -1)}

    @cached_property
    def waves(self) -> _Waves:
        data = self.observations
        phase = self.since.unsqueeze(-1) * self.frequency.unsqueeze(1)  # [B, T, F]
        cos, sin = phase.cos(), phase.sin()
        weight = data.mask.double() / self.model.likelihood.data_variance(data)
        count = weight.sum(-1)
        middle = (weight * data.values).sum(-1) / count.clamp_min(1e-300)
        values = data.values - middle.unsqueeze(-1)
        shared = weight[:, :1] if bool((weight == weight[:, :1]).all()) else weight

        def product(left: Tensor, right: Tensor) -> Tensor:
            found: Tensor = torch.einsum("bti,bpt,btj->bpij", left, shared, right)
            return found

        def against(what: Tensor) -> Tensor:
            return torch.stack([what @ cos, what @ sin], 2)

        seen = weight * values
        return _Waves(
            *(cos, sin, weight, product(cos, cos), product(cos, sin), product(sin, sin)),
            *(against(weight), against(seen), middle, values, count, seen.sum(-1), (seen * values).sum(-1)),
        )

    def _roots(self, values: Values, rows: Tensor) -> Tensor:
        """Deviations [A, L, F] of amplitudes."""
        found, frequency, spacing = [], self._own_waves(rows), 2 * math.pi / self.basis.length[rows]
        active = self.active[rows, : frequency.shape[-1]]
        for kernel, hyper in zip(self.model.kernels, self.model.hyper(values), strict=True):
            scale = hyper[_part(kernel.expression).lengthscale.name].reshape(len(rows))
            size = hyper[VARIANCE].reshape(len(rows)) * scale * spacing * math.sqrt(2 / math.pi)
            decay = torch.exp(-0.25 * (scale.unsqueeze(-1) * frequency).square())
            found.append(size.sqrt().unsqueeze(-1) * decay * active)
        roots = torch.stack(found, 1)
        # The constant has one amplitude in place of two, of half the variance.
        return torch.cat([roots[..., :1] * math.sqrt(0.5), roots[..., 1:]], -1)

    def _answer(self, system: LinearSystem, roots: Tensor, rows: Tensor) -> _Answer:
        frequency = self._own_waves(rows).unsqueeze(1)  # [A, 1, F]
        if self.linearity.diagonal:
            rates = torch.diagonal(system.A, dim1=-2, dim2=-1).unsqueeze(-1)  # [A, D, 1]
            scale = 1 / (rates.square() + frequency.square())
            steady = -system.c / rates.squeeze(-1)
            real, imaginary = ((part * scale).unsqueeze(2) * system.B.unsqueeze(-1) for part in (-rates, -frequency))
        else:
            one = torch.eye(system.A.shape[-1], dtype=system.A.dtype)
            turned = 1j * frequency.squeeze(1)[..., None, None] * one - system.A.unsqueeze(1)  # [A, F, D, D]
            waves = torch.linalg.solve(turned, system.B.unsqueeze(1).to(turned))  # [A, F, D, L]
            real, imaginary = waves.real.permute(0, 2, 3, 1), waves.imag.permute(0, 2, 3, 1)
            steady = -torch.linalg.solve(system.A, system.c)
        real, imaginary = ((part * roots.unsqueeze(1)).flatten(-2) for part in (real, imaginary))  # [A, D, L·F]
        leaving = -torch.cat([real, imaginary], -1)
        fall = system.start - steady
        if self._own(system):
            rest = steady + system.e
            return _Answer(real, imaginary, leaving.unsqueeze(2), rest, fall.unsqueeze(-1))
        num_outputs = system.C.shape[-2]
        transient = leaving.unsqueeze(1).expand(-1, num_outputs, -1, -1)
        rest = (system.C @ steady.unsqueeze(-1)).squeeze(-1) + system.e
        falls = fall.unsqueeze(1).expand(-1, num_outputs, -1)
        return _Answer(system.C @ real, system.C @ imaginary, transient, rest, falls)

    def _own(self, system: LinearSystem) -> bool:
        """Whether each output is a state of its own, which no other state moves."""
        if not self.linearity.diagonal or system.C.shape[-1] != system.C.shape[-2]:
            return False
        return torch.equal(system.C, torch.eye(system.C.shape[-1], dtype=system.C.dtype).expand_as(system.C))

    def _transients(self, system: LinearSystem, since: Tensor) -> Tensor:
        """What a unit of each state at the start is worth in each output at times [A, T] since then, [A, P, J, T]."""
        if self._own(system):
            rates = torch.diagonal(system.A, dim1=-2, dim2=-1).unsqueeze(-1)
            return torch.exp(rates * since.unsqueeze(1)).unsqueeze(2)
        gaps = torch.diff(since, dim=-1, prepend=torch.zeros_like(since[:, :1]))
        steps = torch.linalg.matrix_exp(system.A.unsqueeze(1) * gaps[..., None, None])
        state, found = system.C, []
        for step in steps.unbind(1):
            state = state @ step
            found.append(state)
        return torch.stack(found, -1)

    def _compared(self, z: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, LinearSystem, _Answer, Tensor]:
        """Precision [A, M, M] of the whitened amplitudes, its product [A, M] with their mean, minus twice the log

        density of the residuals while no force acts [A]; system, answer and roots [A, L, F] for what follows.
        """
        values = self.model.space.unpack(z)
        system = extract(self.model.mechanism, values)
        roots = self._roots(values, rows)
        answer = self._answer(system, roots, rows)
        waves, forces = self.waves, len(self.model.kernels)
        # The precision [A, P] of a datum of unit weight.
        each = (1 / self.model.likelihood.unit_variance(values)).expand(len(rows), len(self.model.mechanism.outputs))
        real, imaginary, leaving = answer.real, answer.imaginary, answer.transient

        few = slice(roots.shape[-1])
        cc, cs, ss = (one[rows, :, few, few].repeat(1, 1, forces, forces) for one in (waves.cc, waves.cs, waves.ss))
        pairs = ((real, real), (real, imaginary), (imaginary, imaginary))
        if cc.shape[1] == 1:
            rr, ri, ii = (((one * each.unsqueeze(-1)).mT @ other).unsqueeze(1) for one, other in pairs)
        else:
            weighed = each[..., None, None]
            rr, ri, ii = (weighed * one.unsqueeze(-1) * other.unsqueeze(-2) for one, other in pairs)
        both = ri * cs
        first = (rr * cc - both - both.mT + ii * ss).sum(1)
        both = ri.mT * cs
        last = (ii * cc + both + both.mT + rr * ss).sum(1)
        mixed = (ri * cc + rr * cs - ii * cs.mT - ri.mT * ss).sum(1)
        gram = torch.cat([torch.cat([first, mixed], -1), torch.cat([mixed.mT, last], -1)], -2)

        fading = self._transients(system, self.since[rows])  # [A, P, J, T]
        weighted = fading * waves.weight[rows].unsqueeze(2)
        cos, sin = (weighted @ one[rows, :, few].unsqueeze(1) for one in (waves.cos, waves.sin))  # [A, P, J, F]
        cos, sin = cos.repeat(1, 1, 1, forces), sin.repeat(1, 1, 1, forces)
        among = weighted @ fading.mT  # [A, P, J, J]
        met = _turn(real.unsqueeze(2), imaginary.unsqueeze(2), cos, sin) + 0.5 * among @ leaving
        joined = ((met * each[..., None, None]).flatten(1, 2)).mT @ leaving.flatten(1, 2)
        precision = gram + joined + joined.mT + torch.eye(gram.shape[-1], dtype=z.dtype)

        offset = answer.rest - waves.middle[rows]
        alone = waves.data[rows, ..., few] - offset[..., None, None] * waves.ones[rows, ..., few]  # [A, P, 2, F]
        fall = answer.fall
        fallen_waves = torch.stack([(fall.unsqueeze(-1) * one).sum(2) for one in (cos, sin)], 2)
        alone = alone.repeat(1, 1, 1, forces) - fallen_waves
        data = (weighted @ waves.values[rows].unsqueeze(-1)).squeeze(-1)  # [A, P, J]
        ones = weighted.sum(-1)
        fallen = (among @ fall.unsqueeze(-1)).squeeze(-1)
        gone = data - offset.unsqueeze(-1) * ones - fallen
        pull = _turn(real, imaginary, alone[:, :, 0], alone[:, :, 1]) + (gone.unsqueeze(2) @ leaving).squeeze(2)
        pull = (pull * each.unsqueeze(-1)).sum(1)
        square = waves.square[rows] - 2 * offset * waves.total[rows] + offset.square() * waves.count[rows]
        square = square + (fall * (fallen - 2 * data + 2 * offset.unsqueeze(-1) * ones)).sum(-1)
        return precision, pull, (square * each).sum(-1), system, answer, roots

    def log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        precision, pull, square, *_ = self._compared(z, rows)
        mask, values = self.observations.mask[rows], self.model.space.unpack(z)
        factor, info = torch.linalg.cholesky_ex(precision)
        half = torch.linalg.solve_triangular(factor, pull.unsqueeze(-1), upper=False).squeeze(-1)
        volume = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
        noise = self.model.noise_variance(values, self.observations.rows(rows))
        scatter = torch.where(mask, noise.log(), 0.0).sum((-2, -1))
        density = -0.5 * (square - half.square().sum(-1) + scatter) - volume
        density = density - 0.5 * mask.sum((-2, -1)) * math.log(2 * math.pi)
        return torch.where((info == 0) & torch.isfinite(density), density, -torch.inf)

    def _columns(self, system: LinearSystem, answer: _Answer, rows: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Offset [A, P, Q] and columns [A, P, Q, M] of the outputs at times [A, Q]."""
        since = query - self.basis.origin[rows].unsqueeze(-1)
        phase = since.unsqueeze(-1) * self._own_waves(rows).unsqueeze(1)
        cos, sin = (one.repeat(1, 1, len(self.model.kernels)).unsqueeze(1) for one in (phase.cos(), phase.sin()))
        fading = self._transients(system, since)  # [A, P, J, Q]
        steady = _turn(answer.real.unsqueeze(2), answer.imaginary.unsqueeze(2), cos, sin)
        offset = answer.rest.unsqueeze(-1) + (fading * answer.fall.unsqueeze(-1)).sum(2)
        return offset, steady + fading.mT @ answer.transient

    def _waves_of(self, roots: Tensor, rows: Tensor, query: Tensor) -> Tensor:
        """Force of unit amplitudes, [A, L, Q, M]."""
        phase = (query - self.basis.origin[rows].unsqueeze(-1)).unsqueeze(-1) * self._own_waves(rows).unsqueeze(1)
        num_forces, num_waves = roots.shape[1:]
        found = roots.new_zeros(len(rows), num_forces, query.shape[-1], 2, num_forces, num_waves)
        for i in range(num_forces):
            for part, wave in enumerate((phase.cos(), phase.sin())):
                found[:, i, :, part, i] = wave * roots[:, i].unsqueeze(1)
        return found.flatten(-3)

    def _beyond(self, z: Tensor, rows: Tensor, query: Tensor) -> LinearGaussian | None:
        """What answers at times [A, Q] that are too near to the next image of the data; None where none are."""
        left = self.basis.length[rows] - (query.amax(-1) - self.basis.origin[rows])
        if bool((left >= NEAREST * _longest(self.model, z)).all()):
            return None
        rule = choose_quadrature(self.model, self.observations.rows(rows.unique()), self.linearity)
        return LinearGaussian(self.model, self.observations, self.linearity, rule)

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        beyond = self._beyond(z, rows, query)
        if beyond is not None:
            return beyond.posterior(z, rows, query)
        precision, pull, _, system, answer, roots = self._compared(z, rows)
        factor = torch.linalg.cholesky_ex(precision).L
        mean = torch.cholesky_solve(pull.unsqueeze(-1), factor)
        offset, columns = self._columns(system, answer, rows, query)
        force = self._waves_of(roots, rows, query)

        def moments(linear: Tensor) -> tuple[Tensor, Tensor]:
            whole = linear.flatten(1, 2)
            spread = torch.linalg.solve_triangular(factor, whole.mT, upper=False).square().sum(-2)
            return (whole @ mean).reshape(linear.shape[:3]), spread.reshape(linear.shape[:3])

        output_mean, output_var = moments(columns)
        force_mean, force_var = moments(force)
        return Moments(force_mean, force_var, offset + output_mean, output_var)

    def innovations(self, z: Tensor, rows: Tensor) -> Tensor:
        data, values = self.observations.rows(rows), self.model.space.unpack(z)
        system = extract(self.model.mechanism, values)
        answer = self._answer(system, self._roots(values, rows), rows)
        offset, columns = self._columns(system, answer, rows, data.times)
        each = torch.where(data.mask, self.model.noise_variance(values, data), 1.0).flatten(-2)
        columns, residual = (columns * data.mask.unsqueeze(-1)).flatten(1, 2), (data.values - offset) * data.mask
        factor, _ = safe_cholesky(columns @ columns.mT + torch.diag_embed(each))
        white: Tensor = torch.linalg.solve_triangular(factor, residual.flatten(1).unsqueeze(-1), upper=False)
        return white.reshape(residual.shape)

    def draw(self, z: Tensor, rows: Tensor, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One joint draw given z [A, n] at times `query` [A, Q]: forces [A, L, Q] and outputs [A, P, Q]."""
        beyond = self._beyond(z, rows, query)
        if beyond is not None:
            return beyond.draw(z, rows, query, generator)
        precision, pull, _, system, answer, roots = self._compared(z, rows)
        factor = torch.linalg.cholesky_ex(precision).L
        mean = torch.cholesky_solve(pull.unsqueeze(-1), factor)
        noise = torch.randn(*pull.shape, 1, generator=generator, dtype=z.dtype)
        amplitudes = mean + torch.linalg.solve_triangular(factor.mT, noise, upper=True)
        offset, columns = self._columns(system, answer, rows, query)
        force = (self._waves_of(roots, rows, query) @ amplitudes.unsqueeze(1)).squeeze(-1)
        return force, offset + (columns @ amplitudes.unsqueeze(1)).squeeze(-1)


def _turn(real: Tensor, imaginary: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Products with both waves of each frequency, [..., 2·F], as a mechanism turns and scales them."""
    return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], -1)


def lengthscales(model: Model, z: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """The shortest and the longest [B] of all forces' lengthscales between z − around and z + around [B, n]."""
    found = []
    for place in (z - around, z + around):
        hyper = model.hyper(model.space.unpack(place))
        names = [_part(kernel.expression).lengthscale.name for kernel in model.kernels]
        found.append(torch.stack([one[name].reshape(len(z)) for name, one in zip(names, hyper, strict=True)]))
    return found[0].amin(0), found[1].amax(0)


def _longest(model: Model, z: Tensor) -> Tensor:
    return lengthscales(model, z, torch.zeros_like(z))[1]


def _part(expression: Node) -> Stationary:
    assert isinstance(expression, Scaled)
    assert isinstance(expression.part, Stationary)
    return expression.part
