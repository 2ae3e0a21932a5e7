"""The contract of a posterior: whatever the method, it predicts force and outputs anywhere, as mixtures over draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from distlfm.inference.mixture import Mixture
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations


@dataclass(frozen=True)
class Predicted:
    """force: mixture of [S, B, L, Q]; outputs: mixture of [S, B, P, Q], without measurement noise."""

    force: Mixture
    outputs: Mixture


@dataclass(frozen=True)
class Unknowns:
    """Weighted draws of z. proposals: [J, B, n]; weights: [J, B], summing to one over J."""

    proposals: Tensor
    weights: Tensor


class Posterior(ABC):
    """What a method knows of B instances after seeing their data. at_once: many times cost less together than apart."""

    at_once = False
    method: str
    model: Model
    observations: Observations

    @abstractmethod
    def unknowns(self) -> Unknowns:
        """Draws of the unknowns z."""

    @abstractmethod
    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        """Force and outputs of the instances `rows` [A] at sorted times [A, Q], none before the first observation."""

    @abstractmethod
    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Joint draws at sorted times [A, Q]: forces [count, A, L, Q] and the outputs they drive, [count, A, P, Q]."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Tensors with a leading instance dimension, from which the method's `restore` makes the posterior anew."""


@dataclass(frozen=True)
class Fit:
    """What a method returns for B instances. bound: [B]; status: [B]; trace: [iterations, B]; effective: [B].

    notices: what a user should know of each instance whatever its status, empty where there is nothing to say.
    """

    posterior: Posterior
    bound: Tensor
    status: Tensor
    iterations: Tensor
    effective: Tensor
    trace: Tensor
    notices: tuple[str, ...] = ()
