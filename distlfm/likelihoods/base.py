"""The contract of a likelihood: its unknowns, the density of data given outputs, their variance, and draws of them.

Shapes: leading dimensions `…` are samples and instances, `P` outputs, `T` times, `K` one or `P`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import torch
from pydantic import Field, ModelWrapValidatorHandler, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from distlfm.config import Config
from distlfm.config.keys import OneOf, Registry
from distlfm.errors import UsageError
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods.drift import DRIFT, DriftConfig, correlation
from distlfm.mechanisms.priors import LogNormal, Parameter, Prior, Values

LIKELIHOODS: Registry[type[Likelihood]] = Registry("likelihood")

Numbers = Mapping[str, FloatArray]
"""Values of parameters by their names, each [K]."""

Kind = TypeVar("Kind", bound="type[Likelihood]")

BEFORE_DRIFT = frozenset({"kind", "noise", "shared", "floor", "prior", "dispersion", "relative"})
"""All keys of this section in version 0.1, which wrote every one of them into the config of a run."""


def register_likelihood(kind: str) -> Callable[[Kind], Kind]:
    """Class decorator: make a likelihood known to configs as `likelihood.kind`."""
    return LIKELIHOODS.register(kind, Likelihood)


class LikelihoodConfig(Config):
    """How data scatter around the outputs.

    noise: `learned` (one standard deviation per output), `given` (the variances that come with the data), or `both`
    (given, and a learned one on top). `shared` learns one for all outputs. Poisson and negative binomial take no noise.
    prior: of the noise; lognormal(0.1, 1), but for `glucose` around 2 mg/dL.
    floor: no measurement is believed more exactly than this, however well a curve passes through the data.
    relative: prior of a share by which noise grows with the level of the signal, on top of the rest; none by default.
    drift: an error that wanders, beside the white noise; `false` for none. Left out, it is as the equation suggests:
    `glucose` has one of about 6 mg/dL over half an hour, others have none.
    """

    kind: Annotated[str, OneOf((LIKELIHOODS,))] = "gaussian"
    noise: Literal["learned", "given", "both"] = "learned"
    shared: bool = False
    floor: float = Field(default=0.0, ge=0.0)
    prior: Prior = LogNormal(median=0.1, spread=1.0)
    dispersion: Prior = LogNormal(median=0.1, spread=1.0)
    relative: Prior | None = None
    drift: DriftConfig | Literal[False] | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, content: Any, handler: ModelWrapValidatorHandler[LikelihoodConfig]) -> LikelihoodConfig:
        """Check a section with the options of its own kind, where these are more than the common ones."""
        if isinstance(content, dict) and "drift" not in content and content.keys() >= BEFORE_DRIFT:
            content = content | {"drift": False}
        known = LIKELIHOODS.get(str(content.get("kind"))) if isinstance(content, dict) else None
        own = cls if known is None else known.Options
        return handler(content) if issubclass(cls, own) else own.model_validate(content)

    @model_serializer(mode="wrap")
    def _as_before_drift(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A whole section without a drift is written as version 0.1 wrote it, so that its runs are known again."""
        content: dict[str, Any] = handler(self)
        if content.get("drift") is False and content.keys() >= BEFORE_DRIFT:
            del content["drift"]
        return content


