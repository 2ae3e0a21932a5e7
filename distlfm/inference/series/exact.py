"""The analytic covariance of the single-input motif (Lawrence, Sanguinetti & Rattray 2007).

For ẏ_j = b_j + s_j f − d_j y_j with an RBF force, the covariances of outputs and force are known in closed form. It is
a method of its own, and the independent oracle of the quadrature. With the lengthscale λ of exp(−τ²/2λ²), l = √2 λ and
γ = d l / 2, everything is made of

    g(a, b) = e^{γ² − 2γa} [erf(a − γ) + erf(b + γ)],

written with erfcx so that nothing overflows for fast decays. Shapes: `B` instances, `P` outputs, `T`, `Q` times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.expression import Scaled, Stationary
from distlfm.inference.marginal import GaussianMarginal, Marginal, QueryPrior
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.collapsed import LinearMethod
from distlfm.inference.series.linear import LinearGaussian, choose_quadrature
from distlfm.mechanisms.priors import Values
from distlfm.mechanisms.responses import Identity
from distlfm.mechanisms.transcription import Transcription

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig


def check_motif(model: Model) -> None:
    """Refuse a model of which no closed form is known."""
    mechanism, shape = model.mechanism, model.kernels[0].expression
    rbf = isinstance(shape, Scaled) and isinstance(shape.part, Stationary) and shape.part.shape == "rbf"
    motif = isinstance(mechanism, Transcription) and isinstance(mechanism.response, Identity)
    if not (motif and len(mechanism.force_names) == 1 and rbf):
        raise UsageError(
            "The method 'exact' is for transcription with one force, identity response and an rbf kernel.",
            "Use inference.method=collapsed, which is exact for every linear mechanism and kernel.",
        )


class AnalyticMotif(GaussianMarginal):
    """Closed-form covariances of transcription with one force, identity response and RBF kernel."""

    def __init__(self, model: Model, observations: Observations) -> None:
        super().__init__(model, observations)
        check_motif(model)

    def observed_prior(self, values: Values, times: Tensor) -> tuple[Tensor, Tensor]:
        return self._offset(values, times), self._covariance(values, times, times)

    def query_prior(self, values: Values, times: Tensor, query: Tensor) -> tuple[tuple[Tensor, Tensor], QueryPrior]:
        origin = times[..., :1]
        (hyper,) = self.model.hyper(values)
        prior = QueryPrior(
            self._offset(values, query, origin),
            self._covariance(values, query, times, origin),
            torch.diagonal(self._covariance(values, query, query, origin), dim1=-2, dim2=-1),
            self._force_covariance(values, times, query).unsqueeze(1),
            self.model.kernels[0].diagonal(hyper, query.unsqueeze(-1)).unsqueeze(1),
        )
        return self.observed_prior(values, times), prior

    def draw(self, z: Tensor, rows: Tensor, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """By quadrature, whose force and outputs are drawn together."""
        linearity = self.model.linearity
        quadrature = choose_quadrature(self.model, self.observations.rows(rows), linearity)
        return LinearGaussian(self.model, self.observations, linearity, quadrature).draw(z, rows, query, generator)

    def _offset(self, values: Values, times: Tensor, origin: Tensor | None = None) -> Tensor:
        since = (times - (times[..., :1] if origin is None else origin)).unsqueeze(-2)
        rest = (values["basal"] / values["decay"]).unsqueeze(-1)
        start = self.model.mechanism.initial_state(values).unsqueeze(-1)
        return (rest + (start - rest) * torch.exp(-values["decay"].unsqueeze(-1) * since)).flatten(-2)

    def _scales(self, values: Values) -> tuple[Tensor, Tensor]:
        """The length l [B], and the size [B, P] of each output's covariance with the force."""
        (hyper,) = self.model.hyper(values)
        length = hyper["lengthscale"] * math.sqrt(2)
        scale = hyper["variance"][:, None] * values["sensitivity"] * length[:, None] * math.sqrt(math.pi) / 2
        return length, scale

    def _covariance(self, values: Values, t1: Tensor, t2: Tensor, origin: Tensor | None = None) -> Tensor:
        """[B, P·T1, P·T2]."""
        length, scale = self._scales(values)
        zero = t1[..., :1] if origin is None else origin
        size = values["decay"].shape[-1]
        a = (t1 - zero)[:, None, :, None, None]
        b = (t2 - zero)[:, None, None, None, :]
        d1 = values["decay"][:, :, None, None, None]
        d2 = values["decay"][:, None, None, :, None]
        width = length[:, None, None, None, None]
        both = _h(d2, d1, b, a, width) + _h(d1, d2, a, b, width)
        full = scale[:, :, None, None, None] * values["sensitivity"][:, None, None, :, None] * both
        return full.reshape(len(t1), size * t1.shape[-1], size * t2.shape[-1])

    def _force_covariance(self, values: Values, times: Tensor, query: Tensor) -> Tensor:
        """Covariance of the force at `query` with the outputs at `times`, [B, Q, P·T]."""
        length, scale = self._scales(values)
        width = length[:, None, None, None]
        t = (times - times[..., :1])[:, None, None, :]
        s = (query - times[..., :1])[:, :, None, None]
        gamma = values["decay"][:, None, :, None] * width / 2
        return (scale[:, None, :, None] * _g(gamma, (t - s) / width, s / width)).flatten(-2)


def _h(dk: Tensor, dj: Tensor, t1: Tensor, t2: Tensor, width: Tensor) -> Tensor:
    """h_kj(t1, t2) of the paper: the part of the covariance in which the k-th output's past is older."""
    gamma = dk * width / 2
    first = _g(gamma, (t1 - t2) / width, t2 / width)
    second = torch.exp(-dj * t2) * _g(gamma, t1 / width, torch.zeros_like(t1))
    return (first - second) / (dk + dj)


def _g(gamma: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """e^{γ² − 2γa} [erf(a − γ) + erf(b + γ)] = e^{γ² − 2γa} erfc(γ − a) − e^{−2γ(a+b) − b²} erfcx(b + γ)."""
    gap = gamma - a
    ahead = gap > 0
    scaled = torch.exp(-a.square()) * torch.special.erfcx(torch.where(ahead, gap, torch.zeros_like(gap)))
    plain_gap = torch.where(ahead, torch.zeros_like(gap), gap)
    plain_exponent = torch.where(ahead, torch.zeros_like(gap), gamma.square() - 2 * gamma * a)
    plain = torch.exp(plain_exponent) * torch.special.erfc(plain_gap)
    far = torch.exp(-2 * gamma * (a + b) - b.square()) * torch.special.erfcx(b + gamma)
    result: Tensor = torch.where(ahead, scaled, plain) - far
    return result


@register_method("exact")
class Exact(LinearMethod):
    """By the analytic covariance of the single-input motif."""

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        super().check(model, options)
        check_motif(model)

    def marginal(self, model: Model, observations: Observations) -> Marginal:
        return AnalyticMotif(model, observations)
