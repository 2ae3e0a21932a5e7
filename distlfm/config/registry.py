"""Things that a config names: each registers itself under its name, and a plugin's do as the shipped ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from distlfm.errors import UsageError

Kind = TypeVar("Kind")
Made = TypeVar("Made", bound=type)


class Registry(dict[str, Kind]):
    """Classes by their names. what: the word for one of them."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def register(self, name: str, base: type) -> Callable[[Made], Made]:
        """Class decorator that keeps a class under a name, unless another class has it."""

        def keep(made: Made) -> Made:
            if not (isinstance(made, type) and issubclass(made, base)):
                called = getattr(made, "__name__", repr(made))
                raise UsageError(
                    f"{called} is registered as a {self.what}, and is none.", f"Write class {called}({base.__name__})."
                )
            if name in self and _place(self[name]) != _place(made):
                raise UsageError(f"There is a {self.what} {name!r} already.", "Register it by another name.")
            self[name] = made  # type: ignore[assignment]
            return made

        return keep

    def find(self, name: str) -> Kind:
        """Return what is registered under a name."""
        if name not in self:
            from distlfm.config import nearest  # which lists registered names in its own messages

            own = "One of your own is known once its module is named: plugins=[MODULE], or --plugin MODULE."
            raise UsageError(f"There is no {self.what} {name!r}.", f"{nearest(name, sorted(self))} {own}")
        return self[name]


def _place(made: Any) -> tuple[str, str]:
    return made.__module__, made.__qualname__


@dataclass(frozen=True)
class OneOf:
    """Annotates a key that takes a registered name. first: names that are told before others."""

    known: tuple[Registry[Any], ...]
    first: tuple[str, ...] = ()

    @property
    def choices(self) -> list[str]:
        names = dict.fromkeys(name for one in self.known for name in one)
        return [*(name for name in self.first if name in names), *(name for name in names if name not in self.first)]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source, handler
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        del schema, handler
        return {"enum": self.choices, "type": "string"}

    def _checked(self, name: object) -> str:
        if isinstance(name, str) and name in self.choices:
            return name
        *first, last = map(repr, self.choices)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(first)} or {last}"})
