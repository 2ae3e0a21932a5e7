"""What several modules of faults share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.fleet_runs import command, write_fleet


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet, and in `calm` its undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder)
    subprocess.run(command(folder, folder / "calm", "--executor", "serial"), check=True, capture_output=True)
    return folder
