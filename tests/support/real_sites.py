"""A real federation of four sites on this machine: link and sites as their verbs start them, on tiny data."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr.common.constant import HEARTBEAT_PATIENCE
from flwr.proto.control_pb2 import ListNodesRequest

from distlfm.config import build
from distlfm.errors import WorkError
from distlfm.federated.audit import verify
from distlfm.federated.link.control import Control, connection_of
from distlfm.federated.link.run import RunResult, run_programme
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.setup.enrolment import enrol, pin
from distlfm.federated.setup.homes import LinkConfig, LinkHome, SiteHome
from distlfm.federated.setup.provision import add_site, make_local, make_site
from distlfm.runs.settings import GenerateConfig
from distlfm.verbs.generate import generate
from distlfm.verbs.train import train
from tests.support.federation_guide import documented
from tests.support.fleet_runs import Driver, all_gone, descendants

SITES = ("east", "north", "south", "west")
WATCHED = "DISTLFM_TEST_CONNECTIONS"
STORE: dict[str, Any] = {
    "points": 13,
    "num_outputs": 2,
    "mechanism": {"kind": "transcription", "initial": "steady", "fixed": {"sensitivity": {"output_0": 1.0}}},
    "likelihood": {"shared": True, "prior": {"kind": "lognormal", "median": 0.02, "spread": 0.3}},
}
TRAIN: dict[str, Any] = {
    "verb": "train",
    "operator": {"width": 8, "modes": 4, "layers": 2, "head": 16, "pooled": 4},
    "loop": {"epochs": 1, "batch": 16, "seed": 5},
    "run": {"threads": 1, "tensorboard": False},
}
# Imported by every Python process that finds it: notes each address that the process connects to or looks up.
WATCHER = f"""
import os, sys
def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        where = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
        host = where[0] if isinstance(where, tuple) else where
        name = host.decode() if isinstance(host, bytes) else str(host)
        with open(os.environ["{WATCHED}"], "a") as file:
            file.write(f"{{event}} {{name}}\\n")
if "{WATCHED}" in os.environ:
    sys.addaudithook(note)
