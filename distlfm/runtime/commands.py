"""Programs of the system that are started by name."""

from __future__ import annotations

from collections.abc import Sequence

from distlfm.errors import StartError


def cannot_start(command: Sequence[str], error: OSError) -> StartError:
    """What is said of a program that is not there."""
    return StartError(
        f"{command[0]} cannot be started: {error.strerror}.",
        "Put it on the PATH; a container must be given Slurm's commands (slurm/site.example.sh shows how).",
    )
