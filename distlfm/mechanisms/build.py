"""From a config's section to the equation that it describes, with its contract checked; and users' own equations.

Modules that a config names as plugins are imported before the config is checked. The check tries the equation on a few
values before anything long begins. Equations are mostly the user's own code: what it raises, and shapes that do not
fit, are reported with its file and line.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import model_validator
from torch import Tensor

from distlfm.config import Config, build, digest, nearest
from distlfm.equations import EQUATIONS
from distlfm.errors import DistlfmError, UsageError
from distlfm.mechanisms.base import REGISTRY, Mechanism, System
from distlfm.mechanisms.field import FieldMechanism, field_of
from distlfm.mechanisms.priors import Parameter, ParameterSpace, Values
from distlfm.optional import import_file

LEADING = (2, 3)
"""Dimensions for instances and samples: two of different sizes, so that one that is lost or turned is noticed."""

SHAPES = (
    "Mend it: y is [..., states], f is [..., forces], and each of values is [..., elements]; join states with "
    "join_states(a, b, …) of distlfm.mechanisms."
)
PARAMETERS = (
    "Mend it: a parameter has a name, labels of its elements and a prior, as in "
    'Parameter("rate", ("k",), LogNormal(median=0.3, spread=0.5), positive=True).'
)


def check_contract(mechanism: Mechanism) -> None:
    """Refuse an equation whose methods raise an error, or give something else than they promise.

    One that does not know its outputs yet, or has no parameters that would give the leading dimensions, is let pass.
    """
    space = ParameterSpace(check_parameters(mechanism))
    values = space.unpack(torch.zeros((*LEADING, space.num_free), dtype=torch.float64))
    if not mechanism.outputs or not values:
        return
    states, names = mechanism.num_states, ", ".join(mechanism.outputs)
    t = torch.zeros(LEADING, dtype=torch.float64)
    y = torch.full((*LEADING, states), 0.5, dtype=torch.float64)
    f = torch.full((*LEADING, len(mechanism.force_names)), 0.5, dtype=torch.float64)
    why = f"num_states is {states}, for the outputs {names}"
    start = _checked(mechanism, "initial_state", states, why, values)
    # As solvers give them: one value for all times of an instance.
    values = {name: value[:, :1] for name, value in values.items()}
    _checked(mechanism, "vector_field", states, why, t, y, f, values)
    _check_finite(mechanism, start, values)
    _checked(mechanism, "observe", len(mechanism.outputs), f"the outputs are {names}", y, values)


def check_parameters(system: System) -> list[Parameter]:
    """The parameters with the options put in; refused if the equation cannot tell them, or tells one twice."""
    with _own_code(system, "parameters", PARAMETERS):
        declared = system.settled()
        elements = [one.name for one in declared] + [f"{one.name}[{label}]" for one in declared for label in one.labels]
    twice = [element for element, count in Counter(elements).items() if count > 1]
    if twice:
        what = f"{type(system).__name__}.parameters gives {twice[0]!r} twice."
        raise UsageError(what, "Give each a name of its own, and each element a label.")
    return declared


def _check_finite(mechanism: Mechanism, start: Tensor, values: Values) -> None:
    """Refuse an equation that cannot even begin, neither without a force nor with one."""
    name = type(mechanism).__name__
    wrong = "no finite number (nan or inf) with each parameter at its prior's middle"
    fix = "Look for logarithms, roots and divisions there, and at the priors."
    if not bool(start.isfinite().all()):
        raise UsageError(f"{name}.initial_state gives {wrong}.", fix)
    t = torch.full(LEADING, 0.5, dtype=torch.float64)  # an equation may divide by the time
    forces = [torch.full((*LEADING, len(mechanism.force_names)), size, dtype=torch.float64) for size in (0.0, 0.5)]
    if not any(bool(mechanism.vector_field(t, start, f, values).isfinite().all()) for f in forces):
        raise UsageError(f"{name}.vector_field gives {wrong}, at the state that initial_state gives.", fix)


@contextmanager
def _own_code(system: System, method: str, fix: str) -> Iterator[None]:
    """Report what an equation's own code raises with its file and line."""
    try:
        yield
    except DistlfmError:
        raise
    except Exception as error:
        file = source_of(type(system))
        line = _line_in(error, lambda filename: filename == file)
        where = f" ({file}, line {line})" if line else ""
        what = f"{type(system).__name__}.{method} fails{where}: {type(error).__name__}: {error}."
        raise UsageError(what, fix) from error


