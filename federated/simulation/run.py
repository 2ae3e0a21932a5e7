"""`distlfm federated simulate`: a whole federation in one process, and what it is worth.

Messages are those of real sites, masks and all, through Flower's own serialisation; only the network is left out. `act`
is the last act of `make demo`: four sites tune an operator on their patients, who stay home.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distlfm.config import dump, fingerprint
from distlfm.errors import OtherWork, StorageError, UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.client_app import app
from distlfm.federated.refused import Reason
from distlfm.federated.rounds import Line, RunState, run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.server_app import OPERATOR
from distlfm.federated.settings import FederatedConfig, read_config
from distlfm.federated.simulation.compare import compare, summary
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.federated.simulation.sites import MOST_EXAMPLES, base_operator, make_sites, nodes_of
from distlfm.federated.site.work import Site, codec_of
from distlfm.federated.strategy import TooFewSites
from distlfm.lfo import Operator
from distlfm.report.demo import Showing
from distlfm.report.federation import draw, federation_page, sites_figure
from distlfm.runs import CONFIG, REPORT, SUMMARY
from distlfm.runs.folder import begin, refuse_other_verbs, versions, write_config
from distlfm.runtime.process import torch_threads
from distlfm.runtime.reporting import Reporter, Silent, Task
from distlfm.store import driver_lock
from distlfm.store.files import put_quickly, storing
from distlfm.store.lock import FILE as LOCK

PICTURE = "sites.svg"
RUN = 1
"""A simulation has one run, the same whenever it is resumed."""


def simulate(
    config: FederatedConfig | Path | str,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Make the sites, run the programme, compare; what is returned is in summary.json. A killed run goes on.

    local, federated, pooled: by site, the loss on held-out patients of all *other* sites, of the model that the site
    tuned alone, of the federation's, and of that tuned on everybody's data. epsilon: spent by site, null without a
    budget. bytes: all that went over the wire, both ways.
    """
    if not isinstance(config, FederatedConfig):
        config = read_config(Path(config), tuple(overrides))
    if out is not None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"dir": out})})
    if config.run.dir is None:
        raise UsageError("No folder is given for the simulation.", "Give --out DIR, or set run.dir in the config.")
    reporter, folder = reporter or Silent(), config.run.dir.resolve()
    refuse_other_verbs(folder, config.verb, ())
    begin(folder)
    _same_work(folder, config)
    with driver_lock(folder, "federated simulate"), torch_threads(config.run.threads):
        write_config(folder, config)
        operator = base_operator(config, folder, reporter)
        sites = make_sites(config, operator, folder, reporter)
        state = run_sites(config, operator, sites, folder / "rounds", reporter)
        codec = codec_of(operator.model, config.programme.task)
        codec.load(operator.model, state.result)
        operator.save(folder / OPERATOR)
        found = compare(sites, config.programme, state.result, config.personal)
        figures = summary(config, sites, state, found)
        with storing(SUMMARY, folder):
            put_quickly(folder / SUMMARY, f"{json.dumps(figures, indent=2)}\n".encode())
            draw(figures, folder / PICTURE)
            federation_page(folder / REPORT, figures, folder / PICTURE, dump(config), versions(), config.seed)
    _tell(figures, reporter)
    return figures


def run_sites(
    config: FederatedConfig, operator: Operator, sites: Mapping[str, Site], folder: Path, reporter: Reporter
) -> RunState:
    """The rounds, over secure sums on the recorded wire."""
    wire = LocalGrid(app, nodes_of(sites), run_id=RUN)
    folder.mkdir(parents=True, exist_ok=True)
    grid = SecureGrid(wire, min_sites=config.programme.min_sites, audit=AuditLog(folder / "audit.jsonl"))
    with reporter.task("rounds", config.programme.rounds) as task, quiet_flower():

        def meter() -> int:
            travelled = sum(len(frame.payload) for frame in wire.wire)
            wire.wire.clear()
            return travelled

        codec = codec_of(operator.model, config.programme.task)
        shown = counted(task, config.programme.min_sites)
        try:
            programme = config.programme.model_copy(update={"most_examples": MOST_EXAMPLES})
            return run_rounds(grid, operator, codec, programme, folder, str(RUN), shown, meter)
        except TooFewSites as error:
            if Reason.DISK.value not in error.why:
                raise
            fix = "Free space; then the same command goes on where it stopped."
            raise StorageError(
                f"The disk of {folder.parent} is full: the sites cannot log what leaves them, and refuse.", fix
            ) from None


def counted(task: Task, min_sites: int) -> Callable[[Line], None]:
    """Shows each round on a bar; one that was lost is asked for again, and does not count."""

    def after(line: Line) -> None:
        if "after" in line:
            return
        if line["sites"] < min_sites:
            task.advance(0, f"round {line['round']} was lost")
        else:
            task.advance(1, f"loss {line['loss']:.3f}" if "loss" in line else "")

    return after


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Flower's own lines about each round are left out; its warnings are not."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _same_work(folder: Path, config: FederatedConfig) -> None:
    """Refuse a folder of another simulation."""
    path = folder / CONFIG
    if path.exists() and not _is_of(path, config):
        raise OtherWork(f"{folder} holds another simulation.", "Choose another --out directory.")
    if not path.exists() and any(one.name != LOCK for one in folder.iterdir()):
        raise UsageError(f"{folder} is not empty, and not a simulation.", "Choose another --out directory.")


def _is_of(path: Path, config: FederatedConfig) -> bool:
    """Whether a file is the config of this work. What another version wrote may not even be understood."""
    with suppress(UsageError):
        return fingerprint(read_config(path).work()) == fingerprint(config.work())
    return False


def _tell(figures: Mapping[str, Any], reporter: Reporter) -> None:
    rows = []
    for name, spent in figures["epsilon"].items():
        losses = (f"{figures[model][name]:.3f}" for model in ("base", "local", "federated", "pooled"))
        rows.append([name, *losses, "–" if spent is None else f"{spent:.2f}"])
    reporter.table(
        "Loss on the other sites' held-out patients", ["site", "base", "alone", "federated", "pooled", "ε"], rows
    )
    reporter.say(f"{figures['rounds']} rounds, {figures['bytes'] / 1e6:.1f} MB; {gain_words(figures)}")


def gain_words(figures: Mapping[str, Any]) -> str:
    """How the federation compares with pooled data."""
    share = figures["gain_share"]
    if share is None:
        return "tuning on pooled data gains nothing here: there are too few patients, or too many steps"
    return f"the federation has {100 * share:.0f} % of what pooling all data would gain"


def act(out: Path, reporter: Reporter) -> Showing:
    """Play it in a folder of its own, with all configs in it."""
    with storing("the configs of the federation", out):
        out.mkdir(parents=True, exist_ok=True)
        for file in Path(__file__).with_name("demo").iterdir():
            put_quickly(out / file.name, file.read_bytes())
    folder = out / "federation"
    figures = simulate(out / "federated.yaml", out=folder, reporter=reporter)
    base, common, pooled = (figures["everybody"][model]["loss"] for model in ("base", "federated", "pooled"))
    better = sum(figures["federated"][name] < figures["local"][name] for name in figures["local"])
    line = (
        f"{figures['data']}: only masked sums left a site, and the loss of patients whom nobody learned from goes from "
        f"{base:.2f} to {common:.2f} (pooled: {pooled:.2f}); on the others' patients that beats {better} of "
        f"{len(figures['local'])} sites tuned alone; {gain_words(figures)}"
    )
    return Showing(line, [sites_figure(figures, folder / PICTURE)], {"The report of the federation": folder / REPORT})
