"""Fit one share of a fleet's blocks: that of this task of a Slurm array. Needs no Ray.

    python -m distlfm.launch.array fit CONFIG …

The tasks share one run directory; the last one to finish writes the report. A task that failed, or never ran, leaves
its blocks to the same command, or to `distlfm resume`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from distlfm.cluster.slurm.allocation import array_share
from distlfm.launch.preempt import JobLog, launch, parser, verb_command, verb_of

VERBS = ("fit",)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the verb on this task's part."""
    options = parser("array", "Fit the blocks of this task of an array.")
    words = verb_of(options.parse_args(arguments), options, VERBS)

    def work(log: JobLog) -> int:
        log.share = array_share(os.environ)
        return log.run([*verb_command(words), "--part", str(log.share)])

    launch(work, words)


if __name__ == "__main__":
    main()
