"""The methods that take the force as one linear map of the outputs, of which `collapsed` is that by dense matrices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from distlfm.errors import UsageError
from distlfm.inference.base import Fit, Posterior
from distlfm.inference.collapsed import CollapsedPosterior, Starts, fit_collapsed, restore
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import SeriesMethod, register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.series.linear import MAX_NODES, MAX_SUBSTEPS, LinearGaussian, Quadrature, choose_quadrature
from distlfm.instance import Instance

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

COARSE = (
    f"Between two observations the force may change faster than {MAX_SUBSTEPS} panels of the quadrature follow: the "
    "answer is rough. Use a longer lengthscale in force.priors, or inference.method=nested."
)


class LinearMethod(SeriesMethod):
    """A method of linear mechanisms, which fills in `marginal`: the force is integrated out."""

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        del options
        if not model.integrable:
            raise UsageError(
                f"The method {cls.name!r} needs a linear mechanism with Gaussian noise, and "
                f"{model.mechanism.options.kind!r} with the likelihood {model.likelihood.options.kind!r} is none.",
                "Use inference.method=nested, or auto.",
            )

    @abstractmethod
    def marginal(self, model: Model, observations: Observations) -> Marginal:
        """The density of data and unknowns without the force."""

    @classmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        nodes, num_observed = 4 * num_times, num_times * len(model.mechanism.outputs)
        return 8 * 8 * (num_observed**2 + nodes**2 + nodes * num_observed) * options.restarts

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        starts = Starts(options.restarts, options.random_start)
        marginal = self.marginal(model, observations)
        return fit_collapsed(self.name, marginal, seeds, options.optimiser, options.posterior, starts)

    @classmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        return restore(cls.name, cls(**settings).marginal(model, observations), state)


@register_method("collapsed")
@dataclass(frozen=True)
class Collapsed(LinearMethod):
    """By dense matrices, with the rule of quadrature that an instance's times need."""

    substeps: int
    order: int

    @classmethod
    def suits(cls, model: Model, instance: Instance, options: InferenceConfig) -> Collapsed:
        del options
        found = choose_quadrature(model, collate([instance.blind()], model.mechanism.outputs), model.linearity)
        nodes = found.num_nodes(len(instance.times))
        if nodes > MAX_NODES:  # dense matrices would take hours, and the whole memory
            raise UsageError(
                f"Instance {instance.id!r} has {len(instance.times)} times, and to follow the force between them takes "
                f"{nodes} nodes; dense matrices are for {MAX_NODES} at most.",
                "Use force.kernel.kind=matern52, for which there is a filter; or set force.priors.lengthscale in the "
                "unit of the times.",
            )
        return cls(**asdict(found))

    def marginal(self, model: Model, observations: Observations) -> Marginal:
        return LinearGaussian(model, observations, model.linearity, Quadrature(self.substeps, self.order))

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        fit = super().infer(model, observations, options, seeds)
        return replace(fit, notices=(COARSE,) * len(seeds)) if self.substeps >= MAX_SUBSTEPS else fit

    @classmethod
    def settings(cls, posterior: Posterior) -> dict[str, Any]:
        assert isinstance(posterior, CollapsedPosterior)
        assert isinstance(posterior.marginal, LinearGaussian)
        return asdict(posterior.marginal.quadrature)
