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
from collections.abc import Callable, Mapping, Sequence
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
    """Options that every mechanism takes; a mechanism adds its own in a subclass."""

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
    """An equation with named outputs and forces. force_dimension: what forces are measured in, if that is known.

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
    def _options(cls, outputs: Sequence[str] | str = (), /, **given: Any) -> MechanismConfig:
        """The options that a call names one by one."""
        if not cls.kind:
            raise UsageError(f"{cls.__name__} has no name.", f'Write @register("{cls.__name__.lower()}") above it.')
        if "outputs" in given and not outputs:
            outputs = given.pop("outputs")
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
        """The unknowns Φ with their default priors."""

    def settled(self) -> list[Parameter]:
        """The parameters with the priors and known values of the options put in."""
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
    """Class decorator: make a mechanism known to configs and the command line under `kind`."""

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
        """t: [...], y: [..., D], f: [..., L], values: each [..., K] → ẏ [..., D].

        Leading dimensions of `t` and `values` may be of size 1, or missing, where those of `y` and `f` are longer.
        """

    @abstractmethod
    def initial_state(self, values: Values) -> Tensor:
        """The state at the first time, [..., D]."""

    def observe(self, y: Tensor, values: Values) -> Tensor:
        """State [..., D] → what the data show, [..., P]."""
        del values
        return y

    def act(self, f: Tensor, values: Values) -> Tensor:
        """The force [..., L] as it is shown to people; a mechanism whose force has a meaning after G says so here."""
        del values
        return f

    def force_input(self, t: Tensor, y: Tensor) -> Tensor:
        """What the Gaussian process takes as input, [..., d]: time, unless a mechanism feeds it the state."""
        del y
        return t.unsqueeze(-1)


def join_states(*states: Tensor) -> Tensor:
    """Join states [...] that may differ in leading dimensions of size 1 into one tensor [..., D]."""
    return torch.stack(torch.broadcast_tensors(*states), -1)


def zero_state(values: Values, num_states: int) -> Tensor:
    """Return a start at zero with the leading dimensions of the parameters, [..., D]."""
    some = next(iter(values.values()))
    return torch.zeros((*some.shape[:-1], num_states), dtype=some.dtype)
