"""Parts of a fit side by side in one run directory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distlfm.cluster.blocks.ledger import Share
from distlfm.config import load
from distlfm.data import read, write_npz
from distlfm.errors import UsageError
from distlfm.fleets.driver import Fleet
from distlfm.runs.settings import DataConfig, FitConfig
from distlfm.store import Store, driver_lock, holder, part_lock
from distlfm.verbs import fit as fit_part_module
from distlfm.verbs.fit import fit, fit_part
from distlfm.verbs.status import status
from tests.support.fleet_runs import assert_same, write_fleet

INSTANCES = 10


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, INSTANCES)
    return folder


def config(fleet: Path, out: Path) -> FitConfig:
    return load(
        FitConfig, fleet / "config.yaml", [f"data.path={fleet / 'data.npz'}", f"run.dir={out}", "run.executor=serial"]
    )


@pytest.mark.slow
def test_parts_together_are_the_whole_and_the_last_one_concludes(fleet: Path, tmp_path: Path) -> None:
    first = fit_part(config(fleet, tmp_path / "run"), Share(2, 2))
    assert (first.count, first.left, first.run) == (4, 6, None)
    assert Store.open(tmp_path / "run").missing() == [0, 2]
    assert status(tmp_path / "run").state == "stopped"
    last = fit_part(config(fleet, tmp_path / "run"), Share(1, 2))
    assert (last.count, last.failed, last.left) == (6, 0, 0)
    assert last.run is not None
    assert last.run.tally.count == INSTANCES
    assert {"report.html", "summary.json"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert not (tmp_path / "run" / "input").exists()
    again = fit_part(config(fleet, tmp_path / "run"), Share(1, 3))
    assert (again.left, again.run) == (0, None), "a finished run is left as it is"
    assert not (tmp_path / "run" / "input").exists()
    fit(config(fleet, tmp_path / "whole"))
    assert_same(tmp_path / "run", tmp_path / "whole", INSTANCES)


@pytest.mark.slow
def test_a_part_begun_with_other_data_changes_nothing_for_those_at_work(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = read(fleet / "data.npz").instances
    write_npz(tmp_path / "other.npz", [replace(one, values=one.values + 1.0) for one in instances])
    run, work = tmp_path / "run", fit_part_module.run_blocks
    fit_part(config(fleet, run), Share(2, 2))

    def meanwhile(*arguments: Any) -> None:
        before = sorted((run / "input").iterdir())
        other = config(fleet, run)
        mistaken = other.model_copy(update={"data": DataConfig(path=tmp_path / "other.npz")})
        with pytest.raises(UsageError, match="begun with other data"):
            fit_part(mistaken, Share(2, 2))
        assert sorted((run / "input").iterdir()) == before
        work(*arguments)

    monkeypatch.setattr(fit_part_module, "run_blocks", meanwhile)
    last = fit_part(config(fleet, run), Share(1, 2))
    assert last.run is not None
    monkeypatch.undo()
    fit(config(fleet, tmp_path / "whole"))
    assert_same(run, tmp_path / "whole", INSTANCES)


@pytest.mark.slow
def test_a_part_that_does_a_block_again_writes_the_report_again_and_tells_its_own_command(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, work = tmp_path / "run", fit_part_module.run_blocks
    told: list[str] = []

    def noted(fleet_: Fleet, *more: Any) -> None:
        told.append(fleet_.command)
        assert not (run / "report.html").exists(), "the old report stands while a block is done again"
        work(fleet_, *more)

    monkeypatch.setattr(fit_part_module, "run_blocks", noted)
    for _ in range(2):
        assert fit_part(config(fleet, run), Share(1, 1)).run is not None
        (run / "store.zarr" / "markers" / "00001.json").unlink()
    assert fit_part(config(fleet, run), Share(1, 3)).run is None
    assert status(run).state == "stopped"
    assert not (run / "report.html").exists()
    assert told[2] == f"distlfm fit {run / 'config.yaml'} --out {run} --part 1/3"


def test_a_part_without_a_folder_is_refused(fleet: Path) -> None:
    bare = load(FitConfig, fleet / "config.yaml", [f"data.path={fleet / 'data.npz'}"])
    with pytest.raises(UsageError, match="--out"):
        fit_part(bare, Share(1, 2))


def test_parts_work_side_by_side_and_nobody_does_what_another_has_in_hand(tmp_path: Path) -> None:
    with part_lock(tmp_path, "1/3") as one, part_lock(tmp_path, "3/3"):
        assert holder(tmp_path) == one
        for refused in (part_lock(tmp_path, "1/3"), part_lock(tmp_path, "2/4"), driver_lock(tmp_path)):
            with pytest.raises(UsageError, match=rf"in use: fit, part 1/3 on .*process {os.getpid()}"), refused:
                raise AssertionError("two at the same work")
        with part_lock(tmp_path, "2/3"):
            pass
    assert holder(tmp_path) is None
    whole, refused = driver_lock(tmp_path, "fit"), part_lock(tmp_path, "2/3")
    with whole, pytest.raises(UsageError, match="in use: fit on"), refused:
        raise AssertionError("two at the same work")
    with part_lock(tmp_path, "2/4"):
        assert holder(tmp_path) is not None


def test_the_driver_of_a_job_says_which_job_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "44")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "41")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with driver_lock(tmp_path) as me:
        assert me.job == "41_3"
        assert f", job 41_3, process {os.getpid()}" in str(holder(tmp_path))
