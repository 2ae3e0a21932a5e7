"""The contract of an equation: outputs, forces, unknowns with their priors, and for an ODE its vector field and start.

`System` is what every equation is to inference, ordinary or partial; `Mechanism` is an ordinary one. A config may say
that values are known: a number for all elements of a parameter, or one for each by its name. `register` makes an
equation known by the name that a config gives it.

Shapes: leading dimensions `…` are free; `D` states, `P` observed outputs, `L` forces, `K` elements of a parameter.
"""

from __future__ import annotations

import inspect
import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from distlfm.config import Config, build, nearest
from distlfm.errors import UsageError
from distlfm.instance import TIME, Dimension
from distlfm.mechanisms.priors import Parameter, Prior, Values


def _numbers(given: Any) -> Any:
    """Refuse what is not a number before a union of types complains for each of its members."""
    for label, value in given.items() if isinstance(given, Mapping) else [("", given)]:
        if not _is_number(value):
            what = f"{value!r} is not a number" if given is value else f"{label} is {value!r}, which is not a number"
            raise ValueError(
                f"{what}. Give a number for all elements, such as 1.0, or one for each by name: {{NAME: 1.0}}"
            )
    return given


def _is_number(value: Any) -> bool:
    """Also as text: YAML reads 1e-3 so."""
    if isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


Known = Annotated[Mapping[str, float] | float, BeforeValidator(_numbers)]


class MechanismConfig(Config):
    """Options that every mechanism takes; a mechanism adds its own in a subclass.

    outputs: names of the outputs; those of the data where it is empty. priors: those that replace the default ones, by
    the parameter's name. fixed: known values by the parameter's name.
    """

    kind: str
    outputs: tuple[str, ...] = ()
    priors: Mapping[str, Prior] = Field(default={}, description="By the parameter's name.")
    fixed: Mapping[str, Known] = Field(
        default={}, description="Known elements, {sensitivity: {p21: 1.0}}, or a number for all of them."
    )


def by_options(init: Callable[[Any, Any], None]) -> Callable[..., None]:
    """Let a mechanism's `__init__(options)` take the options one by one: `Transcription(["p21"], fixed=…)` too."""

    @wraps(init)
    def __init__(this: System, *outputs: Any, **options: Any) -> None:
        only = options["options"] if set(options) == {"options"} else outputs[0] if len(outputs) == 1 else None
        init(this, only if isinstance(only, MechanismConfig) else this._options(*outputs, **options))

    return __init__


