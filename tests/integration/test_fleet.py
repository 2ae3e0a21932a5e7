"""Fleets in one process: what blocks, sources and stores promise. Ray and faults are in tests/faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from distlfm.cli import main
from distlfm.config import build
from distlfm.data import read, write_npz
from distlfm.errors import UsageError
from distlfm.fleets.fit_job import model_with
from distlfm.fleets.fit_plan import batch_size
from distlfm.inference.fit import InferenceConfig
from distlfm.inference.survey import Survey
from distlfm.runs.settings import FitConfig, GenerateConfig
from distlfm.store import Store
from distlfm.store.merge import merge
from distlfm.verbs.fit import FitRun, fit
from distlfm.verbs.generate import generate, resume_generate
from tests.support.fleet_runs import CONFIG, numbers, write_fleet

pytestmark = pytest.mark.slow

COUNT = 12
TOLERANCE = 1e-6
"""How far numbers differ at most between blocks of different sizes, relative to the largest; docs/fleets.md says so."""

GENERATE: dict[str, Any] = {
    "mechanism": {**CONFIG["mechanism"], "fixed": {"sensitivity": {"a": 1.0}}},
    "likelihood": CONFIG["likelihood"],
    "instances": COUNT,
    "points": 11,
    "run": {"block": 5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, COUNT)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> FitRun:
    return fit_in(folder / "run", folder / "data.npz")


def fit_in(out: Path, data: Path, **run: Any) -> FitRun:
    content = {**CONFIG, "run": {**CONFIG["run"], "executor": "serial", "dir": str(out), **run}}
    return fit(build(FitConfig, content), data)


def test_blocks_of_another_size_give_the_same_numbers_to_the_stated_tolerance(run: FitRun, folder: Path) -> None:
    assert run.store is not None
    fit_in(folder / "other", folder / "data.npz", batch=5)
    found, wanted = numbers(folder / "other"), numbers(folder / "run")
    for name, array in wanted.items():
        if array.dtype.kind == "f":
            scale = np.nanmax(np.abs(array))
            np.testing.assert_allclose(found[name], array, rtol=0, atol=TOLERANCE * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_folder_of_files_gives_the_numbers_of_the_one_file(run: FitRun, folder: Path) -> None:
    """Files are read one at a time, and none is kept."""
    pieces = folder / "pieces"
    pieces.mkdir()
    for instance in read(folder / "data.npz").instances:
        write_npz(pieces / f"{instance.id}.npz", [instance])
    fit_in(folder / "streamed", pieces)
    found, wanted = numbers(folder / "streamed"), numbers(folder / "run")
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert not (folder / "streamed" / "input").exists(), "the copy of the data is left behind"


def test_a_generated_store_is_fitted_where_it_lies_and_scored_by_its_truth(tmp_path: Path) -> None:
    store = generate(build_generate(tmp_path / "store"))
    content = {**CONFIG, "mechanism": GENERATE["mechanism"], "run": {"dir": str(tmp_path / "run"), "keep": "few"}}
    found = fit(build(FitConfig, content), tmp_path / "store")
    assert found.store is not None
    assert list(found.store.read("id")) == list(store.read("id"))
    for row in found.figures:
        assert row["latent_q2"] is not None
        assert set(row["parameter_mae"]) >= {"basal", "decay", "sensitivity"}
    assert not (tmp_path / "run" / "input").exists()


def build_generate(out: Path, **more: Any) -> Any:
    return build(GenerateConfig, {**GENERATE, **more, "run": {"block": 5, "dir": str(out)}})


def test_an_incomplete_store_is_not_fitted(tmp_path: Path) -> None:
    store = generate(build_generate(tmp_path / "store"))
    (store.path / "markers" / "00001.json").unlink()
    with pytest.raises(UsageError, match="not complete: 1 of its blocks"):
        fit_in(tmp_path / "run", tmp_path / "store")


def test_what_a_merged_store_lacks_is_not_drawn_anew(tmp_path: Path) -> None:
    sources = [generate(build_generate(tmp_path / name)).path for name in ("one", "two")]
    merged = merge(sources, tmp_path / "both", prefix=True)
    assert "config" in merged.spec.attributes
    (merged.path / "markers" / "00001.json").unlink()
    with pytest.raises(UsageError, match=r"was merged from other stores.*Resume those, and merge again"):
        resume_generate(merged.path)
    assert merged.missing() == [1]


def test_few_posteriors_are_kept_of_a_large_fleet_and_the_worst_is_among_them(folder: Path) -> None:
    kept = fit_in(folder / "few", folder / "data.npz", keep="few", batch=6)
    assert 2 <= len(kept.results) <= 8
    worst = min((row for row in kept.figures), key=lambda row: row["latent_q2"])
    assert worst["id"] in [result.id for result in kept.results]
    assert f"Instance {worst['id']} (worst)" in (folder / "few" / "report.html").read_text()


def test_every_event_is_a_line_of_json_with_the_whole_progress(run: FitRun, folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines[:2]] == ["started", "block_started"]
    assert {"time", "done", "total", "failed", "rate", "left_s", "workers", "running"} <= set(lines[0])
    done = [line for line in lines if line["event"] == "block_done"]
    assert [line["done"] for line in done] == [4, 8, 12]
    assert run.tally.count == 12


def test_status_counts_from_markers_alone(run: FitRun, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.store is not None
    hidden = run.store.path / "force_mean"
    hidden.rename(run.store.path / "hidden")
    try:
        assert main(["status", str(folder / "run"), "--json"]) == 0
    finally:
        (run.store.path / "hidden").rename(hidden)
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["done"], told["total"], told["failed"], told["running"]) == ("complete", 12, 12, 0, 0)


def test_a_store_opens_in_xarray_with_names_units_and_coordinates(run: FitRun) -> None:
    assert run.store is not None
    found = xarray.open_zarr(run.store.path, decode_timedelta=False)
    assert found["force_mean"].dims == ("instance", "force", "time")
    assert list(found["output"].values) == ["a", "b"]
    assert "decay[a]" in found["parameter"].values
    assert found["id"].dims == ("instance",)
    assert all("units" in found[name].attrs for name in ("time", "force_mean", "observed", "wall_s"))
    assert found.attrs["schema"] == 1
    assert found.attrs["mechanism"] == "transcription"
    assert found.attrs["config"]["inference"]["posterior"]["draws"] == 16


def test_draws_are_kept_where_they_are_asked_for(folder: Path) -> None:
    found = fit_in(folder / "drawn", folder / "data.npz", draws=3, batch=12)
    assert found.store is not None
    draws, mean = found.store.read("force_draws"), found.store.read("force_mean")
    assert draws.shape == (COUNT, 3, 1, mean.shape[-1])
    sd = np.sqrt(found.store.read("force_var"))
    assert np.abs((draws - mean[:, None]) / sd[:, None]).mean() < 2


def test_the_size_of_a_block_does_not_depend_on_workers_or_free_memory(run: FitRun) -> None:
    model = model_with(run.config, ["a", "b"])
    fleets = [Survey(count, 12, (0, 0), (10, 10), variance=False, gap=1, span=10) for count in (5, 100, 512, 10**6)]
    sizes = [batch_size(model, fleet, InferenceConfig()) for fleet in fleets]
    assert sizes == [16, 16, 32, 128]


def test_the_summary_of_a_fleet_is_that_of_its_rows(run: FitRun, folder: Path) -> None:
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [row["id"] for row in summary["instances"]] == [row["id"] for row in Store.open(folder / "run").rows()]
    assert summary["mean"]["latent_q2"] == pytest.approx(np.mean([row["latent_q2"] for row in summary["instances"]]))
    assert summary["worst"]["latent_q2"] == min(row["latent_q2"] for row in summary["instances"])
    rows = {row["id"]: row for row in summary["instances"]}
    for result in run:
        told = {name: (one["mean"], one["sd"]) for name, one in rows[result.id]["parameters"].items()}
        assert told == {one.name: pytest.approx((one.mean, one.sd)) for one in result.estimates}
