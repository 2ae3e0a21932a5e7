"""What is refused of a fit before anything is computed: methods that do not suit the model, options without effect.

All of it follows from the model and the options alone, so a config is refused when it is read, and a model made in
Python when it is fitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distlfm.errors import UsageError
from distlfm.inference.exact import check_motif
from distlfm.inference.model import Model
from distlfm.inference.posterior import PosteriorConfig
from distlfm.inference.preestimate import PreestimateConfig
from distlfm.inference.statespace import supports
from distlfm.solvers.linear import probe

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

FIELD_METHODS = ("auto", "collapsed", "laplace", "preestimate")
LINEAR_METHODS = ("collapsed", "filter", "exact")


def check_inference(model: Model, options: InferenceConfig) -> None:
    """Refuse a method that cannot fit this model, and options that would change nothing."""
    if model.is_field:
        _check_field(model, options)
    else:
        _check_linear(model, options)


def _check_linear(model: Model, options: InferenceConfig) -> None:
    """Methods that take the force as one linear map of the outputs."""
    method = options.method
    if method not in LINEAR_METHODS:
        return
    linearity = probe(model.mechanism, model.space)
    if not (linearity.affine and model.likelihood.kind == "gaussian"):
        raise UsageError(
            f"The method {method!r} needs a linear mechanism with Gaussian noise, and "
            f"{model.mechanism.options.kind!r} with the likelihood {model.likelihood.kind!r} is none.",
            "Use inference.method=nested, or auto.",
        )
    if method == "exact":
        check_motif(model)
    if method == "filter" and not supports(model, linearity):
        raise UsageError(
            "The method 'filter' needs a stable mechanism and a kernel matern12, matern32 or matern52.",
            "Use inference.method=collapsed, which takes any kernel.",
        )


def _check_field(model: Model, options: InferenceConfig) -> None:
    if options.method not in FIELD_METHODS:
        raise UsageError(
            f"Fields are not fitted by the method {options.method!r}.",
            f"Use one of {', '.join(FIELD_METHODS)} in inference.method.",
        )
    for name in ("until", "grid_points"):
        if getattr(options, name) != type(options).model_fields[name].default:
            raise UsageError(
                f"inference.{name} has no effect on a field.", "Leave it out, and ask the result for any points."
            )
    _check_preestimate(options)
    if model.likelihood.kind != "gaussian":
        raise UsageError(
            f"Fields are fitted with Gaussian noise, and the likelihood is {model.likelihood.kind!r}.",
            "Set likelihood.kind=gaussian.",
        )


def _check_preestimate(options: InferenceConfig) -> None:
    """Refuse what only curves in time have: slopes of a field are those of a Gaussian process over time and space."""
    for name, field in PreestimateConfig.model_fields.items():
        if name != "enabled" and getattr(options.preestimate, name) != field.default:
            raise UsageError(
                f"inference.preestimate.{name} has no effect on a field, whose surface is always a Gaussian process.",
                "Leave it out.",
            )
    if options.method == "preestimate" and options.posterior != PosteriorConfig():
        raise UsageError(
            "inference.posterior has no effect on a field's matched slopes, whose draws are always Laplace's.",
            "Leave it out, or use inference.method=auto.",
        )
