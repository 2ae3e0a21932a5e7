"""The notebook of the documents runs, and shows what is stored in it."""

from __future__ import annotations

import importlib.util
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


def test_a_number_that_is_no_longer_so_is_told_and_one_that_is_rounded_is_not() -> None:
    spec = importlib.util.spec_from_file_location("run_notebook", PROJECT / "docs" / "run_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert program.differences(stored, stored) == []
    (cell,) = [one for one in stored["cells"] if "lfm.PeakTime" in "".join(one["source"])]
    told = [line for line in cell["outputs"][0]["text"] if line.startswith("<integral of the force")]
    for change, count in ((1.03, 0), (1.3, 1)):
        moved = program.NUMBER.sub(lambda found, by=change: f"{by * float(found[0]):.4g}", told[0], count=2)
        fresh = json.loads(json.dumps(stored).replace(json.dumps(told[0]), json.dumps(moved)))
        assert len(program.differences(stored, fresh)) == count


def test_its_pictures_are_stored() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert any("data:image/png" in "".join(output.get("data", {}).get("text/html", [])) for output in outputs)
