"""Sites on the local grid: folders with keys and policies, and an app whose answer is known."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from distlfm.federated.audit import verify
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.secure.mod import BODY, RECORD, STAGE, secure_mod
from distlfm.federated.simulation.grid import Hook, LocalGrid

NAMES = ("east", "north", "south", "west")
COUNTS = {"east": 37.0, "north": 18.0, "south": 53.0, "west": 29.0}
LOSSES = {"east": 0.8123456789, "north": 1.4567890123, "south": 0.2345678901, "west": 3.3456789012}


def make_sites(folder: Path, names: tuple[str, ...] = NAMES, **settings: Any) -> dict[int, dict[str, Any]]:
    """Folders of sites that pin each other; node configs by node id, which is the place in `names` from one on.

    settings: of the policies. Without others, sums may differ by single sites: tests of the protocol lose some.
    """
    settings = {
        "weights": "patients",
        "fixed_cohort": ["evaluate", "query"],
        "min_difference": 1,
        "figure_bound": 1e4,
        **settings,
    }
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    pins = {name: public_hex(key) for name, key in keys.items()}
    for name, key in keys.items():
        home = folder / name
        home.mkdir(parents=True)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (home / "signing.key").write_bytes(pem)
        (home / "signing.key").chmod(0o600)
        peers = {peer: pin for peer, pin in pins.items() if peer != name}
        (home / "policy.yaml").write_text(yaml.safe_dump({"site": name, "peers": peers, **settings}))
    return {node: {"policy": str(folder / name / "policy.yaml")} for node, name in enumerate(names, start=1)}


def name_of(context: Context) -> str:
    return Path(str(context.node_config["policy"])).parent.name


def step_of(name: str, size: int) -> np.ndarray:
    """How far a site moves the weights [size]."""
    return np.random.default_rng(NAMES.index(name)).normal(scale=1e-2, size=size)


def make_app() -> ClientApp:
    """Moves the weights by a step of the site's own, and tells its loss; a query is answered with metrics alone."""
    app = ClientApp(mods=[secure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        name = name_of(context)
        weights = message.content.array_records["arrays"]["shared"].numpy()
        moved = ArrayRecord({"shared": Array(weights + step_of(name, len(weights)))})
        return Message(RecordDict({"arrays": moved, "metrics": _metrics(name)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": _metrics(name_of(context))}), reply_to=message)

    @app.query("calibration")
    def calibration(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": _metrics(name_of(context))}), reply_to=message)

    return app


def _metrics(name: str) -> MetricRecord:
    return MetricRecord({"num-examples": COUNTS[name], "loss": LOSSES[name], "curve": [LOSSES[name], 1.0]})


def request(size: int = 20, round_: int = 1) -> RecordDict:
    weights = np.random.default_rng(99).normal(size=size)
    return RecordDict(
        {"arrays": ArrayRecord({"shared": Array(weights)}), "config": ConfigRecord({"server-round": round_})}
    )


def ask(grid: Any, content: RecordDict, message_type: str = "train") -> list[Message]:
    """One message to each node, as a strategy sends them."""
    return list(
        grid.send_and_receive([Message(content, node, message_type) for node in grid.get_node_ids()], timeout=60.0)
    )


def mean_over(names: tuple[str, ...], values: Mapping[str, Any]) -> Any:
    """The weighted mean that a server which saw everything would compute."""
    return sum(COUNTS[name] * values[name] for name in names) / sum(COUNTS[name] for name in names)


def local_grid(
    nodes: Mapping[int, dict[str, Any]], *, on_request: Hook | None = None, on_reply: Hook | None = None
) -> LocalGrid:
    return LocalGrid(make_app(), nodes, run_id=7, on_request=on_request, on_reply=on_reply)


def stage_of(message: Message) -> str:
    record = message.content.config_records.get(RECORD) if message.has_content() else None
    return str(record[STAGE]) if record is not None else ""


def said(stage: str, body: bytes) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({STAGE: stage, BODY: body})})


def refusals(folder: Path, name: str = "east") -> list[str]:
    entries = verify(folder / name / "audit.jsonl").entries
    return [entry["facts"]["reason"] for entry in entries if entry["event"] == "refused"]


def reasons(replies: list[Message]) -> list[str | None]:
    return [reply.error.reason for reply in replies]


def answering(metrics: dict[str, Any], *, calls: list[str] | None = None) -> ClientApp:
    """An app with the same answer everywhere."""
    app = ClientApp(mods=[secure_mod])

    def answer(message: Message, context: Context) -> Message:
        if calls is not None:
            calls.append(name_of(context))
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query("calibration")(answer)
    return app


def spellings(value: float) -> list[bytes]:
    """How a number could stand in bytes: binary of both widths and orders, fixed point, and text."""
    found = [struct.pack(form, value) for form in ("<d", ">d", "<f", ">f")]
    for bits in (20, 32, 40):
        found += [struct.pack(form, round(value * 2**bits)) for form in ("<q", ">q")]
    return [*found, repr(value).encode(), f"{value:.6f}".encode(), f"{value:.6g}".encode()]
