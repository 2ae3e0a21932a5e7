"""Results in plain words: what the data leave open, and what a status means.

Where a simulation's truth belongs in a result: by the names of outputs and parameters, never by guess.

Predictions have the mechanism's outputs in the mechanism's order; an instance has its own, perhaps fewer, in its own.

Units of a result's force and parameters, where the data name theirs and the equation says how they follow.

Priors of a model in plain words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distlfm.equations.base import BoundaryConfig
from distlfm.gp.kernels import KernelConfig
from distlfm.inference.findings.estimates import Direction, Estimate
from distlfm.inference.model import Model
from distlfm.inference.result import FitResult
from distlfm.instance import Dimension, FloatArray
from distlfm.mechanisms import Parameter
from distlfm.mechanisms.field import FieldConfig
from distlfm.mechanisms.priors import HalfNormal, LogNormal, Normal, Prior


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
    known = {one.name: true_parameter(result, one) for one in result.estimates}
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


def force_unit(result: FitResult) -> str | None:
    """Of the forces, as they are shown."""
    return _unit(result, result.posterior.model.system.force_dimension)


def parameter_units(result: FitResult) -> dict[str, str]:
    """By the names of the estimates, where they are known."""
    found = {}
    for parameter in result.posterior.model.space.parameters:
        for label in parameter.labels:
            name = f"{parameter.name}[{label}]" if len(parameter.labels) > 1 else parameter.name
            unit = _unit(result, parameter.dimension_of(label))
            if unit is not None:
                found[name] = unit
    return found


def _unit(result: FitResult, dimension: Dimension | None) -> str | None:
    told = result.instance.metadata
    return None if dimension is None else dimension.unit({name: told.get(f"{name}_unit") for name in _NAMES})


_NAMES = ("value", "time", "position")


CAUTION = "Not for clinical decisions."
WHY_DOUBT = (
    "A latent force was never measured: it is inferred through an equation that was assumed and priors that were "
    "chosen, its scale and offset may not be identified by the data, and every interval is conditional on the model: "
    "it holds only if equation and priors do, so that a wrong equation gives a wrong force with a confident band."
)
"""What every page of results says first, and why."""

MOST_GIVEN = 12
ADVICE = "Do not read their values one by one."

MEANING = {
    "converged": "The fit settled.",
    "stalled": "The fit stopped where no step helped.",
    "max_iterations": "The fit was still moving when it ran out of iterations.",
    "diverged": "The fit found no finite value.",
    "failed": "The fit could not be done.",
}
STARTS = {
    "zero": "y = 0 everywhere",
    "given": "the profile that the config gives",
    "scaled": "the profile that the config gives, times a learned number",
    "field": "nothing, the start is learned",
}


def status_words(status: str, advice: str) -> str:
    """Why a fit ended as it did, and what to do about it."""
    meaning = MEANING.get(status, "")
    return f"{meaning} {advice}".strip()


def direction_words(direction: Direction) -> str:
    """One open direction as a sentence.

    Unknowns are increasing functions of their whitened coordinates, so signs carry over to natural values.
    """
    # A spread that has grown by chance is, as far as it can be told, all of it.
    share = f"{100 * direction.spread:.0f} %" if direction.spread < 0.995 else "all"
    left = f"{share} of their prior spread remains"
    names = [name for name, _ in direction.parts]
    if not names:
        return f"A combination of many parameters, none of which leads, is open: {left}."
    if len(names) == 1:
        return f"{names[0]} is hardly informed by the data: {left.replace('their', 'its')}."
    first = direction.parts[0][1]
    together = [name for name, weight in direction.parts if weight * first > 0]
    against = [name for name, weight in direction.parts if weight * first <= 0]
    if against:
        rise, fall = _listed(together), _listed(against)
        verb = "rises" if len(together) == 1 else "rise together"
        other = "falls" if len(against) == 1 else "fall"
        moves = f"{rise} {verb} while {fall} {other}"
    else:
        moves = f"{_listed(together)} rise together"
    return f"The data hardly change if {moves}: {left}. {ADVICE}"


def directions_words(directions: Sequence[Direction]) -> str:
    """All open directions of an instance in one paragraph, with the advice once."""
    found = [direction_words(direction) for direction in directions]
    advised = [words.removesuffix(f" {ADVICE}") for words in found]
    return " ".join([*advised, ADVICE] if advised != found else found)


def given_words(parameters: Sequence[Parameter], units: Mapping[str, str] | None = None) -> str:
    """Which parameters were known beforehand, or nothing. units: by the names of elements, where they are known."""
    known = {
        f"{one.name}[{label}]" if len(one.labels) > 1 else one.name: value
        for one in parameters
        for label, value in one.fixed.items()
    }
    found = [f"{name} = {value:g} {(units or {}).get(name, '')}".rstrip() for name, value in known.items()]
    more = f" and {len(found) - MOST_GIVEN} more" if len(found) > MOST_GIVEN else ""
    return f"Given, not inferred: {', '.join(found[:MOST_GIVEN])}{more}." if found else ""


def assumed_words(options: FieldConfig) -> str:
    """What was taken for true at the boundary and the start of a field; where that is wrong, the force is too."""
    held = [f"{_condition(one)} ({name})" for name, one in options.boundary.items()]
    if not held:
        held = ["no flux anywhere"]
    elif "all" not in options.boundary and not (options.num_dims == 1 and {"left", "right"} <= {*options.boundary}):
        held.append("no flux elsewhere")
    when = "the first observed time" if options.start is None else f"time {options.start:g}"
    return f"Assumed at the boundary: {'; '.join(held)}. Assumed at {when}: {STARTS[options.initial.kind]}."


def _condition(one: BoundaryConfig) -> str:
    if one.kind == "dirichlet":
        return f"y = {one.value:g}"
    if one.kind == "robin":
        return f"a flux into the domain of {one.rate:g} · ({one.value:g} − y)"
    return f"a flux into the domain of {one.value:g}" if one.value else "no flux"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def prior_words(model: Model) -> list[str]:
    """A sentence each on the priors of the mechanism's parameters, of the forces, and of the noise."""
    kinds = {kind: [one for one in model.space.parameters if one.kind == kind] for kind in ("kernel", "noise")}
    own = [one for one in model.space.parameters if one.kind not in kinds]
    first = f"{model.system.force_names[0]}."  # what is said of one force holds for all
    kernel = [_parameter(one, one.name.removeprefix(first)) for one in kinds["kernel"] if one.name.startswith(first)]
    found = [f"Parameters: {_listed_priors([_parameter(one, one.name) for one in own])}."] if own else []
    found.append(
        f"{', '.join(model.system.force_names)}: {kernel_words(model.force.kernel)}; {_listed_priors(kernel)}."
    )
    noise = [_parameter(one, one.name.replace("_", " ")) for one in kinds["noise"]]
    return [*found, f"Noise: {_listed_priors(model.likelihood.words(noise))}."]


def kernel_words(kernel: KernelConfig) -> str:
    """Which kernel it is."""
    if kernel.parts:
        return f"the {kernel.kind} of {' and '.join(f'({kernel_words(part)})' for part in kernel.parts)}"
    seen = "" if kernel.dims is None else f" of the inputs {', '.join(map(str, kernel.dims))}"
    return f"{kernel.kind} kernel{seen}"


def _parameter(one: Parameter, name: str) -> str:
    known = [f"{name}[{key}] = {x:g}" if len(one.labels) > 1 else f"{name} = {x:g}" for key, x in one.fixed.items()]
    return _listed_priors([*([f"{name} {_prior(one.prior)}"] if one.free else []), *known])


def _prior(prior: Prior) -> str:
    if isinstance(prior, LogNormal):
        return f"lognormal (median {prior.median:g}, spread {prior.spread:g})"
    if isinstance(prior, Normal):
        return f"normal (mean {prior.mean:g}, sd {prior.sd:g})"
    if isinstance(prior, HalfNormal):
        return f"halfnormal (scale {prior.scale:g})"
    return f"uniform ({prior.low:g} to {prior.high:g})"


def _listed_priors(words: Sequence[str]) -> str:
    return ", ".join(words)
