"""Whether series are so long that another kernel would be quicker by far."""

from __future__ import annotations

from distlfm.inference.fit import InferenceConfig
from distlfm.inference.model import Model
from distlfm.inference.statespace import supports
from distlfm.inference.survey import Survey
from distlfm.solvers.linear import probe

LONG_FOR_MATRICES = 400
"""Times from which a fit by dense matrices takes more than about half a minute."""


def length_notice(model: Model, found: Survey, options: InferenceConfig) -> str:
    """A sentence for the user whose series are long for dense matrices; nothing otherwise."""
    if model.is_field or found.samples < LONG_FOR_MATRICES or options.method not in ("auto", "collapsed"):
        return ""
    linearity = probe(model.mechanism, model.space)
    filtered = options.method == "auto" and supports(model, linearity)
    if filtered or not linearity.affine or model.likelihood.kind != "gaussian":
        return ""
    return (
        f"Series have up to {found.samples} times, for which matrices of that size are solved many times: this takes "
        "minutes for each. A filter takes seconds: it needs force.kernel.kind=matern52 (or matern32, matern12) and "
        "inference.method=auto."
    )
