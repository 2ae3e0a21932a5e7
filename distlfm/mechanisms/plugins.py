"""Mechanisms of the user's own: modules that a config names are imported before the config is checked."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from distlfm.config import Config, digest
from distlfm.equations import EQUATIONS
from distlfm.errors import DistlfmError, UsageError
from distlfm.mechanisms import REGISTRY, FieldMechanism, find_system
from distlfm.optional import import_file


class WithPlugins(Config):
    """plugins: modules to import first, which register mechanisms, likelihoods and methods."""

    plugins: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _with_plugins(cls, content: Any) -> Any:
        if isinstance(content, dict) and isinstance(content.get("plugins"), list | tuple):
            import_plugins([str(name) for name in content["plugins"]])
        return content


def import_plugins(names: Sequence[str]) -> None:
    """Import each module: NAME.py in the current folder or at a path, or an installed one.

    What they register is then known. None may put an equation in place of another.
    """
    for name in names:
        module, file = plugin_name(name), _file(name)
        if file.is_file():
            _refuse_taken(name, module, file)
        if module in sys.modules:
            continue
        before = dict(REGISTRY), dict(EQUATIONS)
        try:
            if file.is_file():
                import_file(module, file)
            else:
                importlib.import_module(module)
        except DistlfmError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and str(error.filename) == str(file.absolute()):
                raise UsageError(
                    f"Cannot read the plugin {name}: {error.strerror}.", "Check the path and its permissions."
                ) from error
            # The user's own code: whatever it raises is told, and --debug shows where.
            raise UsageError(
                f"The plugin {name!r} cannot be imported: {type(error).__name__}: {error}.", _mended(error, file)
            ) from error
        _refuse_replaced(name, module, *before)


def _refuse_taken(name: str, module: str, file: Path) -> None:
    """Refuse a file whose name is another module's: one would be taken for the other."""
    if module in sys.stdlib_module_names:
        raise UsageError(f"The plugin {name!r} has the name of a module of Python itself.", f"Rename {file}.")
    if module in sys.modules:
        other = getattr(sys.modules[module], "__file__", None)
        if other is not None and Path(other).exists() and not file.samefile(other):
            raise UsageError(
                f"The plugin {name!r} has the name of another module that is loaded, {other}.", f"Rename {file}."
            )


def _refuse_replaced(name: str, module: str, mechanisms: dict[str, Any], equations: dict[str, Any]) -> None:
    """Refuse a module that has registered a name which was another equation's, and forget what it registered."""
    pairs = ((REGISTRY, mechanisms), (EQUATIONS, equations))
    new = {kind for now, before in pairs for kind, one in now.items() if before.get(kind) is not one}
    taken = sorted(new & {*mechanisms, *equations})
    if not taken:
        return
    for now, before in pairs:
        now.clear()
        now.update(before)
    sys.modules.pop(module, None)
    owner = mechanisms.get(taken[0]) or equations[taken[0]]
    raise UsageError(
        f"The plugin {name!r} registers an equation {taken[0]!r}, and there is one of that name ({_home(owner)}).",
        "Register it by another name.",
    )


def _home(owner: type) -> str:
    if owner.__module__.startswith("distlfm."):
        return "it is shipped"
    try:
        return inspect.getfile(owner)
    except (OSError, TypeError):
        return owner.__module__


def _mended(error: Exception, file: Path) -> str:
    """What to do about a module that cannot be imported."""
    if not file.is_file():
        place = file if file.is_absolute() else f"{file} in the current folder"
        return f"It must be {place}, or an installed module."
    if isinstance(error, ModuleNotFoundError) and error.name and file.with_name(f"{error.name}.py").is_file():
        return f"Name its neighbour first: plugins=[{file.with_name(error.name)}.py, {file}]."
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).name == file.name]
    return f"Mend {file}" + (f", line {lines[-1]}." if lines else ".")


def plugin_name(name: str) -> str:
    """The module that a config means, whether it gives its name or the path of its file."""
    return Path(name).stem if name.endswith(".py") else name


def located(names: Sequence[str]) -> tuple[str, ...]:
    """The same plugins, those in files by their absolute paths."""
    return tuple(str(_file(name).absolute()) if _file(name).is_file() else name for name in names)


def own_code(kind: str) -> str | None:
    """`code_of` an equation."""
    system = find_system(kind)
    return code_of(system.equation if issubclass(system, FieldMechanism) else system)


def code_of(owner: type) -> str | None:
    """A hash of the file that holds a user's own class, without comments and blanks; None for what is shipped.

    None also where there is no file, as in a notebook.
    """
    if owner.__module__.startswith("distlfm."):
        return None
    try:
        code = ast.dump(ast.parse(Path(inspect.getfile(owner)).read_bytes()))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return digest(code)


def _file(name: str) -> Path:
    return Path(name if name.endswith(".py") else f"{name}.py")
