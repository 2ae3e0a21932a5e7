"""A secure round of four sites through real processes, with the operator of configs/train/glucose.yaml."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.goals import at_most
from distlfm.config import dump, load
from distlfm.errors import WorkError
from distlfm.federated.link.control import Connection, Control, connection_of
from distlfm.federated.link.run import run_programme
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.setup.homes import LinkConfig, LinkHome, SiteHome
from distlfm.federated.setup.provision import make_local
from distlfm.federated.site.policy import SitePolicy
from distlfm.federated.site.work import codec_of, open_operator
from distlfm.verbs.generate import generate
from distlfm.verbs.train import train

SITES = ("east", "north", "south", "west")
GENERATE, TRAIN, PROGRAMME = (Path(f"configs/{verb}/glucose.yaml") for verb in ("generate", "train", "programme"))
BASE, PATIENTS = 64, 32
QUICK = ("operator.points=25", "operator.width=16", "operator.modes=8")
CONNECT_SECONDS, END_SECONDS = 300.0, 60.0


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), quick)


def measure(folder: Path, quick: bool) -> dict[str, Any]:
    """All rounds of the shipped programme; how good the operator becomes is no matter here, so it is hardly trained."""
    operator = _operator(folder, quick)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    link, sites = make_local(folder / "federation", LinkConfig(port=port, sites=SITES), operator)
    for number, (name, home) in enumerate(sites.items(), 1):
        store = _patients(folder / f"{name}.zarr", PATIENTS, seed=number)
        (home.path / "site.yaml").write_text(f"name: {name}\nstore: {store}\n")
        policy = load(SitePolicy, home.policy, ["epsilon=null", "exact=[train,evaluate,query]"])
        home.policy.write_text(dump(policy))
    programme = load(ProgrammeConfig, PROGRAMME, [f"operator={operator}", f"rounds={2 if quick else 3}"])
    with _running(folder, link, sites):
        connection, begun = connection_of(link.path), time.perf_counter()
        _wait_for_sites(connection)
        connected = time.perf_counter() - begun
        history = run_programme(programme, "measured", connection).content["history"]
    seconds = [float(line["seconds"]) for line in history]
    return {
        "figures": {"seconds of the slowest round": at_most(max(seconds), 90.0)},
        "parameters": codec_of(open_operator(operator).model, programme.task).size,
        "sites in each round": [line["sites"] for line in history],
        "seconds of each round": seconds,
        "seconds until all sites were connected": connected,
        "steps of a site in a round": programme.task.steps,
    }


def _operator(folder: Path, quick: bool) -> Path:
    store = _patients(folder / "base.zarr", BASE, seed=0)
    where = [f"data.stores=[{store}]", f"run.dir={folder / 'base'}", "run.launcher=inline", "run.tensorboard=false"]
    train(TRAIN, [*where, "loop.epochs=1", *(QUICK if quick else ())])
    return folder / "base" / "operator.pt"


def _patients(store: Path, count: int, seed: int) -> Path:
    generate(GENERATE, [f"instances={count}", f"seed={seed}", f"run.dir={store}", "run.executor=serial"])
    return store


@contextmanager
def _running(folder: Path, link: LinkHome, sites: dict[str, SiteHome]) -> Iterator[None]:
    """Link and sites as their verbs start them, until the end of the context."""
    verbs = [("link", link.path), *(("site", home.path) for home in sites.values())]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for verb, path in verbs:
            with (folder / f"{path.name}.log").open("wb") as log:
                command = [sys.executable, "-m", "distlfm", "federated", verb, str(path)]
                started.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(END_SECONDS)


def _wait_for_sites(connection: Connection) -> None:
    until = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            with Control(connection) as control:
                if [node["state"] for node in control.nodes()] == ["online"] * len(SITES):
                    return
        except WorkError:
            if time.monotonic() > until:
                raise
        if time.monotonic() > until:
            raise WorkError(f"Not all sites were connected after {CONNECT_SECONDS:g} seconds.")
        time.sleep(0.5)
