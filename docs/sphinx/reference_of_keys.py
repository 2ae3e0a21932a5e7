"""The directive `.. all-keys::` writes the reference of configs from the models that check them.

A model is told of once, where it is first met; later places link to it.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union

import yaml
from docstrings import escaped
from docutils import nodes
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from distlfm.cli.config import every_verb
from distlfm.equations import EQUATIONS
from distlfm.federated.homes import LinkConfig, NodeConfig
from distlfm.federated.policy import SitePolicy
from distlfm.federated.settings import SiteConfig
from distlfm.mechanisms import System, build_system, known_systems

WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", type(None): "nothing"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

FILES = {"site.yaml": SiteConfig, "policy.yaml": SitePolicy, "link.yaml": LinkConfig, "node.yaml": NodeConfig}
"""Settings of a federation's roles, in the folders of these."""

Model = type[BaseModel]


def parts(annotation: Any) -> tuple[Any, ...]:
    """What a union is of; anything else is of itself. Names and bounds around a type are looked through."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return parts(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(part for one in typing.get_args(annotation) for part in parts(one))
    return (annotation,)


def models(annotation: Any) -> Iterator[Model]:
    """Every model that a value of this type holds."""
    for part in parts(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        elif typing.get_origin(part) is not Literal:
            for inner in typing.get_args(part):
                if inner is not Ellipsis:
                    yield from models(inner)


def words(annotation: Any) -> str:
    """A type in words, as reStructuredText."""
    return ", or ".join(dict.fromkeys(_word(part) for part in parts(annotation)))


def _word(part: Any) -> str:
    origin, inner = typing.get_origin(part), typing.get_args(part)
    if origin is Literal:
        return ", ".join(f"``{choice}``" if choice != "" else "empty" for choice in inner)
    if origin in (tuple, list, frozenset):
        return f"list of {words(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "mapping" if inner[1] is Any else f"mapping of names to {words(inner[1])}"
    if isinstance(part, type) and issubclass(part, BaseModel):
        return f":ref:`{kind_of(part)} <{label(part)}>`"
    return WORDS.get(part, "anything")


def kind_of(model: Model) -> str:
    """A model's `kind` where it has exactly one, else its name without its ending."""
    field = model.model_fields.get("kind")
    if field is not None and typing.get_origin(field.annotation) is Literal:
        kinds = typing.get_args(field.annotation)
        if len(kinds) == 1:
            return str(kinds[0])
    return model.__name__.removesuffix("Config").removesuffix("Options").lower() or model.__name__


def label(model: Model) -> str:
    return f"keys-{model.__module__}-{model.__qualname__}".replace(".", "-").lower()


def bounds(field: FieldInfo) -> str:
    """Limits of a number, such as `≥ 0, < 1`."""
    found = [(sign, getattr(rule, name, None)) for rule in field.metadata for name, sign in BOUNDS.items()]
    return ", ".join(f"{sign} {value:g}" for sign, value in found if value is not None)


def default(field: FieldInfo) -> str:
    """A default as it is written in YAML."""
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        changed = value.model_dump(mode="json", exclude_defaults=True)
        return f"``{_yaml(changed)}``" if changed else "all defaults"
    return f"``{_yaml([*value] if isinstance(value, tuple | frozenset) else value)}``"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(
        value if isinstance(value, dict | list | int | float | bool | None) else str(value),
        default_flow_style=True,
        width=10_000,
    )
    return text.removesuffix("...\n").strip()


def told(where: str, model: Model, path: str, seen: set[Model]) -> Iterator[str]:
    """reStructuredText of a model and of those below it that were not told of yet; `path` leads to it in `where`."""
    seen.add(model)
    # A model without words of its own would repeat those of its base.
    text = inspect.cleandoc(model.__dict__.get("__doc__") or "")
    yield from [*(escaped(line) for line in text.splitlines()), ""]
    yield from [".. list-table::", "   :header-rows: 1", "   :widths: 26 50 24", ""]
    yield from ["   * - key", "     - takes", "     - by default"]
    for name, field in model.model_fields.items():
        takes = ", ".join(filter(None, [words(field.annotation), bounds(field)]))
        takes = f"{takes}. {escaped(field.description)}" if field.description else takes
        yield from [f"   * - ``{path}{name}``", f"     - {takes}", f"     - {default(field)}"]
    yield ""
    for name, field in model.model_fields.items():
        found = list(dict.fromkeys(models(field.annotation)))
        for below in found:
            if below not in seen:
                title = f"{where}: {path}{name}" + (f", {kind_of(below)}" if len(found) > 1 else "")
                yield from [f".. _{label(below)}:", "", title, "~" * len(title), ""]
                yield from told(where, below, f"{path}{name}.", seen)


def equation_of(kind: str, system: type[System]) -> str:
    """What a mechanism is: its module says the equation, the class what it is about."""
    shown = EQUATIONS.get(kind, system)
    return "\n\n".join(inspect.cleandoc(text) for text in (inspect.getmodule(shown).__doc__, shown.__doc__) if text)


def parameters_of(kind: str) -> Iterator[str]:
    """A table of a mechanism's parameters with the priors that they have where a config gives no others."""
    outputs = known_systems()[kind].Options(kind=kind).outputs or ("output",)
    yield from [".. list-table::", "   :header-rows: 1", "   :widths: 22 26 52", ""]
    yield from ["   * - parameter", "     - elements", "     - prior by default"]
    for one in build_system({"kind": kind}, outputs).parameters():
        each = "one for each output" if one.labels == tuple(outputs) else ", ".join(one.labels)
        each = "one" if one.labels == (one.name,) else each
        prior = _yaml(one.prior.model_dump(mode="json"))
        yield from [f"   * - ``{one.name}``", f"     - {escaped(each)}", f"     - ``{prior}``"]
    yield ""


class AllKeys(SphinxDirective):
    """A section for each verb that has keys, one for each file of a federation, and one for each mechanism."""

    def run(self) -> list[nodes.Node]:
        sections = {f"verb: {verb}": model for verb, model in every_verb().items()}
        sections |= {f"file: {name}": model for name, model in FILES.items()}
        seen = set(sections.values())  # each has a section of its own, wherever else it is met
        lines: list[str] = []
        for title, model in sections.items():
            lines += [f".. _{label(model)}:", "", title, "-" * len(title), ""]
            lines += told(title.partition(": ")[2], model, "", seen)
        for kind, system in sorted(known_systems().items()):
            title = f"mechanism.kind: {kind}"
            lines += [f".. _mechanism-{kind.replace('_', '-')}:", "", title, "-" * len(title), ""]
            lines += [escaped(line) for line in equation_of(kind, system).splitlines()] + [""]
            lines += parameters_of(kind)
            lines += told(kind, system.Options, "mechanism.", seen)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("all-keys", AllKeys)
    return {"parallel_read_safe": True}
