"""What the training loop asks of the processes that train together; without any, `Alone`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Ranks(ABC):
    """The processes of one training, seen from one of them."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this one writes."""
        return self.rank == 0

    @abstractmethod
    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, with gradients that are the mean over ranks."""

    @abstractmethod
    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, on every rank."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for the others."""

    def share(self, count: int) -> slice:
        """This rank's part of `count` things; parts differ by one at most."""
        first, last = (count * k // self.world for k in (self.rank, self.rank + 1))
        return slice(first, last)


class Alone(Ranks):
    """One process."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.rank, self.world, self.device = 0, 1, torch.device(device)

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def barrier(self) -> None:
        return None