def source_of(owner: type) -> str:
    """The file of a class; empty where there is none, as in a notebook."""
    try:
        return inspect.getfile(owner)
    except (OSError, TypeError):
        return ""


def _line_in(error: Exception, own: Callable[[str], bool]) -> int | None:
    """The last line of a file of one's own that an error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if own(frame.filename)), None)


def _checked(mechanism: Mechanism, method: str, last: int, why: str, *arguments: Any) -> Tensor:
    """What a method gives, if it is a tensor [..., last]. why: the reason for that size."""
    with _own_code(mechanism, method, SHAPES):
        given = getattr(mechanism, method)(*arguments)
    name, wanted = f"{type(mechanism).__name__}.{method}", f"[..., {last}]"
    made = f"Make it of y and values; all zero is zero_state(values, {last}) of distlfm.mechanisms."
    if not isinstance(given, Tensor):
        raise UsageError(f"{name} gives a {type(given).__name__}, and a tensor {wanted} is needed.", made)
    if not _fits(given, (*LEADING, last), whole=method == "initial_state"):
        problem = f"whose shape is {_shape(given)}"
        fix = "Join states along the last dimension (dim=-1); num_states and mechanism.outputs say how many there are."
        if given.shape == (last,):
            problem, fix = "without the leading dimensions", made
        raise UsageError(f"{name} gives a tensor {problem}, and {wanted} is needed: {why}.", fix)
    if given.dtype != torch.float64:
        raise UsageError(f"{name} gives {given.dtype}, and float64 is needed.", "Make it of y and values.")
    return given


def _fits(given: Tensor, wanted: tuple[int, ...], whole: bool) -> bool:
    """Whether a tensor has a shape, or may be repeated to it along its leading dimensions unless it is to be whole."""
    if whole or given.ndim != len(wanted):
        return given.shape == wanted
    return given.shape[-1] == wanted[-1] and all(a in (1, b) for a, b in zip(given.shape, wanted, strict=True))


def _shape(given: Tensor) -> str:
    if given.shape[: len(LEADING)] == LEADING and given.ndim == len(LEADING) + 1:
        return f"[..., {given.shape[-1]}]"
    return str(list(given.shape)) + f", for y of [{LEADING[0]}, {LEADING[1]}, states]"


def known_systems() -> dict[str, type[System]]:
    """Return every equation by its name: mechanisms, and fields made of registered weak forms."""
    return {**{kind: field_of(equation) for kind, equation in EQUATIONS.items()}, **REGISTRY}


def find_system(kind: str) -> type[System]:
    """Return the class of an equation, which has all methods of its contract.

    kind: its name in a config. Raises `UsageError` if it is not registered, or a method is missing.
    """
    known = known_systems()
    if kind not in known:
        own = "One of your own is known once its module is named: plugins=[MODULE], or --plugin MODULE."
        raise UsageError(f"There is no mechanism {kind!r}.", f"{nearest(kind, sorted(known))} {own}")
    written = written_class(known[kind])
    missing = sorted(getattr(written, "__abstractmethods__", ()))
    if missing:
        what = "mechanism" if written is known[kind] else "equation"
        raise UsageError(f"{written.__name__}, the {what} {kind!r}, has no {' and no '.join(missing)}.", "Write it.")
    return known[kind]


def written_class(system: type[System]) -> type:
    """The class that a user writes: the equation of a field, or the mechanism itself."""
    return system.equation if issubclass(system, FieldMechanism) else system


def build_system(options: Mapping[str, object], outputs: Sequence[str] = ()) -> System:
    """Return the equation that a config section describes.

    options: the section, with `kind`. outputs: those of the data, taken if the section names none; without either the
    mechanism's own defaults hold. Raises `UsageError` if the equation is not known, or an option is wrong.
    """
    system = find_system(str(options.get("kind", "")))
    content = {key: value for key, value in options.items() if key != "outputs" or value}
    if outputs:
        content.setdefault("outputs", tuple(outputs))
    made = system(build(system.Options, content, source="mechanism"))
    if isinstance(made, Mechanism):
        check_contract(made)
    return made


def build_mechanism(options: Mapping[str, object], outputs: Sequence[str] = ()) -> Mechanism:
    """Return the ordinary differential equation that a config section describes.

    options, outputs: as for `build_system`, which raises the same. Raises `UsageError` too for an equation in space.
    """
    system = build_system(options, outputs)
    if not isinstance(system, Mechanism):
        raise UsageError(f"{system.options.kind} is a partial differential equation.", "Use it with `distlfm fit`.")
    return system


class WithPlugins(Config):
    """plugins: modules to import first, which register mechanisms, likelihoods, methods, schemes and readers."""

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
            # The user's own code: whatever it raises is reported, and --debug shows where.
            what = f"The plugin {name!r} cannot be imported: {type(error).__name__}: {error}."
            fix = _mended(error, file)
            if isinstance(error, OSError) and str(error.filename) == str(file.absolute()):
                what, fix = f"Cannot read the plugin {name}: {error.strerror}.", "Check the path and its permissions."
            raise UsageError(what, fix) from error
        _refuse_replaced(name, module, *before)


def _refuse_taken(name: str, module: str, file: Path) -> None:
    """Refuse a file whose name is another module's: one would be taken for the other."""
    if module in sys.stdlib_module_names:
        raise UsageError(f"The plugin {name!r} has the name of a module of Python itself.", f"Rename {file}.")
    if module in sys.modules:
        other = getattr(sys.modules[module], "__file__", None)
        if other is not None and Path(other).exists() and not file.samefile(other):
            what = f"The plugin {name!r} has the name of another module that is loaded, {other}."
            raise UsageError(what, f"Rename {file}.")


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
    shipped = owner.__module__.startswith("distlfm.")
    home = "it is shipped" if shipped else source_of(owner) or owner.__module__
    raise UsageError(
        f"The plugin {name!r} registers an equation {taken[0]!r}, and there is one of that name ({home}).",
        "Register it by another name.",
    )


