"""Where a simulation's truth belongs in a result: by the names of outputs and parameters, never by guess.

Predictions have the mechanism's outputs in the mechanism's order; an instance has its own, perhaps fewer, in its own.
"""

from __future__ import annotations

import numpy as np

from distlfm.inference.estimates import Estimate
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray


def output_names(result: FitResult) -> tuple[str, ...]:
    """The names of the rows of `grid.outputs`."""
    return result.posterior.observations.outputs


def instance_row(result: FitResult, output: str) -> int | None:
    """Where an output stands in the instance's own arrays, or None if the instance does not have it."""
    outputs = result.instance.outputs
    return outputs.index(output) if output in outputs else None


def true_output(result: FitResult, output: str) -> tuple[FloatArray, FloatArray] | None:
    """Times and noise-free values of an output, where known."""
    truth, row = result.instance.truth, instance_row(result, output)
    if truth is None or truth.outputs is None or row is None:
        return None
    return truth.times, truth.outputs[row]


def true_force(result: FitResult, index: int) -> tuple[FloatArray, FloatArray] | None:
    """Times and values of a force, where known."""
    truth = result.instance.truth
    if truth is None or truth.force is None or len(truth.force) != len(result.force_names):
        return None
    return truth.times, truth.force[index]


def true_parameters(result: FitResult) -> dict[str, float]:
    """The true values of parameters by the names of their estimates, where known."""
    known = {one.name: true_parameter(result, one) for one in result.parameters}
    return {name: value for name, value in known.items() if value is not None}


def true_parameter(result: FitResult, estimate: Estimate) -> float | None:
    """The true value of one element of a parameter, where known."""
    truth = result.instance.truth
    if truth is None or estimate.parameter not in truth.parameters:
        return None
    values = np.atleast_1d(np.asarray(truth.parameters[estimate.parameter], dtype=np.float64))
    names = [parameter.name for parameter in result.posterior.model.space.parameters]
    if estimate.parameter not in names:
        return None
    labels = result.posterior.model.space[estimate.parameter].labels
    if not estimate.label:
        return float(values[0]) if len(values) == 1 else None
    if estimate.label in result.instance.outputs:
        labels = result.instance.outputs
    if len(values) != len(labels) or estimate.label not in labels:
        return None
    return float(values[labels.index(estimate.label)])
