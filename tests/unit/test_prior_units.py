"""Default priors that are for other units than the data's are told once, before the fit and in its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.inference.findings.expectations import units_notice
from distlfm.mechanisms import build_system

CONFIG = """\
verb: fit
data:
  columns: {instance: patient, time: time, values: glucose}
  units: {time: h, value: mmol/L}
mechanism: {kind: glucose, initial: free}
force: {kernel: {kind: matern52}}
inference: {method: preestimate, preestimate: {draws: 4}}
"""
OTHER = {"time_unit": "h", "value_unit": "mmol/L"}
LEVELS = {name: {"kind": "lognormal", "median": 6, "spread": 0.3} for name in ("base_level", "initial")}
RATE = {"return_rate": {"kind": "lognormal", "median": 1.2, "spread": 0.5}}
BEGIN = "The default priors of glucose are for min and mg/dL, and the data are in h and mmol/L. Set"


def told(units: dict[str, str], kind: str = "glucose", **options: Any) -> str:
    return units_notice(build_system({"kind": kind, "outputs": ["glucose"], **options}), units)


def test_the_priors_to_set_are_named() -> None:
    names = ("return_rate", "base_level", "initial")
    rate, base, initial = (f"mechanism.priors.{name}" for name in names)
    assert told(OTHER).startswith(f"{BEGIN} {rate}, {base} and {initial} to what")
    assert f"Set {base} and {initial} to" in told(OTHER, priors=RATE)
    assert f"Set {rate} to" in told(OTHER, priors=LEVELS)
    assert f"Set {base} to" in told(OTHER, fixed={"return_rate": 1.2}, initial="steady")


def test_only_what_the_other_unit_changes_is_told() -> None:
    begin = "The default priors of glucose are for {}, and the data are in {}. Set mechanism.priors.{} "
    assert told({"time_unit": "h", "value_unit": "mg/dl"}).startswith(begin.format("min", "h", "return_rate"))
    found = told({"time_unit": "minutes", "value_unit": "mmol/L"})
    assert found.startswith(begin.format("mg/dL", "mmol/L", "base_level and mechanism.priors.initial"))


@pytest.mark.parametrize(
    ("units", "options"),
    [
        ({}, {}),
        ({"time_unit": "min", "value_unit": "mg/dL"}, {}),
        (OTHER, {"priors": {**LEVELS, **RATE}}),
        (OTHER, {"kind": "transcription"}),
    ],
    ids=["unknown", "the same", "all set", "priors of no units"],
)
def test_nothing_is_told_where_nothing_is_off(units: dict[str, str], options: dict[str, Any]) -> None:
    assert told(units, **options) == ""


def test_the_user_is_told_once_at_the_start_in_the_summary_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fit.yaml").write_text(CONFIG)
    rows = [f"{who},{t / 4},{6 + np.sin(t / 4):.2f}" for who in "ab" for t in range(16)]
    (tmp_path / "data.csv").write_text("patient,time,glucose\n" + "\n".join(rows) + "\n")
    out = tmp_path / "run"
    arguments = ["fit", str(tmp_path / "fit.yaml"), "--data", str(tmp_path / "data.csv"), "--out", str(out)]
    main([*arguments, "--executor", "serial"])
    shown = capsys.readouterr()
    assert " ".join((shown.out + shown.err).split()).count(BEGIN) == 1
    notice, lengthscale = json.loads((out / "summary.json").read_text())["notices"]
    assert notice.startswith(BEGIN)
    assert lengthscale.startswith("The default prior of the force's lengthscale has its middle at 40, far above")
    assert (out / "report.html").read_text(encoding="utf-8").count(BEGIN) == 1
