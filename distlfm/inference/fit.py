"""Fit a batch of instances with the method that suits the model, or is asked for.

What a method refuses follows from the model and the options alone, so a config is refused when it is read, and a model
made in Python when it is fitted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

from pydantic import Field, model_validator

from distlfm.config import Config
from distlfm.config.keys import OneOf
from distlfm.errors import UsageError
from distlfm.inference.field.fit import CollapsedFields, is_recorded
from distlfm.inference.field.laplace import Laplace
from distlfm.inference.field.method import FieldMethod
from distlfm.inference.field.settings import FieldOptions, FieldSettings, open_field
from distlfm.inference.findings.trust import checked
from distlfm.inference.method import FIELDS, SERIES, Method, register_method
from distlfm.inference.model import Model
from distlfm.inference.optimise import OptimiserConfig
from distlfm.inference.posterior import PosteriorConfig
from distlfm.inference.result import FitResult
from distlfm.inference.series.collapsed import Collapsed
from distlfm.inference.series.exact import Exact
from distlfm.inference.series.joint.method import Joint, JointConfig
from distlfm.inference.series.nested import Nested
from distlfm.inference.series.preestimate import Preestimate, PreestimateConfig
from distlfm.inference.series.reference.method import Reference
from distlfm.inference.series.reference.nuts import ReferenceConfig
from distlfm.inference.series.statespace import LONG, Filter, supports
from distlfm.inference.series.variational.method import Variational, VariationalConfig
from distlfm.instance import Instance

GRID_POINTS = 100
SHIPPED: tuple[type[Method], ...] = (
    *(Collapsed, Filter, Exact, Joint, Nested),
    *(Variational, Preestimate, Reference, Laplace),
)
"""In the order in which they are listed, after `auto`."""


class InferenceConfig(Config):
    """How a fit is done.

    method: `auto` probes the mechanism and takes `collapsed` where it is linear (`filter` for long series with a Matérn
    kernel) and `nested` elsewhere, which goes through the solver with the force summed out; `joint` samples force and
    parameters together there, by chains that are quicker and do not mix everywhere;
    `variational` maximises the ELBO of a structured q and corrects it by importance, mixing its `restarts` by their
    evidence; `exact` is the analytic covariance of the single-input motif; `preestimate` is quick, and solves no
    equation. Solver, inducing points and features of `nested` are set in `variational`, and the steps of `joint` in
    `variational.solver`. Fields of a linear equation are `collapsed` too; those of others are linearised at their mode,
    which is `laplace`. `reference` takes minutes for an instance: long chains of the sampler NUTS, with which other
    methods are compared; its extra is `reference`.
    restarts: starts of the optimiser, of which the best by the joint density is kept (all are mixed by `variational`);
    the first is the prior's middle, unless `random_start`.
    field: of partial differential equations; `settled` is what a fleet's instances share, and is filled in.
    until: force and outputs are predicted up to this time; by default to the last observation.
    """

    method: Annotated[str, OneOf((SERIES, FIELDS), ("auto", *(one.name for one in SHIPPED)))] = "auto"
    restarts: int = Field(default=1, ge=1)
    random_start: bool = False
    optimiser: OptimiserConfig = OptimiserConfig()
    posterior: PosteriorConfig = PosteriorConfig()
    preestimate: PreestimateConfig = PreestimateConfig()
    reference: ReferenceConfig = ReferenceConfig()
    variational: VariationalConfig = VariationalConfig()
    joint: JointConfig = JointConfig()
    field: FieldOptions = FieldOptions()
    settled: FieldSettings | None = None
    grid_points: int = Field(default=GRID_POINTS, ge=2)
    until: float | None = None

    @model_validator(mode="after")
    def _used(self) -> InferenceConfig:
        if self.method == "variational" and self.posterior.draws != PosteriorConfig().draws:
            raise ValueError("posterior.draws has no effect with method variational; set variational.draws instead")
        if self.method == "reference" and self.posterior != PosteriorConfig():
            raise ValueError(
                "posterior has no effect with method reference, whose draws are set in its own section; leave it out, "
                "or use method nested"
            )
        if self.method != "variational" and self.variational.learn_inducing:
            raise ValueError("variational.learn_inducing needs method variational; set it, or leave the other out")
        if self.variational.learn_inducing and self.variational.gradient == "natural":
            raise ValueError("learn_inducing needs gradient adam: natural gradients move q alone; set one of the two")
        return self


def seed_of(seed: int, instance: str) -> int:
    """An instance's own seed: the same whatever its neighbours and its place."""
    digest = hashlib.sha256(f"{seed}:{instance}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def method_of(model: Model, name: str) -> type[Method]:
    """The method of that name for series or for fields, as the model is."""
    what, known = ("Fields", FIELDS) if model.is_field else ("Series", SERIES)
    if name not in known and name in {**SERIES, **FIELDS}:
        raise UsageError(
            f"{what} are not fitted by the method {name!r}.",
            f"Use one of {', '.join(sorted(known))} in inference.method.",
        )
    return known.find(name)


def check_inference(model: Model, options: InferenceConfig) -> None:
    """Refuse a method that cannot fit this model, and options that would change nothing."""
    method_of(model, options.method).check(model, options)


def fit_instances(
    model: Model, instances: Sequence[Instance], options: InferenceConfig, seed: int = 0
) -> list[FitResult]:
    """Fit instances in one batch. The truth that an instance may carry is not looked at.

    Each instance gets the method that suits it, so that its answer does not depend on its neighbours.
    """
    check_inference(model, options)
    for instance in instances:
        model.likelihood.check(instance)
    asked = method_of(model, options.method)
    options = asked.settled(model, instances, options)
    ways: dict[bytes, Method] = {}
    for instance in instances:
        key = instance.times.tobytes()
        if key not in ways:
            ways[key] = asked.suits(model, instance, options)
    chosen = [ways[instance.times.tobytes()] for instance in instances]
    results: dict[int, FitResult] = {}
    for method in dict.fromkeys(chosen):
        places = [i for i, one in enumerate(chosen) if one == method]
        group = [instances[i] for i in places]
        found = method.fit(model, group, options, [seed_of(seed, instance.id) for instance in group])
        results |= dict(zip(places, map(checked, found), strict=True))
    return [results[i] for i in range(len(instances))]


def instance_bytes(model: Model, num_times: int, options: InferenceConfig) -> int:
    """About how much memory the fit of one instance takes, from which a batch's size follows."""
    return method_of(model, options.method).bytes(model, num_times, options)


class _Auto(Method):
    """Stands for others: nothing is fitted by it."""

    def fit(self, *_: Any) -> NoReturn:
        raise AssertionError("auto is settled before anything is fitted or kept")

    @classmethod
    def restore(cls, *_: Any) -> NoReturn:
        raise AssertionError("auto is settled before anything is fitted or kept")


@register_method("auto")
class AutoSeries(_Auto):
    """Where the force can be integrated out, dense matrices for short series and a filter for long ones, if there is
    one; the solver elsewhere.
    """

    @staticmethod
    def choose(model: Model, num_times: int) -> type[Method]:
        if not model.integrable:
            return Nested
        return Filter if num_times >= LONG and supports(model) else Collapsed

    @classmethod
    def suits(cls, model: Model, instance: Instance, options: InferenceConfig) -> Method:
        if model.integrable and model.linearity.changing:
            return Collapsed.through_time(model, instance, options) or Nested.suits(model, instance, options)
        return cls.choose(model, len(instance.times)).suits(model, instance, options)

    @classmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        return cls.choose(model, num_times).bytes(model, num_times, options)


@register_method("auto")
class AutoFields(_Auto, FieldMethod):
    """Linear fields with the force integrated out, others linearised."""

    @classmethod
    def suits(cls, model: Model, instance: Instance, options: InferenceConfig) -> Method:
        assert options.settled is not None
        chosen = Laplace if is_recorded(open_field(model, options.settled)) else CollapsedFields
        return chosen.suits(model, instance, options)
