"""Tensors that follow from sizes alone: computed once, and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

import torch

MOST = 256
P = ParamSpec("P")
T = TypeVar("T")


def table(function: Callable[P, T]) -> Callable[P, T]:
    """Keep what the function gives for each of its arguments.

    It is always computed outside of inference mode, in which queries are answered: training takes the same tensors, and
    gradients do not pass those that were made there.
    """
    return cast(Callable[P, T], lru_cache(maxsize=MOST)(torch.inference_mode(False)(function)))


@table
def ridge(size: int, weight: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What is added to a matrix [size, size] before it is inverted."""
    return weight * torch.eye(size, dtype=dtype, device=device)
