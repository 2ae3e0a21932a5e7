"""The catalogue reads each reference set, and tells a stranger where to get it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from distlfm.data import ColumnMap, catalog, check, list_datasets
from distlfm.errors import DataError, UsageError
from distlfm.instance import Instance, Truth

needs_data = pytest.mark.skipif(
    catalog.DATA_DIR_VARIABLE not in os.environ, reason=f"{catalog.DATA_DIR_VARIABLE} is not set"
)

SHAPES = {
    "p53": (3, 5, 7),
    "hafner": (2, 21, 13),
    "kni": (1, 1, 8 * 57),
    "reaction_diffusion_toy": (1, 1, 41 * 41),
    "reaction_diffusion_noisy": (1, 1, 41 * 41),
    "transcription_toy": (5, 5, 111),
    "lynx_hare": (1, 1, 21),
}


GAPS = {
    "azt1d": "27 gaps in 16 instances",
    "bigideas": "21 gaps in 12 instances",
    "hall2018": "87 gaps in 21 instances",
}
"""Sensors of these were off for a time."""


def truth_of(instance: Instance) -> Truth:
    assert instance.truth is not None
    return instance.truth


@needs_data
@pytest.mark.parametrize("name", list(catalog.DATASETS))
def test_each_set_reads_clean_and_is_the_known_file(name: str) -> None:
    report = catalog.load(name)
    assert report.set_aside == []
    told = [notice.what for notice in report.notices]
    assert [one.partition(", the longest")[0] for one in told] == (
        [f"Nothing was observed in {GAPS[name]}"] if name in GAPS else []
    )
    first = report.instances[0]
    assert first.metadata["dataset"] == name
    if name in SHAPES:
        assert (len(report), *first.values.shape) == SHAPES[name]
    else:
        assert 16 <= len(report) <= 25
        assert first.outputs == ("glucose_mg_dl",)
        assert first.metadata["unit_glucose_mg_dl"] == "mg/dL"


@needs_data
def test_the_truth_is_for_scoring_and_not_a_value() -> None:
    kni = catalog.load("kni").instances[0]
    assert kni.outputs == ("protein",)
    assert kni.blind().truth is None
    force = truth_of(kni).force
    assert force is not None
    assert force.shape == (1, 456)
    noisy = catalog.load("reaction_diffusion_noisy").instances[0]
    truth = truth_of(noisy)
    assert truth.outputs is not None
    assert 0.005 < float(np.std(noisy.values - truth.outputs)) < 0.009
    assert {name: value.tolist() for name, value in truth.parameters.items()} == {
        "sensitivity": [1.0],
        "decay": [0.1],
        "diffusion": [0.01],
    }


@needs_data
def test_transcription_truth_is_the_one_the_data_was_made_with() -> None:
    for instance in catalog.load("transcription_toy"):
        truth = truth_of(instance)
        assert {name: value.shape for name, value in truth.parameters.items()} == {
            "basal": (5,),
            "sensitivity": (5,),
            "decay": (5,),
        }
        assert (truth.parameters["sensitivity"] == 1).all()
        assert len(instance.thinned(int(instance.metadata["train_stride"])).times) == 12


@needs_data
def test_other_parts_can_be_given_to_the_columns() -> None:
    report = catalog.load("lynx_hare", ColumnMap(time="year", values=("hare", "lynx")))
    assert report.instances[0].outputs == ("hare", "lynx")
    assert report.instances[0].truth is None


@needs_data
def test_a_changed_file_is_read_with_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copyfile(catalog.path_of("lynx_hare"), tmp_path / "lynx_hare.csv")
    with (tmp_path / "lynx_hare.csv").open("a") as file:
        file.write("1921,20.0,7.0\n")
    monkeypatch.setenv(catalog.DATA_DIR_VARIABLE, str(tmp_path))
    assert catalog.available() == ["lynx_hare"]
    report = catalog.load("lynx_hare")
    assert len(report.instances[0].times) == 22
    (notice,) = report.notices
    assert catalog.dataset("lynx_hare").sha256 in notice.what


@pytest.mark.parametrize("name", list(catalog.DATASETS))
@pytest.mark.parametrize("folder_is_set", [True, False])
def test_without_the_file_a_stranger_learns_where_it_comes_from(
    name: str, folder_is_set: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(catalog.DATA_DIR_VARIABLE, raising=False)
    if folder_is_set:
        monkeypatch.setenv(catalog.DATA_DIR_VARIABLE, str(tmp_path))
    assert catalog.available() == []
    with pytest.raises(DataError) as caught:
        catalog.load(name)
    entry = catalog.dataset(name)
    told = str(caught.value)
    for part in (entry.origin, entry.accession, entry.licence, entry.sha256, *entry.columns, "set DISTLFM_DATA_DIR"):
        assert part in told


def test_an_unknown_set_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'hafner'"):
        catalog.load("haffner")


def test_the_list_of_sets_has_a_full_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(catalog.DATA_DIR_VARIABLE, raising=False)
    rows = list_datasets()
    assert [row["name"] for row in rows] == list(catalog.DATASETS)
    assert {row["available"] for row in rows} == {"no"}
    assert all(row[key] for row in rows for key in ("title", "origin", "accession", "licence", "units", "sha256"))


def test_a_check_counts_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("id,t,x,y,f\na,0,0,1,1\na,0,1,,1\na,5,0,3,1\nb,0,0,nan,1\n")
    columns = ColumnMap(instance="id", time="t", positions="x", values="y", truth_force="f")
    report = check(path, columns)
    assert (report.num_instances, report.num_points, report.num_cells, report.num_missing) == (1, 3, 3, 1)
    rows = dict(report.rows())
    assert rows["instances"] == "1 usable, 1 set aside"
    assert rows["outputs"] == "1: y"
    assert rows["times"] == "0 to 5"
    assert rows["missing"] == "1 of 3 values (33.3%)"
    assert rows["truth"] == "force (for scoring only)"
    assert json.loads(json.dumps(report.to_dict()))["set_aside"][0]["row"] == 5


def test_a_check_of_a_file_without_usable_instances_still_reports(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("t,y\n0,1\n1,nan\n")
    report = check(path)
    assert report.num_instances == 0
    assert dict(report.rows())["times"] == "none"
    assert report.set_aside[0].row == 3
