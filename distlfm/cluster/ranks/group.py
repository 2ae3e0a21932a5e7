"""Ranks of a torch process group: gradients averaged by DistributedDataParallel, over NCCL on GPUs and Gloo on CPUs.

`RankTask` is what processes that train together are given to do.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distlfm.cluster.ranks.place import Place
from distlfm.errors import DistlfmWarning, WorkError
from distlfm.lfo.ranks import Alone, Ranks
from distlfm.runtime.process import number_in


class RankTask(ABC):
    """Done by all ranks alike; it can be pickled, and opens on the spot what cannot."""

    @abstractmethod
    def __call__(self, ranks: Ranks, stop: Callable[[], bool]) -> dict[str, Any]:
        """Do it. Gives plain data, of which the first rank's counts. stop: asked between steps; ranks may differ."""


PATIENCE_SECONDS = 1800.0
"""How long a rank may wait for another, at the start, at each step, and while the first one writes."""


class GroupRanks(Ranks):
    """The ranks of the process group that this process has joined."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.world, self.device = dist.get_rank(), dist.get_world_size(), device

    def wrap(self, module: nn.Module) -> nn.Module:
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices)

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone().to(self.device)
        dist.all_reduce(total)
        return total.to(tensor.device)

    def barrier(self) -> None:
        dist.barrier()


def device_of(place: Place, environment: Mapping[str, str] = os.environ) -> torch.device:
    """A GPU of its own for each rank of a machine, if there are enough; else the CPU, with a message that says why."""
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen >= place.local_world:
        return torch.device("cuda", place.local_rank)
    if seen and sees_its_own(place, environment):
        return torch.device("cuda", 0)
    if seen and place.local_rank == 0:
        warnings.warn(
            f"{place.local_world} ranks of this machine see {seen} GPU{'s' if seen > 1 else ''}, too few for one each, "
            "and train on the CPU: start as many ranks as there are GPUs.",
            DistlfmWarning,
            stacklevel=2,
        )
    return torch.device("cpu")


def sees_its_own(place: Place, environment: Mapping[str, str]) -> bool:
    """Whether Slurm shows each rank of a step GPUs of its own, as `--gpus-per-task` does.

    Other launchers do not say: two ranks might be shown the same one, which NCCL refuses.
    """
    if place.launcher != "srun":
        return False
    if environment.get("SLURM_GPUS_PER_TASK"):
        return True
    return number_in(environment, "SLURM_GPUS_ON_NODE") >= place.local_world


@contextmanager
def joined(place: Place, patience: float = PATIENCE_SECONDS) -> Iterator[Ranks]:
    """Be one of the ranks; a single process needs no group."""
    device = device_of(place)
    if place.world == 1:
        yield Alone(device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo",
            init_method=place.rendezvous,
            rank=place.rank,
            world_size=place.world,
            timeout=timedelta(seconds=patience),
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise WorkError(
            f"Rank {place.rank} could not join the other {place.world - 1} at {place.rendezvous}: {error}.",
            "Check that all ranks were started, and that they reach the first one's node.",
        ) from error
    try:
        yield GroupRanks(device)
    finally:
        dist.destroy_process_group()
