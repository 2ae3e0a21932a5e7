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
from distlfm.instance import Dimension, FloatArray, Instance
from distlfm.mechanisms import Parameter
from distlfm.mechanisms.field import FieldConfig
from distlfm.mechanisms.priors import Prior, Uniform


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
    """Times and values of a force, where known, for as many forces as the fit has."""
    truth = result.instance.truth
    alike = truth is not None and truth.force is not None and len(truth.force) == len(result.force_names)
    return true_curve(result.instance, index) if alike else None


def true_curve(instance: Instance, force: int) -> tuple[FloatArray, FloatArray] | None:
    """Times and values of a true force of an instance, where known."""
    truth = instance.truth
    if truth is None or truth.force is None or force >= len(truth.force):
        return None
    return truth.times, truth.force[force]


def true_parameters(result: FitResult) -> dict[str, float]:
    """The true values of parameters by the names of their estimates, where known."""
    known = {one.name: _true_parameter(result, one) for one in result.estimates}
    return {name: value for name, value in known.items() if value is not None}


def _true_parameter(result: FitResult, estimate: Estimate) -> float | None:
    truth = result.instance.truth
    if truth is None or estimate.parameter not in truth.parameters:
        return None
    values = np.atleast_1d(np.asarray(truth.parameters[estimate.parameter], dtype=np.float64))
    labels = result.posterior.model.space[estimate.parameter].labels
    if not estimate.label:
        return float(values[0]) if len(values) == 1 else None
    if estimate.label in result.instance.outputs:
        labels = result.instance.outputs
    if len(values) != len(labels) or estimate.label not in labels:
        return None
    return float(values[labels.index(estimate.label)])


def force_unit(result: FitResult) -> str | None:
    """Return the unit of the forces, as they are shown."""
    return _unit(result, result.posterior.model.system.force_dimension)


def parameter_units(result: FitResult) -> dict[str, str]:
    """By the names of the estimates, where they are known."""
    units = {
        _element(one, label, one.name): _unit(result, one.dimension_of(label))
        for one in result.posterior.model.space.parameters
        for label in one.labels
    }
    return {name: unit for name, unit in units.items() if unit is not None}


def _element(parameter: Parameter, label: str, name: str) -> str:
    """What an element of a parameter is called, where the parameter itself is called by a name."""
    return f"{name}[{label}]" if len(parameter.labels) > 1 else name


def _unit(result: FitResult, dimension: Dimension | None) -> str | None:
    known = {name: result.instance.metadata.get(f"{name}_unit") for name in ("value", "time", "position")}
    return None if dimension is None else dimension.unit(known)


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
    "unreliable": "The fit settled, and its answer failed a check.",
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
    sentences = [direction_words(direction) for direction in directions]
    advised = [words.removesuffix(f" {ADVICE}") for words in sentences]
    return " ".join([*advised, ADVICE] if advised != sentences else sentences)


def given_words(parameters: Sequence[Parameter], units: Mapping[str, str] | None = None) -> str:
    """Which parameters were known beforehand, or nothing. units: by the names of elements, where they are known."""
    known = {_element(one, label, one.name): x for one in parameters for label, x in one.fixed.items()}
    known_values = [f"{name} = {value:g} {(units or {}).get(name, '')}".rstrip() for name, value in known.items()]
    more = f" and {len(known_values) - MOST_GIVEN} more" if len(known_values) > MOST_GIVEN else ""
    return f"Given, not inferred: {', '.join(known_values[:MOST_GIVEN])}{more}." if known_values else ""


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
    sentences = [f"Parameters: {', '.join(_parameter(one, one.name) for one in own)}."] if own else []
    sentences.append(f"{', '.join(model.system.force_names)}: {kernel_words(model.force.kernel)}; {', '.join(kernel)}.")
    noise = [_parameter(one, one.name.replace("_", " ")) for one in kinds["noise"]]
    return [*sentences, f"Noise: {', '.join(model.likelihood.words(noise))}."]


def kernel_words(kernel: KernelConfig) -> str:
    """Which kernel it is."""
    if kernel.parts:
        return f"the {kernel.kind} of {' and '.join(f'({kernel_words(part)})' for part in kernel.parts)}"
    seen = "" if kernel.dims is None else f" of the inputs {', '.join(map(str, kernel.dims))}"
    return f"{kernel.kind} kernel{seen}"


def _parameter(one: Parameter, name: str) -> str:
    known = [f"{_element(one, label, name)} = {x:g}" for label, x in one.fixed.items()]
    return ", ".join([*([f"{name} {_prior(one.prior)}"] if one.free else []), *known])


def _prior(prior: Prior) -> str:
    if isinstance(prior, Uniform):
        return f"uniform ({prior.low:g} to {prior.high:g})"
    numbers = prior.model_dump(exclude={"kind"})
    return f"{prior.kind} ({', '.join(f'{name} {value:g}' for name, value in numbers.items())})"
