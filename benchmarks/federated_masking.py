"""What a secure sum costs a site and the server, by sites and weights, and how exact its mean is.

Seconds are of a processor: all sites and the server take turns in one process.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from benchmarks.goals import at_most
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.secure.mod import secure_mod
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.instance import FloatArray

WEIGHTS = (10_000, 100_000, 1_000_000)
SITES = (4, 16, 50)
ROUNDS = 3


def run(quick: bool = False) -> dict[str, Any]:
    weights, sites = (WEIGHTS[:2], SITES[:2]) if quick else (WEIGHTS, SITES)
    table = [
        {"sites": count, "weights": size, **_rounds(size, count, lose=False, rounds=1)}
        for count in sites
        for size in weights
    ]
    lost = _rounds(weights[-1], SITES[0], lose=True)
    whole = table[-1]
    by_sites = [one["site"] for one in table if one["weights"] == weights[-1]]
    return {
        "figures": {
            f"seconds of a site in a sum of {sites[-1]} sites, {weights[-1]:,} weights": at_most(whole["site"], 1.0),
            "the same, four sites of which one drops out": at_most(lost["site"], 1.0),
            "relative error of the mean": at_most(max(lost["error"], *(one["error"] for one in table)), 1e-6),
        },
        "table": table,
        "growth": {
            f"a site's seconds, {sites[0]} to {sites[-1]} sites": by_sites[-1] / by_sites[0],
            f"a site's seconds, {weights[0]:,} to {weights[-1]:,} weights": whole["site"]
            / table[-len(weights)]["site"],
        },
        "seconds of the server when one site drops out": lost["server"],
    }


def _rounds(size: int, count: int, lose: bool, rounds: int = ROUNDS) -> dict[str, float]:
    """The dearest site of the dearest of several rounds; with `lose`, one site is lost after it shared its secrets."""
    spent: dict[int, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        inner = LocalGrid(_app(spent), _sites(Path(folder), count), on_request=partial(_lose, count) if lose else None)
        carried = _Carried(inner)
        grid = SecureGrid(carried)
        found = {"site": 0.0, "server": 0.0, "error": 0.0, "bytes": 0.0}
        left = count - 1 if lose else count
        for number in range(rounds):
            spent.clear()
            carried.seconds = 0.0
            content = _request(size, number)
            start = time.process_time()
            replies = list(grid.send_and_receive([Message(content, node, "train") for node in inner.get_node_ids()]))
            total = time.process_time() - start
            mean = (
                replies[0].content.array_records["arrays"]["shared"].numpy()
                - content.array_records["arrays"]["shared"].numpy()
            )
            weights = [_count(node) for node in range(1, left + 1)]
            terms = [weight * _step(node, size) for node, weight in enumerate(weights, start=1)]
            expected = np.sum(terms, axis=0) / sum(weights)
            found["site"] = max(found["site"], *spent.values())
            found["server"] = max(found["server"], total - carried.seconds)
            found["error"] = max(found["error"], float(np.linalg.norm(mean - expected) / np.linalg.norm(expected)))
            found["bytes"] = max(found["bytes"], grid.reports[-1].received / left)
    return found


class _Carried(LocalGrid):
    """The same grid, that counts what the sites and the wire take."""

    def __init__(self, inner: LocalGrid) -> None:
        self.__dict__.update(inner.__dict__)
        self.seconds = 0.0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        start = time.process_time()
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.seconds += time.process_time() - start
        self.wire.clear()
        return replies


def _app(spent: dict[int, float]) -> ClientApp:
    """Its own work is not counted: `spent` holds what the mod takes, by node."""

    def timed(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        start = time.process_time()
        reply = secure_mod(message, context, call_next)
        spent[context.node_id] += time.process_time() - start
        return reply

    app = ClientApp(mods=[timed])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        start = time.process_time()
        weights = message.content.array_records["arrays"]["shared"].numpy()
        moved = ArrayRecord({"shared": Array(weights + _step(context.node_id, len(weights)))})
        metrics = MetricRecord({"num-examples": _count(context.node_id), "loss": 1.0})
        reply = Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)
        spent[context.node_id] -= time.process_time() - start
        return reply

    return app


def _step(node: int, size: int) -> FloatArray:
    return np.random.default_rng(node).normal(scale=1e-3, size=size)


def _count(node: int) -> float:
    return 10.0 + 7.0 * node


def _request(size: int, number: int) -> RecordDict:
    weights = np.random.default_rng(0).normal(size=size)
    return RecordDict(
        {"arrays": ArrayRecord({"shared": Array(weights)}), "config": ConfigRecord({"server-round": number})}
    )


def _lose(last: int, message: Message) -> Message | None:
    is_last = message.metadata.dst_node_id == last
    return None if is_last and message.content.config_records["secagg"]["stage"] == "mask" else message


def _sites(folder: Path, count: int) -> Mapping[int, Any]:
    keys = {f"site-{number:02d}": Ed25519PrivateKey.generate() for number in range(1, count + 1)}
    pins = {name: public_hex(key) for name, key in keys.items()}
    for name, key in keys.items():
        home = folder / name
        home.mkdir()
        file = home / "signing.key"
        file.touch(0o600)
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        peers = {peer: pin for peer, pin in pins.items() if peer != name}
        # A site may be lost here: what is measured is masking, and not the rule that refuses such sums.
        settings = {"fixed_cohort": ["evaluate", "query"], "min_difference": 1}
        (home / "policy.yaml").write_text(yaml.safe_dump({"site": name, "peers": peers, **settings}))
    return {node: {"policy": str(folder / name / "policy.yaml")} for node, name in enumerate(keys, start=1)}
