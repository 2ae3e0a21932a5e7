"""What looks wrong with data is told once when they are read, and again in the summary and the report of their fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distlfm.cli import main

CONFIG = """\
verb: fit
data:
  columns: {instance: patient, time: time, values: glucose}
  units: {time: min, value: mg/dL}
mechanism: {kind: glucose}
force: {kernel: {kind: matern52}}
inference: {method: preestimate, preestimate: {draws: 4}}
"""
BEGIN = "2 values are 9999 and apart from all others"


def test_stand_ins_are_told_by_data_check_and_by_a_fit_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fit.yaml").write_text(CONFIG)
    values = 120 + 20 * np.sin(np.arange(16) / 4)
    values[[4, 9]] = 9999
    rows = [f"a,{15 * i},{value:.1f}" for i, value in enumerate(values)]
    data, out = tmp_path / "data.csv", tmp_path / "run"
    data.write_text("patient,time,glucose\n" + "\n".join(rows) + "\n")
    assert main(["data", "check", str(data)]) == 0, "they are read"
    shown = capsys.readouterr()
    assert " ".join((shown.out + shown.err).split()).count(BEGIN) == 1
    main(["fit", str(tmp_path / "fit.yaml"), "--data", str(data), "--out", str(out), "--executor", "serial"])
    shown = capsys.readouterr()
    assert " ".join((shown.out + shown.err).split()).count(BEGIN) == 1
    (notice,) = json.loads((out / "summary.json").read_text())["notices"]
    assert BEGIN in notice
    assert "column 'glucose'" in notice
    assert (out / "report.html").read_text(encoding="utf-8").count(BEGIN) == 1
