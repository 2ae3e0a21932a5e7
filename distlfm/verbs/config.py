"""`distlfm config`: every verb that has a config, and what an equation is for those who write its config.

A sheet has the equation in words, its parameters with their default priors, and its options. All of it is asked of the
equation itself and of the models that check a config. `load_any` reads a file whose verb is not known beforehand.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from distlfm.config import Config, apply_overrides, build, read_yaml
from distlfm.config.keys import Key, flow, keys_of, kind_of, parts, sections_of
from distlfm.equations import EQUATIONS
from distlfm.errors import UsageError
from distlfm.inference.model import Model
from distlfm.instance import NUMBER, Dimension
from distlfm.mechanisms import (
    FieldMechanism,
    MechanismConfig,
    Parameter,
    System,
    build_system,
    find_system,
    known_systems,
)
from distlfm.mechanisms.build import import_plugins
from distlfm.mechanisms.priors import Prior
from distlfm.runs.settings import FitConfig, GenerateConfig, SimulateConfig
from distlfm.training.settings import TrainConfig, TuneConfig

Verbs = Mapping[str, type[Config]]
VERBS: dict[str, type[Config]] = {
    "fit": FitConfig,
    "generate": GenerateConfig,
    "simulate": SimulateConfig,
    "train": TrainConfig,
    "tune": TuneConfig,
}


def load_any(path: Path, overrides: Sequence[str] = (), verbs: Verbs = VERBS) -> Config:
    """Read the config of whatever verb it names, of those that there are."""
    content = apply_overrides(read_yaml(path), overrides)
    return build(_model_of(str(content.get("verb", "fit")), verbs), content, source=str(path))


def schema_of(verb: str, verbs: Verbs = VERBS) -> dict[str, Any]:
    """JSON schema of a verb's config; the mechanism's part lists every registered mechanism."""
    schema = _model_of(verb, verbs).model_json_schema()
    if "mechanism" in schema.get("properties", {}):
        kinds = []
        for kind, mechanism in sorted(known_systems().items()):
            part = mechanism.Options.model_json_schema(ref_template=f"#/$defs/{kind}/$defs/{{model}}")
            part["properties"]["kind"] = {"const": kind}
            schema.setdefault("$defs", {})[kind] = part
            kinds.append({"$ref": f"#/$defs/{kind}"})
        schema["properties"]["mechanism"] = {"anyOf": kinds}
    return schema


def _model_of(verb: str, verbs: Verbs) -> type[Config]:
    if verb not in verbs:
        raise UsageError(f"There is no verb {verb!r} with a config.", f"Known are: {', '.join(verbs)}.")
    return verbs[verb]


UNITS = {"time": "time", "value": "value", "position": "position"}
"""What units are called that only the data know."""

COUNTS = (1, 2, 3)
"""Numbers of outputs that are tried."""


@dataclass(frozen=True)
class Unknown:
    """A parameter as a config sees it. key: of its prior. prior: the default, as it is written in YAML."""

    name: str
    key: str
    elements: str
    meaning: str
    unit: str
    prior: str


@dataclass(frozen=True)
class Force:
    """A force, and what it is measured in."""

    name: str
    unit: str


@dataclass(frozen=True)
class EquationSheet:
    """All that a config says of an equation, and a small config that can be fitted as it stands.

    text: the equation, and what it is about. outputs: how many it takes. others: priors of the force and of the noise.
    priors: the kinds that there are, with their keys. notes: what is to be known of its options. simulate: a command
    that draws data to try the config on.
    """

    kind: str
    text: str
    outputs: str
    forces: tuple[Force, ...]
    parameters: tuple[Unknown, ...]
    others: tuple[Unknown, ...]
    priors: Mapping[str, tuple[str, ...]]
    options: tuple[Key, ...]
    notes: tuple[str, ...]
    config: str
    simulate: str


def list_equations(plugins: Sequence[str] = ()) -> dict[str, str]:
    """Every equation by its name, with one line on each; those of the plugins too."""
    import_plugins(plugins)
    return {kind: summary_of(kind, system) for kind, system in sorted(known_systems().items())}


def describe_equation(kind: str, overrides: Sequence[str] = (), plugins: Sequence[str] = ()) -> EquationSheet:
    """One equation. overrides: settings of its config, on which its parameters may depend.

    Its own options may be named without `mechanism.`.
    """
    import_plugins(plugins)
    system = find_system(kind)
    given = {"plugins": list(plugins)} if plugins else {}
    whole = [
        f"mechanism.{one}" if re.split(r"[.=]", one)[0] in system.Options.model_fields else one for one in overrides
    ]
    content = apply_overrides({"verb": "fit", **given, "mechanism": {"kind": kind}}, whole)
    config = build(FitConfig, content, source=kind)
    counts, made = _tried(config.mechanism)
    model = Model(made, config.force, config.likelihood)
    first = made.force_names[0]
    mine, others = [], []
    for one in model.space.parameters:
        if one.kind == "noise":
            others.append(_unknown(one, made, f"likelihood.{model.likelihood.keys.get(one.name, one.name)}"))
        elif one.kind != "kernel":
            mine.append(one)
        elif one.name.startswith(f"{first}."):
            others.append(_unknown(one, made, f"force.priors.{one.name.removeprefix(f'{first}.')}"))
    return EquationSheet(
        kind=kind,
        text=text_of(kind, system),
        outputs=_counted(counts, made, named=bool(config.mechanism.get("outputs"))),
        forces=tuple(Force(name, _unit(made, made.force_dimension)) for name in made.force_names),
        parameters=tuple(_unknown(one, made, f"mechanism.priors.{one.name}") for one in mine),
        others=tuple(others),
        priors={kind_of(one): tuple(name for name in one.model_fields if name != "kind") for one in parts(Prior)},
        options=tuple(key for key in keys_of(system.Options, "mechanism.") if key.name != "mechanism.kind"),
        notes=tuple(_notes(system.Options)),
        config=_config_text(content, mine),
        simulate=_simulate(made, whole, plugins),
    )


def text_of(kind: str, system: type[System]) -> str:
    """What an equation is: its module says the equation, the class what it is about."""
    return "\n\n".join(_texts(EQUATIONS.get(kind, system)))


def summary_of(kind: str, system: type[System]) -> str:
    """The first line of it; a module of the user's own may hold several equations, so there the class comes first."""
    shown = EQUATIONS.get(kind, system)
    texts = _texts(shown)
    if not texts:
        return ""
    return texts[0 if shown.__module__.startswith("distlfm.") else -1].splitlines()[0]