class Observed(Protocol):
    """Data of instances: times [B, T], values, mask, and if known their variances and the level that noise grows with,
    [B, P, T].
    """

    @property
    def times(self) -> Tensor: ...
    @property
    def values(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def variance(self) -> Tensor | None: ...
    @property
    def level(self) -> Tensor | None: ...


class Likelihood(ABC):
    """How data scatter around the outputs of an equation. A new one fills in the four abstract methods.

    gaussian: whether noise is added and normal, with a variance that no output changes; the force can then be
    integrated out. keys: where `likelihood` in a config has the prior of a parameter, if not under its own name.
    vanishing: parameters that exact data leave at nothing, however far that is from their priors.
    learns_noise: whether a standard deviation `noise` is unknown, and nothing else is known of the noise.
    takes_variances: whether variances that come with the data count. knows_noise: whether no `noise` is beside them.
    takes_level: whether noise grows with the level of the signal. steady: whether errors are normal and independent,
    each of the variance `data_variance` times `unit_variance`.
    drift: an error that wanders beside the rest, which only a Gaussian one can have.
    """

    Options: ClassVar[type[LikelihoodConfig]] = LikelihoodConfig
    gaussian: ClassVar[bool] = False
    keys: ClassVar[Mapping[str, str]] = {}
    vanishing: ClassVar[frozenset[str]] = frozenset()
    learns_noise = takes_variances = knows_noise = takes_level = steady = False
    drift: DriftConfig | None = None

    def __init__(
        self,
        options: LikelihoodConfig,
        outputs: Sequence[str],
        noise_prior: Prior | None = None,
        drift: Mapping[str, Any] | None = None,
    ) -> None:
        """noise_prior, drift: as the equation suggests them, for a config that leaves them out."""
        self.options, self.outputs = options, tuple(outputs)
        left = options.prior == LikelihoodConfig.model_fields["prior"].default
        self.prior = noise_prior if left and noise_prior is not None else options.prior
        if options.drift and not self.gaussian:
            raise UsageError(
                f"A drift is added to data with Gaussian noise, and the likelihood {options.kind!r} has another.",
                "Leave likelihood.drift out, or set likelihood.kind=gaussian.",
            )
        if self.gaussian and (options.drift or (options.drift is None and drift)):
            given = options.drift or DriftConfig()
            stated = {name: getattr(given, name) for name in given.model_fields_set}
            self.drift = given.model_copy(update={**(drift or {}), **stated})

    @property
    def labels(self) -> tuple[str, ...]:
        """The elements of a parameter that each output has of its own, or all share."""
        return ("all",) if self.options.shared else self.outputs

    def data_variance(self, data: Observed) -> Tensor:
        """What the data know of their variances, [..., P, T] or less."""
        return data.values.new_ones(())

    def unit_variance(self, values: Values) -> Tensor:
        """The unknown part of the variance, the same at all times: [..., K]."""
        raise NotImplementedError

    @abstractmethod
    def parameters(self) -> list[Parameter]:
        """The likelihood's own unknowns, of the kind `noise`."""

    @abstractmethod
    def density(self, values: Values, outputs: Tensor, data: Observed) -> Tensor:
        """Log density of each datum given outputs [..., P, T] and parameters, each [..., K]; unobserved ones too."""

    @abstractmethod
    def noise_variance(self, values: Values, data: Observed, outputs: Tensor | None = None) -> Tensor:
        """Variance of each datum, [..., P, T]. outputs: [..., P, T]; only a Gaussian one can do without them."""

    def total_variance(self, values: Values, data: Observed, outputs: Tensor | None = None) -> Tensor:
        """`noise_variance` with that of an error that wanders."""
        white = self.noise_variance(values, data, outputs)
        scales = self.drift_scales(values)
        return white + scales[0].square().unsqueeze(-1) if scales else white

    def drift_scales(self, values: Values) -> tuple[Tensor, ...]:
        """Deviation and time scale [..., K] of an error that wanders; nothing if there is none."""
        return tuple(values[name] for name in DRIFT if self.drift is not None and name in values)

    def drift_covariance(self, values: Values, data: Observed) -> Tensor | None:
        """[..., P, T, T] of an error that wanders; None if there is none."""
        scales = [one.expand(*one.shape[:-1], len(self.outputs)) for one in self.drift_scales(values)]
        if self.drift is None or not scales:
            return None
        return scales[0][..., None, None].square() * correlation(self.drift.kind, data.times, scales[1])

    def noise_factor(self, values: Values, data: Observed) -> Tensor | None:
        """Cholesky factor [..., P, T, T] of the covariance of all errors, in which what is not observed stands alone;
        None if errors are independent.
        """
        drift = self.drift_covariance(values, data)
        if drift is None:
            return None
        both = data.mask.unsqueeze(-1) & data.mask.unsqueeze(-2)
        noise = torch.where(data.mask, self.noise_variance(values, data), 1.0)
        factor: Tensor = torch.linalg.cholesky(torch.where(both, drift, 0.0) + torch.diag_embed(noise))
        return factor

    def deviation(self, values: Numbers, outputs: FloatArray, variance: FloatArray | None) -> FloatArray | None:
        """Of data around outputs [P, T], all errors together, broadcastable to [P, T]; None if they are not normal.

        values: each [K], as far as known. variance: as it comes with the data, [P, T].
        """
        del values, outputs, variance
        return None

    @abstractmethod
    def sample(self, values: Numbers, outputs: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Data [P, n] around outputs [P, n]; values: each [K]."""

    def observe(
        self, values: Numbers, outputs: FloatArray, times: FloatArray, generator: np.random.Generator
    ) -> FloatArray:
        """Data [P, n] around outputs [P, n] at times [n], with all errors that data of this kind have."""
        del times
        return self.sample(values, outputs, generator)

    def log_prob(self, values: Values, outputs: Tensor, data: Observed) -> Tensor:
        """log p(data | outputs) of each sample and instance, [...]; unobserved values count nothing."""
        each = self.density(values, outputs, data)
        return torch.where(data.mask, each, torch.zeros_like(each)).sum((-2, -1))

    def check(self, instance: Instance) -> None:
        """Refuse values that data of this kind cannot have, by a `UsageError`; here all are taken."""
        del instance

    def with_drift(self, size: Prior, time: Prior) -> LikelihoodConfig:
        """Its section of a config, with an error that wanders."""
        return self.options.model_copy(update={"drift": DriftConfig(size=size, time=time)})

    def words(self, parameters: Sequence[str]) -> list[str]:
        """What a report says of the noise. parameters: each with its prior, in words."""
        return [self.options.kind.replace("_", " "), *parameters]


def build_likelihood(
    options: LikelihoodConfig,
    outputs: Sequence[str],
    noise_prior: Prior | None = None,
    drift: Mapping[str, Any] | None = None,
) -> Likelihood:
    """Return the likelihood that a config section describes."""
    return LIKELIHOODS.find(options.kind)(options, outputs, noise_prior, drift)


def key_of(parameter: str) -> str | None:
    """Where `likelihood` in a config has a parameter's prior; None if no likelihood has such a parameter."""
    return next((one.keys[parameter] for one in LIKELIHOODS.values() if parameter in one.keys), None)


def may_vanish(parameter: str) -> bool:
    """Whether a parameter is among the `vanishing` of a likelihood."""
    return any(parameter in one.vanishing for one in LIKELIHOODS.values())
