"""What secure aggregation costs a site and the server in a round of a million parameters, and how exact its mean is."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
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

SITES = ("east", "north", "south", "west")
PARAMETERS = 1_000_000
ROUNDS = 3


def run(quick: bool = False) -> dict[str, Any]:
    size = PARAMETERS // 20 if quick else PARAMETERS
    whole, lost = _rounds(size, lose=False), _rounds(size, lose=True)
    return {
        "figures": {
            "seconds of masking a site a round, four sites": at_most(whole["site"], 2.0),
            "the same when one site drops out": at_most(lost["site"], 2.0),
            "relative error of the mean": at_most(max(whole["error"], lost["error"]), 1e-6),
        },
        "parameters": size,
        "seconds of the server a round": whole["server"],
        "seconds of the server a round when one site drops out": lost["server"],
        "bytes that leave a site a round": whole["bytes"],
    }


def _rounds(size: int, lose: bool) -> dict[str, float]:
    """The dearest site of the dearest of several rounds; with `lose`, one site is lost after it shared its secrets."""
    spent: dict[int, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        inner = LocalGrid(_app(spent), _sites(Path(folder)), on_request=_lose_last if lose else None)
        grid = SecureGrid(inner)
        found = {"site": 0.0, "server": 0.0, "error": 0.0, "bytes": 0.0}
        left = len(SITES) - 1 if lose else len(SITES)
        for number in range(ROUNDS):
            spent.clear()
            content = _request(size, number)
            start = time.perf_counter()
            replies = list(grid.send_and_receive([Message(content, node, "train") for node in inner.get_node_ids()]))
            total = time.perf_counter() - start
            mean = (
                replies[0].content.array_records["arrays"]["shared"].numpy()
                - content.array_records["arrays"]["shared"].numpy()
            )
            weights = [_count(node) for node in range(1, left + 1)]
            terms = [weight * _step(node, size) for node, weight in enumerate(weights, start=1)]
            expected = np.sum(terms, axis=0) / sum(weights)
            found["site"] = max(found["site"], *spent.values())
            found["server"] = max(found["server"], total - sum(grid.reports[-1].seconds.values()))
            found["error"] = max(found["error"], float(np.linalg.norm(mean - expected) / np.linalg.norm(expected)))
            found["bytes"] = max(found["bytes"], grid.reports[-1].received / left)
    return found


def _app(spent: dict[int, float]) -> ClientApp:
    """Its own work is not counted: `spent` holds what the mod takes, by node."""

    def timed(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        start = time.perf_counter()
        reply = secure_mod(message, context, call_next)
        spent[context.node_id] += time.perf_counter() - start
        return reply

    app = ClientApp(mods=[timed])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        start = time.perf_counter()
        weights = message.content.array_records["arrays"]["shared"].numpy()
        moved = ArrayRecord({"shared": Array(weights + _step(context.node_id, len(weights)))})
        metrics = MetricRecord({"num-examples": _count(context.node_id), "loss": 1.0})
        reply = Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)
        spent[context.node_id] -= time.perf_counter() - start
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


def _lose_last(message: Message) -> Message | None:
    is_last = message.metadata.dst_node_id == len(SITES)
    return None if is_last and message.content.config_records["secagg"]["stage"] == "mask" else message


def _sites(folder: Path) -> Mapping[int, Any]:
    keys = {name: Ed25519PrivateKey.generate() for name in SITES}
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
    return {node: {"policy": str(folder / name / "policy.yaml")} for node, name in enumerate(SITES, start=1)}
