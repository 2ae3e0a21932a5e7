"""The contract of an equation: a vector field, its named parameters, where it starts, and what is observed.

Shapes: leading dimensions `…` are free; `D` states, `P` observed outputs, `L` forces, `K` elements of a parameter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distlfm.config import Config, build, nearest
from distlfm.errors import UsageError
from distlfm.mechanisms.parameters import Parameter, Values
from distlfm.mechanisms.priors import Prior

Initial = Literal["steady", "free", "zero"]


class MechanismConfig(Config):
    """Options that every mechanism takes; a mechanism adds its own in a subclass.

    priors: by parameter name. fixed: known elements, `{sensitivity: {p21: 1.0}}`.
    """

    kind: str
    outputs: tuple[str, ...] = ()
    priors: Mapping[str, Prior] = {}
    fixed: Mapping[str, Mapping[str, float]] = {}


class Mechanism(ABC):
    """One equation `ẏ = h(t, y, f; Φ)`. A new one fills in `parameters`, `vector_field` and `initial_state`."""

    Options: ClassVar[type[MechanismConfig]] = MechanismConfig
    force_names: tuple[str, ...] = ("force",)

    def __init__(self, options: MechanismConfig) -> None:
        self.options = options
        self.outputs = tuple(options.outputs)

    @property
    def num_states(self) -> int:
        """D; as many as outputs unless a mechanism has hidden states."""
        return len(self.outputs)

    @abstractmethod
    def parameters(self) -> list[Parameter]:
        """The unknowns Φ with their default priors."""

    @abstractmethod
    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        """t: [...], y: [..., D], f: [..., L], values: each [..., K] → ẏ [..., D]."""

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

    def settled(self) -> list[Parameter]:
        """The parameters with the priors and known values of the options put in."""
        parameters = self.parameters()
        known = [parameter.name for parameter in parameters]
        for name in (*self.options.priors, *self.options.fixed):
            if name not in known:
                raise UsageError(f"{self.options.kind} has no parameter {name!r}.", nearest(name, known))
        return [
            Parameter(
                parameter.name,
                parameter.labels,
                self.options.priors.get(parameter.name, parameter.prior),
                parameter.kind,
                parameter.positive,
                self.options.fixed.get(parameter.name, parameter.fixed),
            )
            for parameter in parameters
        ]


REGISTRY: dict[str, type[Mechanism]] = {}


def register(kind: str) -> Callable[[type[Mechanism]], type[Mechanism]]:
    """Class decorator: make a mechanism known to configs and the command line under `kind`."""

    def keep(mechanism: type[Mechanism]) -> type[Mechanism]:
        REGISTRY[kind] = mechanism
        return mechanism

    return keep


def build_mechanism(options: Mapping[str, object], outputs: Sequence[str] = ()) -> Mechanism:
    """The mechanism that a config section describes.

    `outputs` are the data's, taken if the section names none; without either the mechanism's own defaults hold.
    """
    kind = str(options.get("kind", ""))
    if kind not in REGISTRY:
        raise UsageError(f"There is no mechanism {kind!r}.", nearest(kind, sorted(REGISTRY)))
    mechanism = REGISTRY[kind]
    content = dict(options)
    if not content.get("outputs"):
        content.pop("outputs", None)
        if outputs:
            content["outputs"] = tuple(outputs)
    return mechanism(build(mechanism.Options, content, source="mechanism"))


def start_parameter(outputs: Sequence[str], prior: Prior, *, positive: bool = False) -> Parameter:
    """The unknown initial state of a mechanism whose start is free."""
    return Parameter("initial", tuple(outputs), prior, kind="initial", positive=positive)


def zero_state(values: Values, num_states: int) -> Tensor:
    """A start at zero with the leading dimensions of the parameters, [..., D]."""
    some = next(iter(values.values()))
    return torch.zeros((*some.shape[:-1], num_states), dtype=some.dtype)
