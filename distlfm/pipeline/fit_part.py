"""`distlfm fit --part I/N`: one share of a run's blocks, while others do theirs, on any machine that shares its folder.

Nobody is over them: each has a lock on its part, and whoever finds no block missing at its end concludes the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distlfm.cluster.share import Share
from distlfm.config import load
from distlfm.errors import UsageError
from distlfm.pipeline.fit import FitRun, conclude
from distlfm.pipeline.fit_plan import command_for, open_folder, prepare
from distlfm.pipeline.fleet import run_blocks, told_how_to_go_on
from distlfm.pipeline.run_files import REPORT
from distlfm.pipeline.settings import FitConfig
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store import part_lock, turn
from distlfm.store.find import RUN_STORE


@dataclass(frozen=True)
class PartRun:
    """A part that is done. count, failed: its own instances; left: those that others have still to do.

    run: the whole, if this part was the last and has concluded it.
    """

    share: Share
    count: int
    failed: int
    left: int
    run: FitRun | None = None


def fit_part(
    config: FitConfig | Path | str, share: Share, overrides: Sequence[str] = (), reporter: Reporter | None = None
) -> PartRun:
    """Do the blocks of a share that are missing. Raises Stopped if a signal ended it before."""
    reporter = reporter or Silent()
    if not isinstance(config, FitConfig):
        config = load(FitConfig, Path(config), overrides)
    if config.run.dir is None:
        raise UsageError("A part of a run needs the folder of the run.", "Give --out DIR, the same for all parts.")
    directory, config = config.run.dir, config.located()
    directory = open_folder(directory, config)
    again = command_for(directory, share=share)
    with part_lock(directory, str(share)), told_how_to_go_on(directory / RUN_STORE, again):
        with turn(directory):
            work = prepare(directory, config, None, reporter)
        fleet = replace(work.fleet, share=share, command=again)
        run_blocks(fleet, config.run, reporter)
        with turn(directory):
            missing = work.store.missing()
            run = None
            if not missing and not (directory / REPORT).is_file():
                run = conclude(work, reporter)
            elif not missing:  # another part was the last; our copy of the data may have come after it
                work.plan.tidy()
        left = sum(len(work.store.block_range(block)) for block in missing)
        return PartRun(share, fleet.total, fleet.failed(), left, run)
