"""Is Flower installed, with the programs that link and sites run?"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

from distlfm.pipeline.probes.answer import Finding, load, reply

PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr")


def check() -> str:
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    load("flwr")
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    absent = [program for program in PROGRAMS if shutil.which(program, path=search) is None]
    version = importlib.metadata.version("flwr")
    if absent:
        raise Finding("broken", f"flwr {version} without its programs {', '.join(absent)}")
    return f"flwr {version} with {PROGRAMS[0]}"


if __name__ == "__main__":
    reply(check)
