"""The methods that take the force as one linear map of the outputs, of which `collapsed` is that by dense matrices."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from distlfm.errors import UsageError
from distlfm.inference.base import Fit, Posterior
from distlfm.inference.collapsed import CollapsedPosterior, Starts, best_of_starts, fit_at, restore
from distlfm.inference.curvature import find_modes
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import SeriesMethod, grids, register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import Optimum
from distlfm.inference.result import FitResult, results_of
from distlfm.inference.series import fourier
from distlfm.inference.series.changing import ChangingGaussian, changing_quadrature
from distlfm.inference.series.circles import ROUGH, roughness, settle
from distlfm.inference.series.linear import MAX_NODES, MAX_SUBSTEPS, LinearGaussian, Quadrature, choose_quadrature
from distlfm.instance import Instance

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

COARSE = (
    f"Between two observations the force may change faster than {MAX_SUBSTEPS} panels of the quadrature follow: the "
    "answer is rough. Use a longer lengthscale in force.priors, or inference.method=nested."
)

CHANGING = (
    "The coefficients of the equation change in time in a way that no quadrature follows: too often or too fast, or "
    "they jump at times that depend on unknowns."
)

CHECKED = 24
"""Draws whose densities are computed again with more waves."""


class LinearMethod(SeriesMethod):
    """A method of linear mechanisms, which fills in `marginal`: the force is integrated out."""

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        del options
        if not model.integrable:
            raise UsageError(
                f"The method {cls.name!r} needs a linear mechanism with Gaussian noise, and "
                f"{model.mechanism.options.kind!r} with the likelihood {model.likelihood.options.kind!r} is none"
                f"{': its vector field reads the time' if model.linearity.timed else ''}.",
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
        """Fit B instances at once. Of several starts the one with the highest joint density is kept."""
        starts = Starts(options.restarts, options.random_start)
        marginal = self.marginal(model, observations)
        best = best_of_starts(marginal.negative, seeds, model.space.num_free, options.optimiser, starts)
        return fit_at(self.name, marginal, best, seeds, options.posterior)

    @classmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        return restore(cls.name, cls(**settings).marginal(model, observations), state)


@register_method("collapsed")
@dataclass(frozen=True)
class Collapsed(LinearMethod):
    """By waves where the force is smooth, else by dense matrices with the quadrature that an instance's times need.

    substeps, order, breaks: of the quadrature; zero where waves are tried first.
    """

    substeps: int = 0
    order: int = 0
    breaks: tuple[float, ...] = ()

    @classmethod
    def suits(cls, model: Model, instance: Instance, options: InferenceConfig) -> Collapsed:
        if model.linearity.changing:
            found = cls.through_time(model, instance, options)
            if found is None:
                raise UsageError(CHANGING, "Use inference.method=nested, or auto.")
            return found
        return cls() if fourier.supports(model) else cls.dense(model, instance)

    @classmethod
    def through_time(cls, model: Model, instance: Instance, options: InferenceConfig) -> Collapsed | None:
        """With coefficients that change in time; None where no quadrature follows them."""
        data = collate([instance.blind()], model.mechanism.outputs)
        found = changing_quadrature(model, data, options.until)
        return None if found is None else cls(**asdict(found))

    @classmethod
    def dense(cls, model: Model, instance: Instance) -> Collapsed:
        """By dense matrices, with the coarsest rule that suits an instance."""
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
        kind = ChangingGaussian if model.linearity.changing else LinearGaussian
        return kind(model, observations, model.linearity, Quadrature(self.substeps, self.order, tuple(self.breaks)))

    def fit(
        self, model: Model, instances: Sequence[Instance], options: InferenceConfig, seeds: Sequence[int]
    ) -> list[FitResult]:
        if self.order:
            return super().fit(model, instances, options, seeds)
        start = time.perf_counter()
        observations = collate([instance.blind() for instance in instances], model.mechanism.outputs)
        results: dict[int, FitResult] = {}
        found = self._by_waves(model, observations, options, seeds)
        if found is not None:
            fit, places = found
            seconds = time.perf_counter() - start
            mine, at = [instances[i] for i in places], grids(fit.posterior.observations, options)
            results = dict(zip(places, results_of(fit, mine, at, seconds), strict=True))
        others: dict[Collapsed, list[int]] = {}
        for i, instance in enumerate(instances):
            if i not in results:
                others.setdefault(self.dense(model, instance), []).append(i)
        for method, places in others.items():
            again = method.fit(model, [instances[i] for i in places], options, [seeds[i] for i in places])
            results |= dict(zip(places, again, strict=True))
        return [results[i] for i in range(len(instances))]

    def _by_waves(
        self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]
    ) -> tuple[Fit, list[int]] | None:
        """Fit the instances for which few waves are enough, and say which these are."""
        starts = Starts(options.restarts, options.random_start)

        def search(marginal: Marginal, places: Tensor, z: Tensor | None) -> Optimum:
            if z is None:
                own = [seeds[int(i)] for i in places]
                return best_of_starts(marginal.negative, own, model.space.num_free, options.optimiser, starts)
            return find_modes(marginal.negative, z, options.optimiser)

        settled = settle(model, observations, options.until, search)
        if settled is None:
            return None
        kept = settled.usable.nonzero().squeeze(-1)
        for _ in range(2):  # those whose draws leave their circle are left out
            if not len(kept):
                return None
            here = settled.rows(kept)
            data = observations.rows(here.places)
            marginal = fourier.FourierGaussian(model, data, model.linearity, here.basis(data, options.until))
            own = [seeds[int(i)] for i in here.places]
            fit = fit_at(self.name, marginal, here.best, own, options.posterior)
            assert isinstance(fit.posterior, CollapsedPosterior)
            some = fit.posterior.draws[:: max(1, len(fit.posterior.draws) // CHECKED)]
            fine = roughness(marginal, here, options.until, some) <= ROUGH
            if bool(fine.all()):
                return fit, here.places.tolist()
            kept = kept[fine]
        return None

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        fit = super().infer(model, observations, options, seeds)
        return replace(fit, doubts=(COARSE,) * len(seeds)) if self.substeps >= MAX_SUBSTEPS else fit

    @classmethod
    def settings(cls, posterior: Posterior) -> dict[str, Any]:
        assert isinstance(posterior, CollapsedPosterior)
        marginal = posterior.marginal
        return asdict(marginal.quadrature) if isinstance(marginal, LinearGaussian) else {}

    @classmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        if "circle" not in state:
            return super().restore(model, observations, settings, state)
        basis = fourier.Basis.read(state["circle"])
        return restore(cls.name, fourier.FourierGaussian(model, observations, model.linearity, basis), state)
