"""Keys of configs in words, and names that a config may use.

Keys are described from the models that check them: what a key takes, and what it is by default. What a config names
registers itself under its name, a plugin's as the shipped ones.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml
from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from distlfm.errors import UsageError

Kind = TypeVar("Kind")
Made = TypeVar("Made", bound=type)


class Registry(dict[str, Kind]):
    """Classes, or objects, by their names. what: the word for one of them."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def register(self, name: str, base: type) -> Callable[[Made], Made]:
        """Class decorator that keeps a class under a name, unless another class has it."""

        def keep(made: Made) -> Made:
            if not (isinstance(made, type) and issubclass(made, base)):
                label = getattr(made, "__name__", repr(made))
                raise UsageError(
                    f"{label} is registered as a {self.what}, and is not one.", f"Write class {label}({base.__name__})."
                )
            self.put(name, made, attrgetter("__module__", "__qualname__"))  # type: ignore[arg-type]
            return made

        return keep

    def put(self, name: str, one: Kind, mark: Callable[[Kind], object]) -> None:
        """Keep something under a name, unless another has it. mark: by what two are known to be the same."""
        if name in self and mark(self[name]) != mark(one):
            raise UsageError(f"There is a {self.what} {name!r} already.", "Register it by another name.")
        self[name] = one

    def find(self, name: str) -> Kind:
        """Return what is registered under a name."""
        if name not in self:
            from distlfm.config import nearest  # which lists registered names in its own messages

            own = "One of your own is known once its module is named: plugins=[MODULE], or --plugin MODULE."
            raise UsageError(f"There is no {self.what} {name!r}.", f"{nearest(name, sorted(self))} {own}")
        return self[name]


@dataclass(frozen=True)
class OneOf:
    """Annotates a key that takes a registered name. first: names that are listed before others."""

    known: tuple[Registry[Any], ...]
    first: tuple[str, ...] = ()

    @property
    def choices(self) -> list[str]:
        names = dict.fromkeys(name for one in self.known for name in one)
        return [*(name for name in self.first if name in names), *(name for name in names if name not in self.first)]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": self.choices, "type": "string"}

    def _checked(self, name: object) -> str:
        if isinstance(name, str) and name in self.choices:
            return name
        *first, last = map(repr, self.choices)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(first)} or {last}"})


WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", type(None): "nothing"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Style:
    """How code and other models are shown; here as plain text."""

    def code(self, text: str) -> str:
        return text

    def model(self, model: type[BaseModel]) -> str:
        return kind_of(model)


PLAIN = Style()


@dataclass(frozen=True)
class Key:
    """One key with dots, what it takes, its default as it is written in YAML, and what it means where that is known."""

    name: str
    takes: str
    default: str
    meaning: str = ""


def keys_of(model: type[BaseModel], path: str = "", given: BaseModel | None = None) -> Iterator[Key]:
    """Every key of a model, and in place of a section the keys in it; `path` leads to the model.

    given: what holds by default, where that is not what the model says by itself.
    """
    for name, field in model.model_fields.items():
        value = field.get_default(call_default_factory=True) if given is None else getattr(given, name)
        section, below = _section(field.annotation)
        if section is not None:
            inner = value if isinstance(value, section) else None
            yield from keys_of(section, f"{path}{name}.{below}", inner)
        else:
            yield Key(f"{path}{name}", taken(field), default(field, given=value), field.description or "")


def sections_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections in a model, by the key that leads to each."""
    for name, field in model.model_fields.items():
        section, below = _section(field.annotation)
        if section is not None:
            yield f"{path}{name}", section
            yield from sections_of(section, f"{path}{name}.{below}")


def _section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that stands under a key, by itself or under names that the user gives; a choice is not a section."""
    members = parts(annotation)
    if len(members) == 1 and is_mapping(members[0]):
        section, below = _section(typing.get_args(members[0])[1])
        return section, f"NAME.{below}"
    return (members[0] if len(members) == 1 and is_model(members[0]) else None), ""


def is_model(annotation: Any) -> bool:
    """Return whether a type is a model of options."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_mapping(annotation: Any) -> bool:
    """Return whether a type is a mapping of keys to values of a type."""
    origin = typing.get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def parts(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself. Names and bounds around a type are looked through."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return parts(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(part for one in typing.get_args(annotation) for part in parts(one))
    return (annotation,)


def taken(field: FieldInfo, style: Style = PLAIN) -> str:
    """What a key takes, in words: a type, with its bounds, or one of several names."""
    names = [name for rule in field.metadata if isinstance(rule, OneOf) for name in rule.choices]
    what = ", ".join(map(style.code, names)) or words(field.annotation, style)
    return ", ".join(filter(None, [what, bounds(field)]))


def words(annotation: Any, style: Style = PLAIN) -> str:
    """A type in words."""
    return ", or ".join(dict.fromkeys(_word(part, style) for part in parts(annotation)))


def _word(part: Any, style: Style) -> str:
    origin, inner = typing.get_origin(part), typing.get_args(part)
    if origin is Literal:
        return ", ".join(style.code(str(choice)) if choice != "" else "empty" for choice in inner)
    if origin in (tuple, list, frozenset):
        return f"list of {words(inner[0], style)}"
    if is_mapping(part):
        return "mapping" if inner[1] is Any else f"mapping of names to {words(inner[1], style)}"
    if is_model(part):
        return style.model(part)
    return WORDS.get(part, "anything")


def kind_of(model: type[BaseModel]) -> str:
    """A model's `kind` where it has exactly one, else its name without its ending."""
    field = model.model_fields.get("kind")
    if field is not None and typing.get_origin(field.annotation) is Literal:
        first, *others = typing.get_args(field.annotation)
        if not others:
            return str(first)
    return model.__name__.removesuffix("Config").removesuffix("Options").lower() or model.__name__


def bounds(field: FieldInfo) -> str:
    """Limits of a number, such as `≥ 0, < 1`."""
    limits = [(sign, getattr(rule, name, None)) for rule in field.metadata for name, sign in BOUNDS.items()]
    return ", ".join(f"{sign} {value:g}" for sign, value in limits if value is not None)


def default(field: FieldInfo, style: Style = PLAIN, given: Any = None) -> str:
    """A default as it is written in YAML. given: what it is here, in place of what the field says."""
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True) if given is None else given
    if isinstance(value, BaseModel):
        # What is one of a choice, such as a prior, is shown whole: its kind has to be written too.
        changed = value.model_dump(mode="json", exclude_defaults=len(parts(field.annotation)) == 1)
        return style.code(flow(changed)) if changed else "all defaults"
    return style.code(flow([*value] if isinstance(value, tuple | frozenset) else value))


def flow(value: Any) -> str:
    """YAML on one line."""
    text: str = yaml.safe_dump(
        value if isinstance(value, dict | list | int | float | bool | None) else str(value),
        default_flow_style=True,
        width=10_000,
        allow_unicode=True,
        sort_keys=False,
    )
    return text.removesuffix("...\n").strip()
