"""`distlfm status`: how far a run is, from its markers and the driver's last word, without looking at any array.

A training or a sweep is asked for by its small files too. What they are called is imported when it is needed: with it
comes all that trains.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from distlfm.cluster.slurm.jobs import RunJob, jobs_of
from distlfm.config import read_yaml
from distlfm.runs import CONFIG, OPERATOR, REPORT, SUMMARY
from distlfm.store import Holder, Store, find_store, is_store, read_progress
from distlfm.store.lock import drivers_of, holder
from distlfm.store.metadata import RUN_STORE
from distlfm.training.log import METRICS, read_metrics


def verb_of(run: Path) -> str | None:
    """The verb of the folder of a run, as its config tells; None if there is no config."""
    path = run / CONFIG
    return str(read_yaml(path).get("verb", "fit")) if path.is_file() else None


def training_figures(run: Path) -> dict[str, Any]:
    """Steps done and to do, from metrics.jsonl."""
    lines = read_metrics(run / METRICS)
    return {
        "unit": "steps",
        "total": max((int(line["total"]) for line in lines if line["event"] == "start"), default=0),
        "done": max((int(line["step"]) for line in lines if "step" in line), default=0),
        "reported": (run / OPERATOR).is_file() and (run / SUMMARY).is_file(),
    }


def sweep_figures(run: Path) -> dict[str, Any]:
    """Trials done and to do, from trials.json."""
    from distlfm.report.operator_page import FAILED, RUNNING
    from distlfm.verbs.tune import BEST, TRIALS

    try:
        states = [one["status"] for one in json.loads((run / TRIALS).read_text(encoding="utf-8"))["trials"]]
    except FileNotFoundError:
        states = []
    total = int(read_yaml(run / CONFIG)["search"]["trials"])
    done = sum(state != RUNNING for state in states)
    return {
        "unit": "trials",
        "total": total,
        "done": done,
        "failed": states.count(FAILED),
        "running": states.count(RUNNING),
        "statuses": {state: states.count(state) for state in sorted(set(states) - {RUNNING})},
        "reported": done >= total and (run / BEST).is_file(),
    }


FIGURES: dict[str | None, Callable[[Path], dict[str, Any]]] = {"train": training_figures, "tune": sweep_figures}


@dataclass(frozen=True)
class RunStatus:
    """How far a run is. running: instances in hand; driver: who works on it now, if anybody does, and `others` beside

    it, each with a part.

    reported: whether its last act, summary and report, is done too. unit: what is counted; a training counts steps.
    jobs: the last ones that were submitted for it. begun: whether there is anything of it but jobs.
    """

    path: Path
    kind: str
    mechanism: str = ""
    total: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    blocks: int = 0
    blocks_done: int = 0
    reported: bool = False
    statuses: dict[str, int] = field(default_factory=dict)
    driver: Holder | None = None
    others: int = 0
    workers: int | None = None
    rate: float | None = None
    left_s: float | None = None
    config_hash: str = ""
    unit: str = "instances"
    jobs: tuple[RunJob, ...] = ()
    begun: bool = True

    @property
    def state(self) -> str:
        if self.blocks_done == self.blocks and self.reported:
            return "complete"
        if self.driver is not None:
            return "running"
        return "queued" if any(job.active for job in self.jobs) else "stopped"

    @property
    def command(self) -> str:
        """What goes on with it, or begins it."""
        if not self.begun:
            note = self.jobs[-1].note
            return shlex.join(["distlfm", note.verb, note.config, *note.arguments])
        run = self.path.parent if self.kind == "fit" and self.path.name == RUN_STORE else self.path
        return f"distlfm resume {shlex.quote(str(run))}"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        content = asdict(self) | {"state": self.state, "path": str(self.path)}
        content["driver"] = None if self.driver is None else self.driver.model_dump()
        content["jobs"] = [job.plain() for job in self.jobs]
        return content


def status(path: Path | str) -> RunStatus:
    """How far the run or store at `path` is: begun, or only queued."""
    given = Path(path)
    if not is_store(given) and (begun := _without_store(given)) is not None:
        return begun
    where = find_store(given)
    store = Store.open(where)
    markers = store.markers()
    statuses = sum((Counter(marker.statuses) for marker in markers.values()), Counter[str]())
    drivers = drivers_of(where)
    reports = [one for one in read_progress(where) if any(_is_of(one, who) for who in drivers)]
    in_hand = {block for one in reports for block in one.get("running", [])} - set(markers)
    return RunStatus(
        path=where,
        kind=store.spec.kind,
        mechanism=str(store.spec.attributes.get("mechanism", "")),
        total=store.spec.instances,
        done=sum(marker.count for marker in markers.values()),
        failed=sum(marker.failed for marker in markers.values()),
        running=sum(len(store.block_range(block)) for block in in_hand),
        blocks=store.spec.num_blocks,
        blocks_done=len(markers),
        reported=store.spec.kind != "fit" or where.name != RUN_STORE or (where.parent / REPORT).is_file(),
        statuses=dict(statuses),
        driver=next(iter(drivers), None),
        others=max(0, len(drivers) - 1),
        workers=_over(sum, reports, "workers"),
        rate=_over(sum, reports, "rate"),
        left_s=_over(max, reports, "left_s"),
        config_hash=str(store.spec.attributes.get("config_hash", "")),
        jobs=jobs_of(where.parent if where.name == RUN_STORE else where),
    )


def _is_of(reports: dict[str, Any], driver: Holder) -> bool:
    """Whether a driver said this itself: an earlier one may have had its number, and left its last word behind."""
    try:
        late = datetime.fromisoformat(reports["time"]) >= datetime.fromisoformat(driver.since)
    except (KeyError, TypeError, ValueError):
        return False
    return late and (reports.get("host"), reports.get("pid")) == (driver.host, driver.pid)


def _over(together: Callable[[Sequence[Any]], Any], reports: Sequence[dict[str, Any]], name: str) -> Any:
    """A figure of all drivers together; None if none of them knows it."""
    known = [one[name] for one in reports if one.get(name) is not None]
    return together(known) if known else None


def _without_store(run: Path) -> RunStatus | None:
    """The status of a training, a sweep, or a run whose first job has not begun; None if there is nothing at all."""
    jobs, verb = jobs_of(run), verb_of(run)
    if verb not in FIGURES:
        return RunStatus(run, jobs[-1].note.verb, jobs=jobs, begun=False) if jobs else None
    return RunStatus(run, str(verb), driver=holder(run), jobs=jobs, **FIGURES[verb](run))