def _mended(error: Exception, file: Path) -> str:
    """What to do about a module that cannot be imported."""
    if not file.is_file():
        place = file if file.is_absolute() else f"{file} in the current folder"
        return f"It must be {place}, or an installed module."
    if isinstance(error, ModuleNotFoundError) and error.name and file.with_name(f"{error.name}.py").is_file():
        return f"Name its neighbour first: plugins=[{file.with_name(error.name)}.py, {file}]."
    line = _line_in(error, lambda filename: Path(filename).name == file.name)
    return f"Mend {file}" + (f", line {line}." if line else ".")


def plugin_name(name: str) -> str:
    """The module that a config means, whether it gives its name or the path of its file."""
    return Path(name).stem if name.endswith(".py") else name


def located(names: Sequence[str]) -> tuple[str, ...]:
    """The same plugins, those in files by their absolute paths."""
    return tuple(str(_file(name).absolute()) if _file(name).is_file() else name for name in names)


def own_code(kind: str) -> str | None:
    """`code_of` an equation."""
    return code_of(written_class(find_system(kind)))


def code_of(owner: type) -> str | None:
    """A hash of the file that holds a user's own class, without comments and blanks; None for what is shipped.

    None also where there is no file, as in a notebook.
    """
    if owner.__module__.startswith("distlfm."):
        return None
    try:
        return digest(ast.dump(ast.parse(Path(source_of(owner)).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return None


def _file(name: str) -> Path:
    return Path(name if name.endswith(".py") else f"{name}.py")