class System(ABC):
    """An equation with named outputs and forces. Its options are given one by one, by their names in a config.

    outputs: names of the P outputs, as a list, or as a text if there is one. priors: those that replace the default
    ones, by the parameter's name. fixed: known values by the parameter's name: a number for all its elements, or one
    for each by its name, `{"sensitivity": {"p21": 1.0}}`. Raises `UsageError` if an option is not known, or wrong.

    force_dimension: what forces are measured in, if that is known.
    prior_units: of `time`, `value` and `position`, where the default priors are numbers of certain units.
    drift: the section `likelihood.drift` where a config has none.
    force_priors, noise_prior: of the kernel's parameters by name, and of the noise, where a config leaves them out; an
    equation that has units of its own knows better than numbers around one.
    never_negative: whether outputs are of something that is never measured below zero; such values give a notice.
    """

    Options: ClassVar[type[MechanismConfig]] = MechanismConfig
    kind: ClassVar[str] = ""
    force_names: tuple[str, ...] = ("force",)
    force_dimension: Dimension | None = None
    prior_units: ClassVar[Mapping[str, str]] = {}
    force_priors: ClassVar[Mapping[str, Prior]] = {}
    noise_prior: ClassVar[Prior | None] = None
    drift: ClassVar[Mapping[str, Any] | None] = None
    never_negative: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = cls.__dict__.get("__init__")
        if own is not None and list(inspect.signature(own).parameters)[1:] == ["options"]:
            cls.__init__ = by_options(own)  # type: ignore[method-assign]

    @by_options
    def __init__(self, options: MechanismConfig) -> None:
        self.options = options
        self.outputs = tuple(options.outputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({reprlib.repr(list(self.outputs))})"

    @classmethod
    def _options(cls, outputs: Sequence[str] | str = (), /, *others: object, **given: Any) -> MechanismConfig:
        """The options that a call names one by one."""
        if not cls.kind:
            raise UsageError(f"{cls.__name__} has no name.", f'Write @register("{cls.__name__.lower()}") above it.')
        if "outputs" in given and not outputs:
            outputs = given.pop("outputs")
        if others or not isinstance(outputs, Iterable):
            shown = ", ".join(map(repr, (outputs, *others)))
            fix = f'Give the names of its outputs in a list: {cls.__name__}(["p21"]).'
            raise UsageError(f"{cls.__name__} is given {shown}.", fix)
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        content = {"kind": cls.kind, **({"outputs": names} if names else {}), **given}
        return build(cls.Options, content, source=cls.__name__)

    @property
    @abstractmethod
    def force_dims(self) -> int:
        """How many numbers the Gaussian process takes as input."""

    @property
    def input_dimensions(self) -> tuple[Dimension | None, ...]:
        """What each of these numbers is measured in, if that is known."""
        return (None,) * self.force_dims

    @abstractmethod
    def parameters(self) -> list[Parameter]:
        """Return the unknowns Φ with their default priors."""

    def settled(self) -> list[Parameter]:
        """Return the parameters with the priors and known values of the options put in.

        Raises `UsageError` if an option names a parameter that is not there.
        """
        parameters = self.parameters()
        known = [parameter.name for parameter in parameters]
        for name in (*self.options.priors, *self.options.fixed):
            if name not in known:
                raise UsageError(f"{self.options.kind} has no parameter {name!r}.", nearest(name, known))
        priors = self.options.priors
        return [replace(one, prior=priors.get(one.name, one.prior), fixed=self._fixed(one)) for one in parameters]

    def _fixed(self, parameter: Parameter) -> Mapping[str, float]:
        given = self.options.fixed.get(parameter.name, parameter.fixed)
        return given if isinstance(given, Mapping) else dict.fromkeys(parameter.labels, given)


REGISTRY: dict[str, type[System]] = {}

Kind = TypeVar("Kind", bound=System)


def register(kind: str) -> Callable[[type[Kind]], type[Kind]]:
    """Return a class decorator that makes a mechanism known to configs and the command line.

    kind: its name there. Raises `UsageError` if the class is not a mechanism.
    """

    def keep(mechanism: type[Kind]) -> type[Kind]:
        if not (isinstance(mechanism, type) and issubclass(mechanism, System)):
            name = getattr(mechanism, "__name__", repr(mechanism))
            raise UsageError(f"{name} is registered as a mechanism, and is not one.", f"Write class {name}(Mechanism).")
        mechanism.kind = kind
        REGISTRY[kind] = mechanism
        return mechanism

    return keep


Initial = Literal["steady", "free", "zero"]


class Mechanism(System):
    """One equation `ẏ = h(t, y, f; Φ)`. A new one fills in `parameters`, `vector_field` and `initial_state`."""

    @property
    def num_states(self) -> int:
        """D; as many as outputs unless a mechanism has hidden states."""
        return len(self.outputs)

    @property
    def force_dims(self) -> int:
        return self.force_input(torch.zeros(()), torch.zeros(self.num_states)).shape[-1]

    @property
    def input_dimensions(self) -> tuple[Dimension | None, ...]:
        in_time = type(self).force_input is Mechanism.force_input
        return (TIME,) if in_time else super().input_dimensions

    @abstractmethod
    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        """Return the slope ẏ [..., D] of the state.

        t: times [...]. y: state [..., D]. f: forces [..., L]. values: parameters by name, each [..., K]. Leading
        dimensions of `t` and `values` may be of size 1, or missing, where those of `y` and `f` are longer.
        """

    @abstractmethod
    def initial_state(self, values: Values) -> Tensor:
        """Return the state at the first time, [..., D]. values: parameters by name, each [..., K]."""

    def observe(self, y: Tensor, values: Values) -> Tensor:
        """Return what the data show, [..., P]: the state itself, unless a mechanism has hidden states.

        y: state [..., D]. values: parameters by name, each [..., K].
        """
        del values
        return y

    def act(self, f: Tensor, values: Values) -> Tensor:
        """Return the force [..., L] as it is shown to people: after G, where a mechanism gives that a meaning.

        f: the Gaussian process's values [..., L]. values: parameters by name, each [..., K].
        """
        del values
        return f

    def force_input(self, t: Tensor, y: Tensor) -> Tensor:
        """Return what the Gaussian process takes as input, [..., d]: time, unless a mechanism feeds it the state.

        t: times [...]. y: state [..., D].
        """
        del y
        return t.unsqueeze(-1)


def join_states(*states: Tensor) -> Tensor:
    """Return D `states`, each [...], as one tensor [..., D]; they may differ in leading dimensions of size 1."""
    return torch.stack(torch.broadcast_tensors(*states), -1)


def zero_state(values: Values, num_states: int) -> Tensor:
    """Return a start at zero, [..., D].

    values: parameters by name, each [..., K], whose leading dimensions it takes. num_states: D.
    """
    some = next(iter(values.values()))
    return torch.zeros((*some.shape[:-1], num_states), dtype=some.dtype)
