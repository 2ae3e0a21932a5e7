"""Docstrings of the public names explain each argument, and say what is returned."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
from pydantic import BaseModel

import distlfm
from distlfm.lfo import OperatorAnswer
from distlfm.mechanisms import System
from distlfm.runtime.reporting import Reporter
from distlfm.verbs.evaluate import Evaluation
from distlfm.verbs.query import QueryRun
from distlfm.verbs.train import TrainRun

WRITTEN_AGAINST = ("distlfm", "distlfm.data", "distlfm.equations", "distlfm.errors", "distlfm.mechanisms")
"""Modules of docs/reference/python.rst that programs and plugins call. What their functions give or take goes along."""

NOTHING = (None, "None", "NoReturn", inspect.Signature.empty)


def unexplained(names: list[str], text: str) -> list[str]:
    """The names that a docstring has neither in backticks nor in a list before a colon, `path, spec: ...`."""
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    for listed in re.findall(r"(?:^|[.;:]\s|\n)\s*(\w+(?:,\s+\w+)*):\s", text):
        explained |= set(re.split(r",\s+", listed))
    return [name for name in names if name not in explained]


def arguments(function: Callable[..., Any]) -> list[str]:
    names = inspect.signature(function).parameters
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def lacks(function: Callable[..., Any]) -> list[str]:
    """What the docstring of a function or method leaves out."""
    text, gives = inspect.getdoc(function) or "", inspect.signature(function).return_annotation
    says = gives in NOTHING or re.search(r"\breturns?\b", text, re.IGNORECASE)
    return unexplained(arguments(function), text) + ([] if says else ["return"])


def methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public methods that the project defines, inherited ones too."""
    for name in dir(owner):
        home = next(base for base in owner.__mro__ if name in vars(base))
        called = isinstance(vars(home)[name], classmethod | staticmethod | FunctionType)
        if called and home.__module__.startswith("distlfm") and (name == "__call__" or not name.startswith("_")):
            yield name, getattr(owner, name)


def made_of(owner: type) -> list[str]:
    """The arguments that make an object. Options of an equation are those of its config, whose `kind` is its name."""
    if issubclass(owner, System):
        return [name for name in owner.Options.model_fields if name != "kind"]
    if issubclass(owner, BaseModel):
        return [name for name, one in owner.model_fields.items() if name != "kind" and not one.description]
    if "__init__" not in vars(owner) and issubclass(owner, Warning):
        return []
    return arguments(owner)


def missing(public: Any) -> dict[str, list[str]]:
    """What docstrings of a function, or of a class and its methods, leave out."""
    if not inspect.isclass(public):
        return {public.__name__: left} if (left := lacks(public)) else {}
    texts = [inspect.cleandoc(base.__doc__ or "") for base in public.__mro__ if base.__module__.startswith("distlfm")]
    found = {public.__name__: unexplained(made_of(public), "\n\n".join(texts))}
    found |= {f"{public.__name__}.{name}": lacks(method) for name, method in methods(public)}
    return {name: left for name, left in found.items() if left}


def public() -> dict[str, Any]:
    """Classes and functions by the name that a program imports."""
    found: dict[str, Any] = {one.__name__: one for one in (OperatorAnswer, Reporter, Evaluation, QueryRun, TrainRun)}
    for name in WRITTEN_AGAINST:
        module = importlib.import_module(name)
        for own in getattr(module, "__all__", [own for own in vars(module) if not own.startswith("_")]):
            one = getattr(module, own)
            homes = getattr(one, "__mro__", [one])
            ours = any(getattr(home, "__module__", "").startswith("distlfm") for home in homes)
            if ours and (inspect.isclass(one) or inspect.isfunction(one)) and one not in found.values():
                found[f"{name}.{own}"] = one
    return found


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_explain_each_argument_and_say_what_is_returned(name: str) -> None:
    assert missing(PUBLIC[name]) == {}


def test_every_public_name_of_the_package_is_looked_at() -> None:
    looked_at = list(PUBLIC.values())
    called = [name for name in distlfm.__all__ if callable(getattr(distlfm, name))]
    assert [name for name in called if getattr(distlfm, name) not in looked_at] == []
    assert len(called) > 50


def test_what_is_left_out_is_found() -> None:
    def half(model: str, path: str, seed: int) -> int:
        """Write a model. path: of the file. Nothing of a seed."""
        return 0

    class Stored:
        """Something kept. path: of the file."""

        def __init__(self, path: str, seed: int) -> None: ...

        def read(self, start: int) -> int:
            """Give a row."""
            return 0

    Stored.__module__ = "distlfm.somewhere"
    assert missing(half) == {"half": ["model", "seed", "return"]}
    assert missing(Stored) == {"Stored": ["seed"], "Stored.read": ["start", "return"]}
