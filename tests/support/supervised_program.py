"""`supervised_program last|end|supervise FOLDER`: a program that lasts, one that ends at once, a supervisor of both."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from distlfm.federated.link.processes import Program, Supervisor, end_with_supervisor
from distlfm.federated.setup.homes import Home
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import reporter_for


def main(what: str, folder: Path) -> None:
    with (folder / what).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if what == "end":
        sys.exit(7)
    if what == "last":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        end_with_supervisor()
        time.sleep(600)
    programs = [
        Program(name, "tests.support.supervised_program", (name, str(folder)), dict(os.environ), folder / f"{name}.log")
        for name in ("last", "end")
    ]
    with Stop() as stop:
        Supervisor(Home(folder), programs, reporter_for()).run(stop)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
