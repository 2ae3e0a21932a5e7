"""The notebook of the documents runs, and shows what is stored in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
NOTEBOOK = PROJECT / "docs" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_is_stored(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, str(PROJECT / "docs" / "run_notebook.py"), "--check"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_pictures_are_stored() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert any("data:image/png" in "".join(output.get("data", {}).get("text/html", [])) for output in outputs)
