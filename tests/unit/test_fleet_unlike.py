"""Fleets whose instances are unlike each other: none costs its neighbours anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import build
from distlfm.data import read
from distlfm.errors import UsageError
from distlfm.fleets import fit_job
from distlfm.inference.findings import scores as tally
from distlfm.inference.result import FitResult
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig
from distlfm.verbs.fit import FitRun, fit
from tests.support.fleet_runs import CONFIG, write_fleet

pytestmark = pytest.mark.slow

COUNT = 4


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> list[Instance]:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, COUNT)
    return read(folder / "data.npz").instances


def fit_in(out: Path, instances: list[Instance], **data: Any) -> FitRun:
    run = {**CONFIG["run"], "keep": "all", "executor": "serial", "dir": str(out)}
    return fit(build(FitConfig, {**CONFIG, "run": run, "data": data}), instances)


def cut(instance: Instance, start: int, stop: int) -> Instance:
    here = slice(start, stop)
    return replace(
        instance, times=instance.times[here], values=instance.values[:, here], mask=instance.mask[:, here], truth=None
    )


def test_instances_of_different_lengths_without_a_truth_are_scored_by_their_own_data(
    instances: list[Instance], tmp_path: Path
) -> None:
    unlike = [cut(one, i % 2, 12 - 2 * i) for i, one in enumerate(instances)]
    swapped = ("b", "a")
    unlike[1] = replace(unlike[1], outputs=swapped, values=unlike[1].values[::-1], mask=unlike[1].mask[::-1])
    found = fit_in(tmp_path / "run", unlike)
    alone = fit(build(FitConfig, {**CONFIG, "run": {"seed": CONFIG["run"]["seed"]}}), unlike[3:])
    assert [row["status"] for row in found.figures] == ["converged"] * COUNT
    assert found.figures[3]["output_q2"] == pytest.approx(alone.figures[0]["output_q2"], abs=1e-6)
    assert found.store is not None
    for row, (one, result) in enumerate(zip(unlike, found.results, strict=True)):
        np.testing.assert_array_equal(result.at_data.times, one.times)
        assert result.at_data.outputs.mean.shape == (2, len(one.times))
        np.testing.assert_array_equal(found.store.read("time")[row], result.grid.times)
        np.testing.assert_array_equal(found.store.read("solution_mean")[row], result.grid.outputs.mean)
        order = [("a", "b").index(name) for name in one.outputs]
        np.testing.assert_array_equal(found.store.read("observed")[row][order, : len(one.times)], one.values)


def test_a_share_of_the_observations_may_leave_out_the_first(instances: list[Instance], tmp_path: Path) -> None:
    found = fit_in(tmp_path / "run", instances, fraction=0.5, split_seed=0)
    assert found.results[0].instance.times[0] > instances[0].times[0], "the draw must leave the first out"
    assert [row["status"] for row in found.figures] == ["converged"] * COUNT
    assert all(row["latent_q2"] is not None for row in found.figures)


def test_an_instance_that_cannot_be_scored_costs_itself_only(
    instances: list[Instance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(result: FitResult) -> Any:
        if result.id == instances[2].id:
            raise ValueError("no score")
        return tally.row_of(result)

    monkeypatch.setattr(fit_job, "row_of", scored)
    found = fit_in(tmp_path / "run", instances)
    assert [row["status"] for row in found.figures] == ["converged", "converged", "failed", "converged"]
    assert found.tally.failures[0]["reason"] == "ValueError: no score"


def test_positions_are_refused_where_there_is_no_space(instances: list[Instance], tmp_path: Path) -> None:
    placed = replace(instances[1], positions=np.zeros((len(instances[1].times), 1)), truth=None)
    with pytest.raises(UsageError, match="'sim-000001' was observed at positions, and 'transcription' has no space"):
        fit_in(tmp_path / "run", [instances[0], placed])


def test_an_instance_of_which_too_little_is_left_is_set_aside(instances: list[Instance], tmp_path: Path) -> None:
    short = cut(instances[0], 0, 3)
    found = fit_in(tmp_path / "run", [short, *instances[1:]], stride=4)
    assert [row["id"] for row in found.figures] == [one.id for one in instances[1:]]
    assert "only one time point" in str(found.set_aside[0])


def test_an_instance_of_a_store_of_which_too_little_is_left_is_set_aside_too(
    instances: list[Instance], tmp_path: Path
) -> None:
    short = cut(instances[1], 0, 3)
    run = {**CONFIG["run"], "executor": "serial"}
    whole = build(FitConfig, {**CONFIG, "run": {**run, "dir": str(tmp_path / "whole")}})
    fit(whole, [instances[0], short, *instances[2:]])
    thinned = {**CONFIG, "run": {**run, "dir": str(tmp_path / "run")}, "data": {"stride": 4}}
    found = fit(build(FitConfig, thinned), tmp_path / "whole")
    assert [row["id"] for row in found.figures] == [instances[0].id, *(one.id for one in instances[2:])]
    assert [problem.instance for problem in found.set_aside] == [short.id]
    assert "only one time point" in str(found.set_aside[0])
    assert found.store is not None
    np.testing.assert_array_equal(found.store.read("observed_time")[1], instances[2].times[::4])
