"""Results in plain words: what the data leave open, and what a status means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlfm.equations.problem import BoundaryConfig
from distlfm.inference.estimates import Direction
from distlfm.mechanisms import Parameter
from distlfm.mechanisms.field import FieldConfig

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
