"""The contract of a method of inference: what it refuses, the memory it takes, its fit, and how a saved fit is read."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from distlfm.config.keys import Registry
from distlfm.inference.base import Fit, Posterior
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.result import FitResult, results_of
from distlfm.instance import Instance

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

SERIES: Registry[type[Method]] = Registry("method")
FIELDS: Registry[type[Method]] = Registry("method of fields")

Kind = TypeVar("Kind", bound="type[Method]")


def register_method(name: str) -> Callable[[Kind], Kind]:
    """Class decorator: make a method known to configs as `inference.method`, for fields if its class says so."""

    def keep(method: Kind) -> Kind:
        registry = FIELDS if getattr(method, "fields", False) else SERIES
        registry.register(name, Method)(method)
        method.name = name
        return method

    return keep


@dataclass(frozen=True)
class Method(ABC):
    """A way to fit. What differs between instances is in its fields: those with equal methods are fitted together.

    fields: whether it is for partial differential equations. together: the maximum number of instances in a
    fleet's block.
    """

    name: ClassVar[str] = ""
    fields: ClassVar[bool] = False
    together: ClassVar[int] = 128

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        """Refuse a model that it cannot fit, and options that would change nothing, by a `UsageError`."""
        del model, options

    @classmethod
    def settled(cls, model: Model, instances: Sequence[Instance], options: InferenceConfig) -> InferenceConfig:
        """Options with all that these instances share, if it is not known yet."""
        del model, instances
        return options

    @classmethod
    def suits(cls, model: Model, instance: Instance, options: InferenceConfig) -> Method:
        """The method as it suits an instance, from its times alone; raises a `UsageError` where it does not."""
        del model, instance, options
        return cls()

    @classmethod
    @abstractmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        """About how much memory the fit of one instance takes, from which a batch's size follows."""

    @abstractmethod
    def fit(
        self, model: Model, instances: Sequence[Instance], options: InferenceConfig, seeds: Sequence[int]
    ) -> list[FitResult]:
        """Fit instances, none of which changes another's answer. seeds: one for each."""

    @classmethod
    def settings(cls, posterior: Posterior) -> dict[str, Any]:
        """What `restore` needs besides the posterior's `state`, as plain data."""
        del posterior
        return {}

    @classmethod
    @abstractmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        """The posterior of one instance, from what `settings` and `state` gave."""


class SeriesMethod(Method):
    """A method for series, which fills in `infer`."""

    @abstractmethod
    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        """Fit B instances at once."""

    def fit(
        self, model: Model, instances: Sequence[Instance], options: InferenceConfig, seeds: Sequence[int]
    ) -> list[FitResult]:
        start = time.perf_counter()
        observations = collate([instance.blind() for instance in instances], model.mechanism.outputs)
        fit = self.infer(model, observations, options, seeds)
        seconds = time.perf_counter() - start
        return results_of(fit, instances, grids(observations, options), seconds)


def grids(observations: Observations, options: InferenceConfig) -> Tensor:
    """Evenly spaced times [B, Q] from each instance's first observation to its last, or to `until`."""
    first, last = observations.times[:, :1], observations.times[:, -1:]
    if options.until is not None:
        last = torch.maximum(last, torch.full_like(last, options.until))
    return first + (last - first) * torch.linspace(0, 1, options.grid_points, dtype=first.dtype)
