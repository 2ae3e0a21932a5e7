"""What an earlier query has left in a folder, and how it goes before another one's answers come."""

from __future__ import annotations

import json
from pathlib import Path

from distlfm.pipeline.query_tables import ANSWERS, DOCUMENT, PARAMETERS
from distlfm.pipeline.run_files import REPORT, SUMMARY
from distlfm.pipeline.rundir import forget_report
from distlfm.store.files import storing

WRITTEN = (ANSWERS, PARAMETERS, DOCUMENT, SUMMARY, REPORT)
PLOTS = "plots"


def forget_answers(directory: Path) -> None:
    """Remove the pictures, the report and the summary of the query before; the tables are replaced all at once."""
    folder = directory / PLOTS
    if folder.is_dir():
        with storing(PLOTS, directory):
            for name in _pictures(directory / SUMMARY):
                (folder / name).unlink(missing_ok=True)
            if not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()
    forget_report(directory)  # not sooner: the summary tells which pictures there are


def _pictures(summary: Path) -> list[str]:
    """Names of the pictures that a query may have drawn, of the instances in its summary; others are not its own."""
    from distlfm.report.lfo_plots import picture_names  # draws

    try:
        ids = [str(one["id"]) for one in json.loads(summary.read_text(encoding="utf-8"))["instances"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for index, one in enumerate(ids) for name in picture_names(index, one)]
