"""What made the numbers of a run."""

from __future__ import annotations

import platform

import torch

from distlfm.version import __version__


def versions() -> dict[str, str]:
    """What made the numbers."""
    return {"distlfm": __version__, "torch": torch.__version__, "python": platform.python_version()}
