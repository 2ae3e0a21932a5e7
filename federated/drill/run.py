"""`distlfm federated drill`: a federation on loopback, attacked by its own coordinator, and a report of that.

Link and sites are the same processes as in earnest, in a temporary folder, on generated patients.
"""

from __future__ import annotations

import io
import json
import socket
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distlfm.config import build
from distlfm.errors import DistlfmError, UsageError, WorkError
from distlfm.federated.drill.coordinator import PLACE, Outcome
from distlfm.federated.link import bundle
from distlfm.federated.link.authn import TokenError, add_token, read_token
from distlfm.federated.link.control import Control, connection_of
from distlfm.federated.link.processes import Program, Supervisor
from distlfm.federated.link.run import run_programme
from distlfm.federated.link.service import only_one, programs, site_programs
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.setup.homes import Home, LinkConfig, LinkHome, SiteHome
from distlfm.federated.setup.provision import make_local
from distlfm.lfo import Calibration, Examples, FourierOperator, Operator, OperatorConfig
from distlfm.lfo.inputs import set_normal
from distlfm.report.federation import drill_page
from distlfm.report.page import Provenance
from distlfm.runs import REPORT, SUMMARY
from distlfm.runs.folder import begin, refuse_other_verbs, versions
from distlfm.runs.settings import GenerateConfig
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store import Store
from distlfm.store.files import put_all, storing
from distlfm.verbs.generate import generate

SITES = ("east", "north", "south", "west")
PATIENTS = 24
START_SECONDS = 240.0
STORE: dict[str, Any] = {
    "points": 33,
    "num_outputs": 2,
    "mechanism": {"kind": "transcription", "initial": "steady", "fixed": {"sensitivity": {"output_0": 1.0}}},
    "likelihood": {"shared": True, "prior": {"kind": "lognormal", "median": 0.02, "spread": 0.3}},
}
NETWORK = OperatorConfig(
    layers=2, width=8, modes=4, head=8, pooled=4, regressions=2, regressors=2, points=17, slopes=(0.1,)
)


def drill(out: Path | None = None, reporter: Reporter | None = None) -> dict[str, Any]:
    """Attack a federation that is made for it, and return what each attack brought.

    out: where summary.json and report.html go. `ok` is false if a site did not refuse, or if an attack failed on sites
    that were opened for it, since then it would show nothing.
    """
    reporter = reporter or Silent()
    if out is not None:
        refuse_other_verbs(out, "drill", (SUMMARY, REPORT))
        begin(out)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="distlfm-drill-") as folder:
        reporter.say("a link and four sites are set up on this machine")
        link, sites = _made(Path(folder))
        with _served(Path(folder), link, sites, reporter):
            outcomes = _attacked(link, reporter)
    facts = {
        "attacks": [asdict(one) for one in outcomes],
        "ok": all(one.refused and one.opened is not False for one in outcomes),
        "seconds": round(time.monotonic() - begun, 1),
    }
    if out is not None:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        with storing("what the drill found", out):
            put_all({out / SUMMARY: f"{json.dumps(facts, indent=2)}\n".encode()})
            drill_page(out / REPORT, facts, Provenance("", versions(), date=date))
    return facts


def _made(folder: Path) -> tuple[LinkHome, dict[str, SiteHome]]:
    """Generated patients for each site, an operator that was never trained, and folders as `provision` makes them."""
    for seed, name in enumerate(SITES):
        run = {"dir": str(folder / f"{name}.zarr"), "executor": "serial"}
        generate(build(GenerateConfig, {**STORE, "instances": PATIENTS, "seed": seed, "run": run}))
    examples = Examples([Store.open(folder / f"{SITES[0]}.zarr")])
    model = FourierOperator(NETWORK, examples.schema)
    set_normal(model.normal, examples.batch(range(len(examples))))
    none = Calibration.none(len(examples.schema.forces), len(examples.schema.parameters))
    operator = Operator(examples.schema, NETWORK, model.eval().requires_grad_(False), none)
    path = operator.save(folder / "operator.pt")
    link, sites = make_local(folder / "federation", LinkConfig(port=_free_port(), sites=SITES), path)
    for name, home in sites.items():
        (home.path / "site.yaml").write_text(f"name: {name}\nstore: {folder / name}.zarr\n", encoding="utf-8")
    return link, sites


@contextmanager
def _served(folder: Path, link: LinkHome, sites: Mapping[str, SiteHome], reporter: Reporter) -> Iterator[None]:
    """Keep link and sites running; the tasks of the link are taken by the hostile coordinator."""
    server, tasks = programs(link, link.config(), insecure=False)
    around = {**tasks.environment, PLACE: str(folder)}
    hostile = replace(
        tasks, module="distlfm.federated.drill.coordinator", arguments=tasks.arguments[1:], environment=around
    )
    with ExitStack() as stack:
        stack.enter_context(_running(link, [server, hostile]))
        for home in sites.values():
            stack.enter_context(_running(home, site_programs(home, home.config(), insecure=False)))
        _wait_for(link, reporter)
        yield


@contextmanager
def _running(home: Home, started: Sequence[Program]) -> Iterator[None]:
    stop = Stop()
    with only_one(home):
        thread = threading.Thread(target=Supervisor(home, started, Silent()).run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.request()
            thread.join()


def _wait_for(link: LinkHome, reporter: Reporter) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            with Control(connection_of(link.path)) as control:
                online = [node for node in control.nodes() if node["state"] == "online"]
            if len(online) == len(SITES):
                reporter.say(f"{len(online)} sites are connected")
                return
        except WorkError:
            pass
        time.sleep(0.5)
    raise WorkError(f"The drill's sites were not connected within {START_SECONDS:.0f} s.", "Try on an idle machine.")


def _attacked(link: LinkHome, reporter: Reporter) -> list[Outcome]:
    """First what a token holder can do without being let in, then what the coordinator asks of the sites."""
    outcomes = [_reader(link), _foreign(link)]
    for one in outcomes:
        reporter.say(f"{one.attack}: {one.answer}")
    starter = replace(connection_of(link.path), token=read_token(add_token(link.path, "starter", "run", 1)))
    content = run_programme(ProgrammeConfig(), "drill", starter, reporter).content
    found = [Outcome(**one) for one in content["attacks"]]
    return [
        replace(outcomes[0], opened=True, gained="a token of the role `run` started this drill"),
        outcomes[1],
        *found,
    ]


def _reader(link: LinkHome) -> Outcome:
    """A token that is for looking starts a run."""
    token = read_token(add_token(link.path, "reader", "read", 1))
    answer, refused = "a run was started", False
    with Control(replace(connection_of(link.path), token=token)) as control:
        try:
            control.start_run({}, "reader")
        except TokenError as error:
            answer, refused = error.cause, True
    return Outcome("a reader's token", "start a run with a token of the role `read`", answer, refused)


def _foreign(link: LinkHome) -> Outcome:
    """A bundle with a file of code in it."""
    packed = io.BytesIO(bundle.build())
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("stolen.py", "print()\n")
    answer, refused = "it was taken", False
    with Control(connection_of(link.path)) as control:
        try:
            control.start_run({}, "foreign", packed.getvalue())
        except (WorkError, UsageError) as error:
            answer, refused = error.cause if isinstance(error, DistlfmError) else str(error), True
    return Outcome("code in a bundle", "start a run whose bundle has a program in it", answer, refused)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
