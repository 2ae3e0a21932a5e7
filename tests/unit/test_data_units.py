"""Units that a config names are those of plots and of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.fleets.sources import read_instances
from distlfm.runs.settings import DataConfig, FitConfig


def test_units_of_a_config_are_told_with_every_instance(tmp_path: Path) -> None:
    table = tmp_path / "two.csv"
    table.write_text(
        "patient,time,gene,value\n" + "".join(f"{who},{t},p21,{t + 1}\n" for who in "AB" for t in range(4))
    )
    units = {"time": "h", "value": "mg/dL"}
    found = read_instances(build(DataConfig, {"path": str(table), "units": units})).instances
    assert [dict(one.metadata) | {"time_unit": "h", "value_unit": "mg/dL"} for one in found] == [
        dict(one.metadata) for one in found
    ]
    assert len(found) == 2


def test_a_misspelt_unit_is_refused_with_the_nearest_key() -> None:
    with pytest.raises(UsageError, match="time"):
        build(FitConfig, {"mechanism": {"kind": "transcription"}, "data": {"units": {"tiem": "h"}}})
