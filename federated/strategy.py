"""How sites' models become one: Flower's strategies, and how many sites are at both ends of a round.

One survivor must never become the common model, and a server must not wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg
from numpy.typing import NDArray

from distlfm.errors import WorkError
from distlfm.federated.codec import SHARED, Vector
from distlfm.federated.refused import Reason
from distlfm.federated.secure.grid import LOST, VOTES
from distlfm.federated.secure.mod import WEIGHT
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


MOMENTS = ("m_t", "v_t")


def make_strategy(programme: ProgrammeConfig, kept: Mapping[str, NDArray[Any]]) -> FedAvg:
    """The strategy of a programme, with the `moments` that were kept of it.

    FedProx is FedAvg at the server: its term is in the sites' loss.
    """
    chosen = programme.strategy
    if not isinstance(chosen, FedAdamConfig):
        return FedAvg()
    strategy = FedAdam(eta=chosen.lr, beta_1=chosen.beta_1, beta_2=chosen.beta_2, tau=chosen.tau)
    for name in MOMENTS:
        held = {key.split("/", 1)[1]: value for key, value in kept.items() if key.startswith(f"{name}/")}
        setattr(strategy, name, held or None)
    return strategy


def joined(strategy: FedAvg, number: int, before: Vector, replies: Sequence[Message]) -> Vector:
    """The common weights [D] after a round, from those before it and the replies of enough sites."""
    if isinstance(strategy, FedAdam):
        strategy.current_arrays = {SHARED: before}
    arrays, _ = strategy.aggregate_train(number, replies)
    assert arrays is not None
    return np.asarray(arrays[SHARED].numpy(), np.float64)


def survivors(replies: Iterable[Message]) -> int:
    """Sites whose work is in the replies: a masked sum says how many; else each reply without an error is one."""
    count = 0
    for reply in replies:
        if not reply.has_error():
            metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
            sites = metrics.get(SITES)
            count += round(sites) if isinstance(sites, int | float) else 1
    return count


def reasons(replies: Iterable[Message]) -> list[str]:
    """Why sites are not in the replies, each reason once. They are strangers' words: printable, and not long."""
    metrics = {str(reply.error.reason) for reply in replies if reply.has_error()}
    return sorted(reason[:LONGEST_REASON].rstrip(".") for reason in metrics if reason.isprintable())


def tally(replies: Iterable[Message]) -> tuple[int, int]:
    """How many sites voted for the model that was measured, and how many against it."""
    records = [reply.content.config_records.get(VOTES) for reply in replies if not reply.has_error()]
    counts = [(int(str(one["for"])), int(str(one["against"]))) for one in records if one is not None]
    return sum(one for one, _ in counts), sum(one for _, one in counts)


def forget(strategy: FedAvg) -> None:
    """Let a strategy begin anew, after its last step was taken back."""
    for name in MOMENTS:
        if hasattr(strategy, name):
            setattr(strategy, name, None)


def unbounded(programme: ProgrammeConfig, size: float, update: Vector, replies: Sequence[Message]) -> str:
    """Why the mean update [D] of a round cannot be one of honest sites; empty if it can. size: of the whole operator.

    Within a masked sum a site can claim what it likes. Of the opened sum it is seen how many patients all claim, and
    how far the model would go.
    """
    claimed = overclaimed(programme, replies, "train")
    if claimed:
        return claimed
    length, most = float(np.linalg.norm(update)), programme.largest_update * size
    if not length <= most:
        return f"the update is {length:.3g} long, and {most:.3g} is the longest of honest sites (largest_update)"
    return ""


def overclaimed(programme: ProgrammeConfig, replies: Sequence[Message], kind: str) -> str:
    """Say by how much the sites of an opened sum count for more than they may; empty if they do not."""
    metrics = [one.content.metric_records for one in replies if not one.has_error()]
    claims = [next(iter(one.values()), MetricRecord()) for one in metrics]
    patients, sites = (sum(float(str(one.get(name, 0.0))) for one in claims) for name in (WEIGHT, SITES))
    most = programme.most_claimed(kind)
    if patients > sites * most + CLAIM_GRAIN:
        return f"the sites count for {patients:g}, more than {most} each (most_examples)"
    return ""


CLAIM_GRAIN = 1e-3
"""Far more than what counts lose by becoming whole numbers, and far less than a patient."""


def advice(why: Sequence[str]) -> str:
    """What to do about sites that were not in a sum."""
    if Reason.COHORT_FIXED.value in why or Reason.ROSTER.value in why:
        return (
            "Start the missing sites, then the run again; or agree with all sites on rounds with covering noise (clip, "
            "and fixed_cohort without train, in their policies)."
        )
    if Reason.DISK.value in why:
        return "Free space there: the sites go on by themselves, and the run when it is started again."
    return "See the sites' audit logs for why they refused or were lost; then start the run again."


def lost_nodes(replies: Iterable[Message]) -> set[int]:
    """The nodes that did not answer in time."""
    return {one.metadata.src_node_id for one in replies if one.has_error() and one.error.reason == LOST}


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
    held = {name: getattr(strategy, name, None) or {} for name in MOMENTS}
    return {f"{name}/{key}": np.asarray(value) for name in MOMENTS for key, value in held[name].items()}
