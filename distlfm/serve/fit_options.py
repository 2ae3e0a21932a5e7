"""With which equation, priors and noise a full fit is made, so that it answers the same question as the operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import build, load
from distlfm.errors import DistlfmError, UsageError
from distlfm.inference.model import LikelihoodConfig, Model
from distlfm.instance import Instance
from distlfm.lfo import Operator
from distlfm.lfo.learned_priors import Priors, learned_priors
from distlfm.mechanisms import build_system
from distlfm.pipeline.plugins import located
from distlfm.pipeline.settings import DataConfig, FitConfig, RunConfig
from distlfm.report.prior_words import prior_words

LEARNED = "the operator's equation and the priors of the data that it learned from"
EQUATION = "the operator's equation and its parameters' priors"
UNKNOWN = (
    "The operator does not say which priors of force and noise its training data had: the fit has default ones, and "
    "both may part because of that. Start with --fit CONFIG to give the right ones, or train again, which keeps them."
)
UNTOLD = "The operator does not say whether its training data had these priors."
OTHERS = "The operator's training data had other priors than the fit: both may part because of that."
SEVERAL = "The operator learned from data of {} different priors. The fit has those of the first."
PARTLY = "Some of the operator's training data do not say their priors. The fit has those of the others."
NOISELESS = "The operator's training data had no noise at all. The fit learns one."
NO_VARIANCES = "The operator's training data came with variances of their noise, and these do not: the fit learns one."


@dataclass(frozen=True)
class FitOptions:
    """config: of a fit. how: where it is from, in words. told: sentences on its priors. noise: its known deviation.

    given: whether a config was given, of which nothing is changed.
    """

    config: FitConfig
    how: str
    told: tuple[str, ...]
    noise: float | None = None
    given: bool = False

    def suited(self, instance: Instance) -> tuple[Instance, FitOptions]:
        """An instance as it is fitted, and the options for it."""
        likelihood = self.config.likelihood
        if self.noise is not None:
            return replace(instance, variance=np.full_like(instance.values, self.noise**2)), self
        if self.given or likelihood.noise == "learned" or instance.variance is not None:
            return instance, self
        config = _with_likelihood(self.config, likelihood.model_copy(update={"noise": "learned"}))
        told = (NO_VARIANCES, *_words(config, instance.outputs))
        return instance, replace(self, config=config, told=told)


def fit_options(path: Path | None, operator: Operator, plugins: Sequence[str] = ()) -> FitOptions | str:
    """How fits for comparison are made: as a file says, or with what the operator learned; or why there can be none.

    plugins: modules with the operator's equation, which the process of a fit imports too.
    """
    try:
        own: FitOptions | str = _of_operator(operator, plugins)
    except DistlfmError as error:
        own = f"No fit can be made from the operator alone ({error}) Start again with --fit CONFIG."
    return own if path is None else _of_file(path, operator, own, plugins)


def _of_operator(operator: Operator, plugins: Sequence[str]) -> FitOptions | str:
    schema, learned = operator.schema, learned_priors(operator)
    if schema.mechanism.get("kind") is None:
        return "The operator does not say which equation it learned: start again with --fit CONFIG."
    content: dict[str, Any] = {"plugins": list(located(plugins)), "mechanism": dict(schema.mechanism)}
    known = [one for one in learned if one]
    if not known:
        config = build(FitConfig, content, source="the operator's mechanism")
        return FitOptions(config, EQUATION, (UNKNOWN, *_words(config, schema.outputs)))
    content |= {name: known[0].get(name, {}) for name in ("force", "likelihood")}
    config = build(FitConfig, content, source="what the operator learned from")
    told = [SEVERAL.format(len(known))] if len(known) > 1 else []
    told += [PARTLY] if len(known) < len(learned) else []
    noise = _stated_noise(known[0])
    if noise == 0:
        told.append(NOISELESS)
    if not noise:
        return FitOptions(config, LEARNED, (*told, *_words(config, schema.outputs)))
    config = _with_likelihood(config, LikelihoodConfig(noise="given"))
    words = _words(config, schema.outputs)
    return FitOptions(config, LEARNED, (*told, *words[:-1], f"Noise: standard deviation {noise:g}, known."), noise)


def _of_file(path: Path, operator: Operator, own: FitOptions | str, plugins: Sequence[str]) -> FitOptions:
    config, kind = load(FitConfig, path), operator.schema.mechanism.get("kind")
    if kind is not None and config.mechanism["kind"] != kind:
        raise UsageError(
            f"{path} is of the mechanism {config.mechanism['kind']!r}, and the operator of {kind!r}.",
            "Give the config of a fit of the same equation.",
        )
    run = RunConfig(seed=config.run.seed, threads=config.run.threads)
    named = tuple(dict.fromkeys((*located(plugins), *located(config.plugins))))
    config = config.model_copy(update={"data": DataConfig(), "run": run, "plugins": named})
    words = _words(config, operator.schema.outputs)
    first: tuple[str, ...] = (UNTOLD,)
    if isinstance(own, FitOptions) and own.how == LEARNED:
        first = () if own.told[-len(words) :] == words else (OTHERS,)
    return FitOptions(config, f"the settings of {path.name}", (*first, *words), given=True)


def _stated_noise(priors: Priors) -> float | None:
    noise = priors.get("noise")
    return float(noise) if isinstance(noise, int | float) and noise >= 0 else None


def _with_likelihood(config: FitConfig, likelihood: LikelihoodConfig) -> FitConfig:
    return config.model_copy(update={"likelihood": likelihood})


def _words(config: FitConfig, outputs: Sequence[str]) -> tuple[str, ...]:
    """The priors that a fit of these outputs has; nothing if that cannot be made, which the fit then says."""
    try:
        return tuple(prior_words(Model(build_system(config.mechanism, outputs), config.force, config.likelihood)))
    except DistlfmError:
        return ()
