"""How a latent force acts on a system: differentiable responses G, composable with any mechanism.

An elementwise response maps [..., L] → [..., L]; one that is `per_output` mixes the forces, [..., L] → [..., P].
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.mechanisms.priors import Normal, Parameter, Values

FLOOR = 1e-12
"""Keeps the logarithm of a positive response finite."""


class ResponseConfig(Config):
    """`kind`, and for `hill` and `mlp` their sizes; `compose` applies further responses first, in order."""

    kind: Literal["identity", "softplus", "exp", "hill", "mlp"] = "identity"
    hidden: int = Field(default=4, ge=1)
    compose: tuple[Literal["identity", "softplus", "exp"], ...] = ()


class Response(ABC):
    """A differentiable function of the forces, with parameters of its own where it needs them."""

    per_output = False

    def parameters(self, forces: Sequence[str], outputs: Sequence[str]) -> list[Parameter]:
        """The unknowns of the response."""
        del forces, outputs
        return []

    @abstractmethod
    def __call__(self, f: Tensor, values: Values) -> Tensor:
        """f: [..., L] → [..., L], or [..., P] if `per_output`."""


class Identity(Response):
    """G(f) = f."""

    def __call__(self, f: Tensor, values: Values) -> Tensor:
        del values
        return f


class Softplus(Response):
    """G(f) = log(1 + e^f): positive, and linear for large forces."""

    def __call__(self, f: Tensor, values: Values) -> Tensor:
        del values
        return softplus(f)


class Exp(Response):
    """G(f) = e^f."""

    def __call__(self, f: Tensor, values: Values) -> Tensor:
        del values
        return torch.exp(f)


class Hill(Response):
    """∏ g^w / (∏ g^w + e^{−w0}) of the positive forces g = softplus(f).

    Written as sigmoid(w0 + Σ w log g). A positive weight activates and a negative one represses; weights of one sign
    cooperate, of different signs compete.
    """

    per_output = True

    def parameters(self, forces: Sequence[str], outputs: Sequence[str]) -> list[Parameter]:
        pairs = tuple(f"{output},{force}" if len(forces) > 1 else output for output in outputs for force in forces)
        return [
            Parameter("hill_weight", pairs, Normal(mean=1.0), "response", meaning="w, above 0 activates"),
            Parameter("hill_bias", tuple(outputs), Normal(), "response", meaning="w0, log-odds of the effect at g = 1"),
        ]

    def __call__(self, f: Tensor, values: Values) -> Tensor:
        weight = values["hill_weight"].unflatten(-1, (-1, f.shape[-1]))
        log_force = torch.log(softplus(f) + FLOOR)
        exponent = values["hill_bias"] + (weight * log_force.unsqueeze(-2)).sum(-1)
        return torch.exp(logsigmoid(exponent))


class MLP(Response):
    """A small network with one tanh layer, shared by no one: each instance has its own weights."""

    per_output = True

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    def parameters(self, forces: Sequence[str], outputs: Sequence[str]) -> list[Parameter]:
        def labels(*sizes: int) -> tuple[str, ...]:
            return tuple(",".join(map(str, place)) for place in itertools.product(*map(range, sizes)))

        inward, outward = labels(self.hidden, len(forces)), labels(len(outputs), self.hidden)
        last = Normal(sd=self.hidden**-0.5)
        return [
            Parameter("mlp_in", inward, Normal(), "response", meaning="weights of the first layer"),
            Parameter("mlp_bias", labels(self.hidden), Normal(), "response", meaning="biases of the first layer"),
            Parameter("mlp_out", outward, last, "response", meaning="weights of the last layer"),
        ]

    def __call__(self, f: Tensor, values: Values) -> Tensor:
        inner = values["mlp_in"].unflatten(-1, (self.hidden, -1))
        outer = values["mlp_out"].unflatten(-1, (-1, self.hidden))
        layer = torch.tanh((inner * f.unsqueeze(-2)).sum(-1) + values["mlp_bias"])
        mixed: Tensor = (outer * layer.unsqueeze(-2)).sum(-1)
        return mixed


class Composed(Response):
    """Elementwise responses first, in order, then the last one."""

    def __init__(self, first: Sequence[Response], last: Response) -> None:
        if any(response.per_output for response in first):
            raise UsageError("Only the last of composed responses may mix the forces.", "Put hill or mlp last.")
        self.first, self.last = tuple(first), last
        self.per_output = last.per_output

    def parameters(self, forces: Sequence[str], outputs: Sequence[str]) -> list[Parameter]:
        return self.last.parameters(forces, outputs)

    def __call__(self, f: Tensor, values: Values) -> Tensor:
        for response in self.first:
            f = response(f, values)
        return self.last(f, values)


SIMPLE: dict[str, type[Response]] = {"identity": Identity, "softplus": Softplus, "exp": Exp, "hill": Hill}


def build_response(config: ResponseConfig) -> Response:
    """The response that a config describes."""
    last = MLP(config.hidden) if config.kind == "mlp" else SIMPLE[config.kind]()
    first = [SIMPLE[kind]() for kind in config.compose]
    return Composed(first, last) if first else last
