"""What the ranks of a helper group decide together, so that none waits for another that has given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")
Number = TypeVar("Number", np.float64, np.int64)


def on_root(comm: Any, work: Callable[[], Result]) -> Result:
    """Do `work` on rank 0 and give its result, or its exception, to every rank."""
    result, failure = comm.bcast(_tried(work) if comm.rank == 0 else None, root=0)
    if failure is not None:
        raise failure
    return result  # type: ignore[no-any-return]


def together(comm: Any, work: Callable[[], Result]) -> Result:
    """Do `work`, which must not communicate, on every rank; if it fails on one, all raise what the lowest such did."""
    result, failure = _tried(work)
    failures = [error for error in comm.allgather(failure) if error is not None]
    if failures:
        raise failures[0]
    return result  # type: ignore[return-value]


def _tried(work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def concatenated(comm: Any, part: NDArray[Number]) -> NDArray[Number]:
    """The parts [n_r, …] of all ranks one after another [Σ n_r, …], on every rank."""
    if comm.size == 1:
        return part
    return np.concatenate(comm.allgather(np.ascontiguousarray(part)))


def on_root_concatenated(comm: Any, part: NDArray[Number]) -> NDArray[Number]:
    """The parts [n_r, …] of all ranks one after another, on rank 0; elsewhere none [0, …]."""
    parts = comm.gather(np.ascontiguousarray(part), root=0) if comm.size > 1 else [part]
    return part[:0] if parts is None else np.concatenate(parts)
