"""Are the parts of `distlfm serve` installed?"""

from __future__ import annotations

import importlib.metadata

from distlfm.pipeline.probes.answer import load, reply

PARTS = ("starlette", "uvicorn")


def check() -> str:
    for name in PARTS:
        load(name)
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PARTS)


if __name__ == "__main__":
    reply(check)
