"""The contract of an equation: a vector field, its named parameters, where it starts, and what is observed.

`register` makes an equation known by the name that a config gives it.

Shapes: leading dimensions `…` are free; `D` states, `P` observed outputs, `L` forces, `K` elements of a parameter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor

from distlfm.dimension import TIME, Dimension
from distlfm.errors import UsageError
from distlfm.mechanisms.parameters import Parameter, Values
from distlfm.mechanisms.priors import Prior
from distlfm.mechanisms.system import MechanismConfig, System

REGISTRY: dict[str, type[System]] = {}

Kind = TypeVar("Kind", bound=System)


def register(kind: str) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: make a mechanism known to configs and the command line under `kind`."""

    def keep(mechanism: type[Kind]) -> type[Kind]:
        if not (isinstance(mechanism, type) and issubclass(mechanism, System)):
            name = getattr(mechanism, "__name__", repr(mechanism))
            raise UsageError(f"{name} is registered as a mechanism, and is none.", f"Write class {name}(Mechanism).")
        mechanism.kind = kind
        REGISTRY[kind] = mechanism
        return mechanism

    return keep


__all__ = ["Initial", "Mechanism", "MechanismConfig", "join_states", "register", "start_parameter", "zero_state"]

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


def start_parameter(
    outputs: Sequence[str],
    prior: Prior,
    *,
    positive: bool = False,
    dimension: Dimension | Mapping[str, Dimension] | None = None,
) -> Parameter:
    """The unknown initial state of a mechanism whose start is free."""
    meaning = "state at the first time"
    return Parameter("initial", tuple(outputs), prior, "initial", positive, dimension=dimension, meaning=meaning)


def join_states(*states: Tensor) -> Tensor:
    """States [...] that may differ in leading dimensions of size 1 → one tensor [..., D]."""
    return torch.stack(torch.broadcast_tensors(*states), -1)


def zero_state(values: Values, num_states: int) -> Tensor:
    """A start at zero with the leading dimensions of the parameters, [..., D]."""
    some = next(iter(values.values()))
    return torch.zeros((*some.shape[:-1], num_states), dtype=some.dtype)
