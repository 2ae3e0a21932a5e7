"""How far a run is: from its markers and the driver's last word, without looking at any array."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distlfm.pipeline.rundir import REPORT
from distlfm.store import Holder, Store, find_store, read_progress
from distlfm.store.find import RUN_STORE
from distlfm.store.layout import FAILED
from distlfm.store.lock import driver_of


@dataclass(frozen=True)
class RunStatus:
    """How far a run is. running: instances in hand; driver: who works on it now, if anybody does.

    reported: whether its last act, summary and report, is done too.
    """

    path: Path
    kind: str
    mechanism: str
    total: int
    done: int
    failed: int
    running: int
    blocks: int
    blocks_done: int
    reported: bool
    statuses: dict[str, int]
    driver: Holder | None
    workers: int | None
    rate: float | None
    left_s: float | None
    config_hash: str

    @property
    def state(self) -> str:
        if self.blocks_done == self.blocks and self.reported:
            return "complete"
        return "running" if self.driver is not None else "stopped"

    @property
    def command(self) -> str:
        """What goes on with it."""
        run = self.path.parent if self.kind == "fit" and self.path.name == RUN_STORE else self.path
        return f"distlfm resume {shlex.quote(str(run))}"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        found = asdict(self) | {"state": self.state, "path": str(self.path)}
        found["driver"] = None if self.driver is None else self.driver.model_dump()
        return found


def status(path: Path | str) -> RunStatus:
    """How far the run or store at `path` is."""
    where = find_store(path)
    store = Store.open(where)
    markers = store.markers()
    statuses: Counter[str] = Counter()
    for marker in markers.values():
        statuses.update(marker.statuses)
    driver = driver_of(where)
    said = (read_progress(where) or {}) if driver is not None else {}
    in_hand = [block for block in said.get("running", []) if block not in markers]
    return RunStatus(
        path=where,
        kind=store.spec.kind,
        mechanism=str(store.spec.attributes.get("mechanism", "")),
        total=store.spec.instances,
        done=sum(marker.count for marker in markers.values()),
        failed=sum(statuses[one] for one in FAILED),
        running=sum(len(store.block_range(block)) for block in in_hand),
        blocks=store.spec.num_blocks,
        blocks_done=len(markers),
        reported=store.spec.kind != "fit" or where.name != RUN_STORE or (where.parent / REPORT).is_file(),
        statuses=dict(statuses),
        driver=driver,
        workers=said.get("workers"),
        rate=said.get("rate"),
        left_s=said.get("left_s"),
        config_hash=str(store.spec.attributes.get("config_hash", "")),
    )