def _texts(shown: type) -> list[str]:
    texts = (getattr(inspect.getmodule(shown), "__doc__", None), shown.__doc__)
    return [inspect.cleandoc(text) for text in texts if text]


def _tried(options: dict[str, Any]) -> tuple[list[int], System]:
    """The numbers of outputs that an equation can be built with, and one that is built."""
    usual = find_system(str(options["kind"])).Options(kind="").outputs
    made: dict[int, System] = {}
    refused: UsageError | None = None
    for count in (None,) if options.get("outputs") else COUNTS:
        names = [*usual, *(f"output_{i}" for i in range(len(usual), 3))]
        if count == 1 and not usual:
            names = ["output"]
        try:
            system = build_system(options, names[:count])
            made[len(system.outputs)] = system
        except UsageError as error:
            refused = refused or error
    if not made:
        assert refused is not None
        raise refused
    return list(made), next(iter(made.values()))


def _counted(counts: Sequence[int], made: System, named: bool) -> str:
    if named:
        return ", ".join(made.outputs)
    number = "one" if tuple(counts) == (1,) else "one or more" if tuple(counts) == COUNTS else str(counts[0])
    where = "a field in space and time, " if isinstance(made, FieldMechanism) else ""
    return f"{number}, {where}named as in the data, or by mechanism.outputs"


def _unit(system: System, dimension: Dimension | None) -> str:
    if dimension is None:
        return "not known from the data"
    return dimension.unit({**UNITS, **system.prior_units}) or ("pure number" if dimension == NUMBER else "")


def _unknown(parameter: Parameter, system: System, key: str) -> Unknown:
    labels, name = parameter.labels, parameter.name if key.startswith("mechanism.") else key
    units = dict.fromkeys(_unit(system, parameter.dimension_of(label)) for label in labels)
    elements = "one for each output" if labels == tuple(system.outputs) else ", ".join(labels)
    if labels in ((parameter.name,), (key.rsplit(".", 1)[-1],)):
        elements = "one"
    prior = flow(parameter.prior.model_dump(mode="json"))
    return Unknown(name, key, elements, parameter.meaning, ", ".join(units), prior)


def _notes(options: type[MechanismConfig]) -> Iterator[str]:
    """What the models say of the options, from the equation's own to those of each section."""
    for model in options.__mro__:
        if model is MechanismConfig:
            break
        if text := _prose(model):
            yield text
    for key, section in sections_of(options, "mechanism."):
        if text := _prose(section):
            yield f"{key}: {text}"


def _prose(model: type) -> str:
    return " ".join(inspect.cleandoc(model.__dict__.get("__doc__") or "").split())


def _simulate(system: System, overrides: Sequence[str], plugins: Sequence[str]) -> str:
    """A command that draws an instance; over a span in which a force can change that has a time of its own."""
    kind = system.options.kind
    words = ["distlfm", "simulate", kind, *(word for name in plugins for word in ("--plugin", name))]
    words += ["--instances", "1", "--out", f"{kind}.npz"]
    usual = getattr(system.force_priors.get("lengthscale"), "median", None)
    words += [] if usual is None else [f"stop={12 * usual:g}", "points=49"]
    return shlex.join(
        [*words, *(one for one in overrides if one.split(".")[0] in ("mechanism", "force", "likelihood"))]
    )


def _config_text(content: dict[str, Any], parameters: Sequence[Parameter]) -> str:
    """The config, and behind `#` how a prior and a known value would be written in it."""
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    given = content["mechanism"]
    if not parameters or given.get("priors") or given.get("fixed") or list(content)[-1] != "mechanism":
        return text
    one = parameters[0]
    prior = flow({one.name: one.prior.model_dump(mode="json")})
    known = flow({one.name: getattr(one.prior, "median", 1.0)})
    return f"{text}  # priors: {prior}\n  # fixed: {known}  # if it is known\n"
