"""How sites' models become one: Flower's strategies, with a fewest number of sites at both ends of a round.

One survivor must never become the common model, and a server must not wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg
from numpy.typing import NDArray

from distlfm.errors import WorkError
from distlfm.federated.refused import Reason
from distlfm.federated.secure.records import SITES
from distlfm.federated.settings import FedAdamConfig, ProgrammeConfig

POLL = 0.5
"""Seconds between two looks at which sites are there."""

LONGEST_REASON = 200


class TooFewSites(WorkError):
    """A round could not begin, or could not end, with as many sites as it needs. why: what the others said."""

    def __init__(self, cause: str, why: Sequence[str] = (), fix: str = "") -> None:
        super().__init__(cause, fix or advice(why))
        self.why = why


class Guarded(FedAvg):
    """FedAvg that asks all sites that are there, waits for enough of them up to a deadline, and counts who answered."""

    min_sites: int = 3
    deadline: float = 600.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a site, all alike."""
        nodes = wait_for_sites(grid, self.min_sites, self.deadline)
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self._construct_messages(record, nodes, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The weighted mean, or nothing if too few sites are in it."""
        held = list(replies)
        if survivors(held) < self.min_sites:
            return None, None
        arrays, metrics = super().aggregate_train(server_round, held)
        return arrays, metrics


class GuardedFedAdam(FedAdam, Guarded):
    """Adam on the mean update of a guarded round."""


def make_strategy(programme: ProgrammeConfig) -> FedAvg:
    """The strategy of a programme. FedProx is FedAvg at the server: its term is in the sites' loss."""
    chosen = programme.strategy
    found: Guarded
    if isinstance(chosen, FedAdamConfig):
        found = GuardedFedAdam(eta=chosen.lr, beta_1=chosen.beta_1, beta_2=chosen.beta_2, tau=chosen.tau)
    else:
        found = Guarded()
    found.min_sites, found.deadline = programme.min_sites, programme.deadline
    return found


def survivors(replies: Iterable[Message]) -> int:
    """Sites whose work is in the replies: a masked sum says how many; else each reply without an error is one."""
    count = 0
    for reply in replies:
        if reply.has_error():
            continue
        told = next(iter(reply.content.metric_records.values()), None)
        sites = None if told is None else told.get(SITES)
        count += round(sites) if isinstance(sites, int | float) else 1
    return count


def reasons(replies: Iterable[Message]) -> list[str]:
    """Why sites are not in the replies, each reason once. They are strangers' words: printable, and not long."""
    told = {str(reply.error.reason) for reply in replies if reply.has_error()}
    return sorted(reason[:LONGEST_REASON].rstrip(".") for reason in told if reason.isprintable())


def advice(why: Sequence[str]) -> str:
    """What to do about sites that were not in a sum."""
    if Reason.DISK.value in why:
        return "Free space there: the sites go on by themselves, and the run when it is started again."
    return "See the sites' audit logs for why they refused or were lost; then start the run again."


def wait_for_sites(grid: Grid, fewest: int, deadline: float) -> list[int]:
    """The sites that are there, once there are enough of them."""
    until = time.monotonic() + deadline
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= fewest:
            return nodes
        if time.monotonic() >= until:
            raise TooFewSites(
                f"Only {len(nodes)} of at least {fewest} sites came within {deadline:g} seconds.",
                fix="Start the missing sites, or wait longer with a larger deadline; then start the run again.",
            )
        time.sleep(min(POLL, max(0.0, until - time.monotonic())))


def moments(strategy: FedAvg) -> dict[str, NDArray[Any]]:
    """What a strategy remembers from round to round, to be kept on the disk."""
    found: dict[str, NDArray[Any]] = {}
    for name in ("m_t", "v_t"):
        held = getattr(strategy, name, None)
        if held:
            found |= {f"{name}/{key}": np.asarray(value) for key, value in held.items()}
    return found


def restore(strategy: FedAvg, kept: Mapping[str, NDArray[Any]]) -> None:
    """The inverse."""
    for name in ("m_t", "v_t"):
        held = {key.split("/", 1)[1]: value for key, value in kept.items() if key.startswith(f"{name}/")}
        if held:
            setattr(strategy, name, held)
