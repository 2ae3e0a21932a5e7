"""What looks wrong with data is told once when they are read, and again in the summary and the report of their fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.data import read

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


# ---- gaps ------------------------------------------------------------------------------------------------------------


def rows_of(name: str, hours: list[float]) -> str:
    return "".join(f"{name},{hour},{5 + hour % 3}\n" for hour in hours)


def told(path: Path, text: str) -> list[str]:
    path.write_text("patient,hour,level\n" + text)
    return [str(one) for one in read(path).notices if "Nothing was observed" in str(one)]


def test_gaps_of_even_series_are_told_with_the_longest(tmp_path: Path) -> None:
    whole = [float(t) for t in range(48)]
    night = [t for t in whole if not 9 < t < 16]
    two = [t for t in night if t not in (2.0, 3.0, 4.0, 5.0)]
    (alone,) = told(tmp_path / "a.csv", rows_of("ann", whole) + rows_of("bo", night))
    assert "instance 'bo'" in alone
    assert "in 1 gap from 9 to 16, where values otherwise come every 1." in alone
    (both,) = told(tmp_path / "b.csv", rows_of("ann", two) + rows_of("bo", night))
    assert "in 3 gaps in 2 instances, the longest of 'bo' from 9 to 16" in both


@pytest.mark.parametrize(
    "hours",
    [
        [float(t) for t in range(24)],
        [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 24.0, 48.0],
        [t + 0.4 * (t % 2) for t in range(24) if t != 9],
        [0.0, 1.0, 2.0, 20.0],
    ],
    ids=["even", "planned to be uneven", "one value missing", "few"],
)
def test_where_there_is_no_gap_none_is_told(tmp_path: Path, hours: list[float]) -> None:
    assert told(tmp_path / "a.csv", rows_of("ann", hours)) == []
