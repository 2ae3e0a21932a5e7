"""`train_program.py train|tune CONFIG [key=value …]`: a verb in a process of its own, with the command line's codes."""

from __future__ import annotations

import sys

from distlfm.errors import DistlfmError
from distlfm.runtime.reporting import reporter_for
from distlfm.verbs.train import train
from distlfm.verbs.tune import tune


def main(verb: str, config: str, *overrides: str) -> int:
    try:
        if verb == "tune":
            tune(config, overrides, reporter_for())
        else:
            train(config, overrides, reporter_for())
    except DistlfmError as error:
        sys.stderr.write(f"distlfm: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
