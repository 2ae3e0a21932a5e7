"""Docstrings of the public names explain each argument, and say what is returned."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
from pydantic import BaseModel

import distlfm
from distlfm.mechanisms import System

PUBLIC = [name for name in distlfm.__all__ if callable(getattr(distlfm, name))]
NOTHING = (None, "None", "NoReturn", inspect.Signature.empty)


def unexplained(names: list[str], text: str) -> list[str]:
    """The names that a docstring has neither in backticks nor in a list before a colon, `path, spec: ...`."""
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    for listed in re.findall(r"(?:^|[.;:]\s|\n)\s*(\w+(?:,\s+\w+)*):\s", text):
        explained |= set(re.split(r",\s+", listed))
    return [name for name in names if name not in explained]


def arguments(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def lacks(function: Callable[..., Any]) -> list[str]:
    """What the docstring of a function or method leaves out."""
    text, gives = inspect.getdoc(function) or "", inspect.signature(function).return_annotation
    says = gives in NOTHING or re.search(r"\breturns?\b", text, re.IGNORECASE)
    return unexplained(arguments(function), text) + ([] if says else ["return"])


def methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public methods that the project defines, inherited ones too."""
    for name in dir(owner):
        home = next(base for base in owner.__mro__ if name in vars(base))
        own, public = home.__module__.startswith("distlfm"), name == "__call__" or not name.startswith("_")
        if (
            own
            and public
            and isinstance(inspect.getattr_static(owner, name), classmethod | staticmethod | FunctionType)
        ):
            yield name, getattr(owner, name)


def made_of(owner: type) -> list[str]:
    """The arguments that make an object. Options of an equation are those of its config, whose `kind` is its name."""
    if issubclass(owner, System):
        return [name for name in owner.Options.model_fields if name != "kind"]
    if issubclass(owner, BaseModel):
        return [name for name in owner.model_fields if name != "kind"]
    return arguments(owner)


def missing(public: Any) -> dict[str, list[str]]:
    """What docstrings of a function, or of a class and its methods, leave out."""
    if not inspect.isclass(public):
        return {public.__name__: left} if (left := lacks(public)) else {}
    bases = [base for base in public.__mro__ if base.__module__.startswith("distlfm")]
    found = {
        public.__name__: unexplained(made_of(public), "\n\n".join(inspect.cleandoc(b.__doc__ or "") for b in bases))
    }
    found |= {f"{public.__name__}.{name}": lacks(method) for name, method in methods(public)}
    return {name: left for name, left in found.items() if left}


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_explain_each_argument_and_say_what_is_returned(name: str) -> None:
    assert missing(getattr(distlfm, name)) == {}


def test_what_is_left_out_is_found() -> None:
    def half(model: str, path: str, seed: int) -> int:
        """Write a model. path: of the file. Nothing of a seed."""

    class Stored:
        """Something kept. path: of the file."""

        def __init__(self, path: str, seed: int) -> None: ...

        def read(self, start: int) -> int:
            """Give a row."""

    Stored.__module__ = "distlfm.somewhere"
    assert missing(half) == {"half": ["model", "seed", "return"]}
    assert missing(Stored) == {"Stored": ["seed"], "Stored.read": ["start", "return"]}
