"""The directive `.. all-keys::` writes the reference of configs from the models that check them.

A model is described once, where it is first met; later places link to it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any, Literal

from docstrings import escaped
from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from distlfm.cli.config import every_verb
from distlfm.config.keys import Style, default, kind_of, parts, taken
from distlfm.federated.settings import SiteConfig
from distlfm.federated.setup.homes import LinkConfig, NodeConfig
from distlfm.federated.site.policy import SitePolicy
from distlfm.mechanisms import known_systems
from distlfm.verbs.config import describe_equation, text_of

FILES = {"site.yaml": SiteConfig, "policy.yaml": SitePolicy, "link.yaml": LinkConfig, "node.yaml": NodeConfig}
"""Settings of a federation's roles, in the folders of these."""

Model = type[BaseModel]


def models(annotation: Any) -> Iterator[Model]:
    """Every model that a value of this type holds."""
    for part in parts(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        elif typing.get_origin(part) is not Literal:
            for inner in typing.get_args(part):
                if inner is not Ellipsis:
                    yield from models(inner)


def label(model: Model) -> str:
    return f"keys-{model.__module__}-{model.__qualname__}".replace(".", "-").lower()


class Reference(Style):
    """Code as code, and a model as a link to its description; as reStructuredText."""

    def code(self, text: str) -> str:
        return f"``{text}``"

    def model(self, model: Model) -> str:
        return f":ref:`{kind_of(model)} <{label(model)}>`"


REFERENCE = Reference()


def told(where: str, model: Model, path: str, seen: set[Model]) -> Iterator[str]:
    """reStructuredText of a model and of those below it that were not told of yet; `path` leads to it in `where`."""
    seen.add(model)
    # A model without words of its own would repeat those of its base.
    text = inspect.cleandoc(model.__dict__.get("__doc__") or "")
    yield from [*(escaped(line) for line in text.splitlines()), ""]
    yield from [".. list-table::", "   :header-rows: 1", "   :widths: 26 50 24", ""]
    yield from ["   * - key", "     - takes", "     - by default"]
    for name, field in model.model_fields.items():
        takes = taken(field, REFERENCE)
        takes = f"{takes}. {escaped(field.description)}" if field.description else takes
        yield from [f"   * - ``{path}{name}``", f"     - {takes}", f"     - {default(field, REFERENCE)}"]
    yield ""
    for name, field in model.model_fields.items():
        found = list(dict.fromkeys(models(field.annotation)))
        for below in found:
            if below not in seen:
                title = f"{where}: {path}{name}" + (f", {kind_of(below)}" if len(found) > 1 else "")
                yield from [f".. _{label(below)}:", "", title, "~" * len(title), ""]
                yield from told(where, below, f"{path}{name}.", seen)


def parameters_of(kind: str) -> Iterator[str]:
    """A table of a mechanism's parameters with the priors that they have where a config gives no others."""
    yield from [".. list-table::", "   :header-rows: 1", "   :widths: 18 18 20 14 30", ""]
    yield from ["   * - parameter", "     - elements", "     - meaning", "     - unit", "     - prior by default"]
    for one in describe_equation(kind).parameters:
        yield from [f"   * - ``{one.name}``", *(f"     - {escaped(text)}" for text in (one.elements, one.meaning))]
        yield from [f"     - {escaped(one.unit)}", f"     - ``{one.prior}``"]
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
            lines += [escaped(line) for line in text_of(kind, system).splitlines()] + [""]
            lines += parameters_of(kind)
            lines += told(kind, system.Options, "mechanism.", seen)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("all-keys", AllKeys)
    return {"parallel_read_safe": True}