"""


def write_data(folder: Path) -> Path:
    """A store a site, and an operator that was trained a little. Gives the operator."""
    for seed, (name, count) in enumerate({"base": 24, **dict.fromkeys(SITES, 12)}.items()):
        run = {"dir": str(folder / f"{name}.zarr"), "executor": "serial"}
        generate(build(GenerateConfig, {**STORE, "instances": count, "seed": seed, "run": run}))
    (folder / "train.yaml").write_text(json.dumps(TRAIN | {"data": {"stores": [str(folder / "base.zarr")]}}))
    train(folder / "train.yaml", [f"run.dir={folder / 'base'}"])
    return folder / "base" / "operator.pt"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def masked_alone(home: SiteHome) -> None:
    """Let a site answer without noise, as its policy has to say in so many words."""
    text = home.policy.read_text(encoding="utf-8")
    text = text.replace("epsilon: 4.0\n", "epsilon: null\n").replace("exact: []\n", "exact: [train, evaluate, query]\n")
    home.policy.write_text(text, encoding="utf-8")


def start_role(role: str, home: LinkHome | SiteHome) -> list[str]:
    """The guide's command of a role: "link" or a site's name."""
    verb, folder = ("link", "federation/link") if role == "link" else ("site", "federation/north")
    return documented(verb, places={folder: home.path})


class Federation:
    """Folders and running verbs. Everything it started is gone when it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operator = write_data(folder)
        config = LinkConfig(port=free_port(), sites=SITES)
        self.link, self.sites = make_local(folder / "federation", config, self.operator)
        for name, home in self.sites.items():
            (home.path / "site.yaml").write_text(f"name: {name}\nstore: {folder / name}.zarr\n")
            masked_alone(home)
        self.drivers: dict[str, Driver] = {}
        self.connections = folder / "connections.txt"
        (folder / "watch").mkdir()
        (folder / "watch" / "sitecustomize.py").write_text(WATCHER)

    def start(self, role: str) -> None:
        """The verb of a role: "link" or a site's name."""
        arguments = start_role(role, self.link if role == "link" else self.sites[role])
        before = dict(os.environ)
        os.environ.update({"PYTHONPATH": str(self.folder / "watch"), WATCHED: str(self.connections)})
        try:
            self.drivers[role] = Driver(arguments, self.folder / f"{role}.log")
        finally:
            os.environ.clear()
            os.environ.update(before)

    def family(self, role: str) -> set[int]:
        driver = self.drivers[role]
        return {driver.process.pid, *driver.watch()}

    def kill(self, role: str) -> None:
        """SIGKILL for every process of a role, as when its machine loses power."""
        driver = self.drivers.pop(role)
        for pid in {driver.process.pid, *descendants(driver.process.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        driver.process.wait()

    def stop(self, *roles: str) -> set[int]:
        """Ask roles to end, as Ctrl-C does. Gives the processes of them, if some are left."""
        pids = set().union(*(self.family(role) for role in roles))
        drivers = [self.drivers.pop(role) for role in roles]
        for driver in drivers:
            driver.process.send_signal(signal.SIGINT)
        for driver in drivers:
            driver.process.wait(60)
        return set() if all_gone(pids) else pids

    def close(self) -> None:
        for role in list(self.drivers):
            driver = self.drivers[role]
            pids = self.family(role)
            self.kill(role)
            for pid in pids | driver.family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def control(self) -> Iterator[Control]:
        with Control(connection_of(self.link.path)) as control:
            yield control

    def enrol(self, name: str) -> SiteHome:
        """One more site, which is let in but not pinned by the others."""
        home = SiteHome(self.folder / "federation" / "sites" / name)
        enrol(self.link.path, [make_site(add_site(self.link.path, name), home.path, self.operator)])
        pin(home.path, self.link.peers, sites=(*SITES, name))
        (home.path / "site.yaml").write_text(f"name: {name}\nstore: {self.folder / 'north'}.zarr\n")
        masked_alone(home)
        return home

    def mend(self) -> None:
        """Start what a test has ended, and wait until every site is connected."""
        for role in ("link", *SITES):
            if role not in self.drivers:
                self.start(role)
        wait_until(lambda: self.online() == set(SITES), why=lambda: self.log_of("link") + self.log_of("north"))

    def online(self, since: float = 0.0) -> set[str]:
        """Sites whose last heartbeat has not run out, and came after `since`: a server that is started anew takes those
        for online whose heartbeat came to the one before it, though they have yet to find it."""
        try:
            with self.control() as control:
                nodes = control._ask("ListNodes", ListNodesRequest()).nodes_info
        except WorkError:
            return set()
        heard = {node.name: node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval for node in nodes}
        return {node.name for node in nodes if node.status == "online" and heard[node.name] > since}

    def programme(self, rounds: int, **more: Any) -> ProgrammeConfig:
        task = {"steps": 1, "lr": 1e-3}
        content = {"rounds": rounds, "operator": str(self.operator), "deadline": 120.0, "evaluate": False, "task": task}
        return build(ProgrammeConfig, content | more)

    def programme_file(self, rounds: int) -> Path:
        path = self.folder / "programme.yaml"
        path.write_text(self.programme(rounds).model_dump_json())
        return path

    def run(self, programme: ProgrammeConfig, name: str) -> RunResult:
        return run_programme(programme, name, connection_of(self.link.path))

    def log_of(self, role: str) -> str:
        home = self.link if role == "link" else self.sites[role]
        return "\n".join(path.read_text(errors="replace") for path in sorted(home.state.glob("*.log")))


class Background:
    """A run that goes on while the test disturbs it."""

    def __init__(self, federation: Federation, programme: ProgrammeConfig, name: str) -> None:
        self.result: RunResult | None = None
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self.result = federation.run(programme, name)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def wait(self, seconds: float = 400.0) -> RunResult:
        self._thread.join(seconds)
        if self.error is not None:
            raise self.error
        assert self.result is not None, "the run did not end"
        return self.result


def wait_until(what: Callable[[], bool], seconds: float = 180.0, why: Callable[[], str] = lambda: "") -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"nothing came in {seconds} s: {why()}"
        time.sleep(0.25)  # to look costs what the federation needs


def events(home: LinkHome | SiteHome, event: str) -> list[dict[str, Any]]:
    """Lines of a kind in a role's audit log, whose chain must hold."""
    report = verify(home.audit)
    assert report.flaws == []
    return [entry for entry in report.entries if entry["event"] == event]
