"""Generated instances go into a store: each once, the same again, and what diverges is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import build
from distlfm.errors import UsageError, WorkError
from distlfm.runs.settings import GenerateConfig
from distlfm.simulation import series as generate_trajectories
from distlfm.simulation.block import generate_block, open_draws, store_spec
from distlfm.solvers.field.meshed import close_helper_groups
from distlfm.store import STATUSES, Store
from distlfm.verbs.generate import GenerateJob, generate, resume_generate
from tests.support.generate_toy import genes, made, shipped


def test_a_worker_fills_a_store_that_gives_the_instances_back(tmp_path: Path) -> None:
    config = genes(instances=7, missing=0.2, run={"block": 3}, units={"time": "h"})
    draws = open_draws(config)
    store = Store.create(tmp_path / "store", store_spec(config, draws))
    job = GenerateJob.of(config, store)
    assert job.num_blocks == 3
    assert list(job.sizes()) == [3, 3, 1]
    worker = job.open()
    reports = [worker.run(block, {1: "it was bad"} if block == 0 else {}) for block in (2, 0, 1)]
    assert [report["count"] for report in reports] == [1, 3, 3]
    assert [report["failed"] for report in reports] == [0, 1, 0]
    assert not store.missing()
    whole = made(config, range(7))
    kept = [0, *range(2, 7)]
    assert [one.id for one in store.instances()] == [whole["id"][i] for i in kept]
    for one, row in zip(store.instances(), kept, strict=True):
        assert one.truth is not None
        assert one.truth.outputs is not None
        np.testing.assert_allclose(one.truth.outputs, whole["solution_mean"][row], atol=1e-10)
        np.testing.assert_allclose(one.values[one.mask], whole["observed"][row][one.mask], atol=1e-10)
        assert one.truth.parameters["decay"].shape == (2,)
    failed = list(store.rows())[1]
    assert failed == {"id": "gen-000001", "status": "failed", "reason": "it was bad"}
    worker.attempt(1, [0, 2])


def test_a_store_goes_on_where_it_was_and_is_not_taken_for_another(tmp_path: Path) -> None:
    path = tmp_path / "store"
    config = genes(instances=10, run={"block": 4, "executor": "serial", "dir": str(path)})
    store = generate(config)
    before = {name: store.read(name) for name in ("observed", "force_mean")}
    stamps = {block: marker.created for block, marker in store.markers().items()}
    (path / "markers" / "00001.json").unlink()
    assert Store.open(path).missing() == [1]
    again = resume_generate(path, ["run.executor=serial"])
    assert not again.missing()
    assert {block: again.markers()[block].created for block in (0, 2)} == {block: stamps[block] for block in (0, 2)}
    for name, values in before.items():
        assert again.read(name).tobytes() == values.tobytes()
    with pytest.raises(UsageError, match="seed=0, and it is 1 now"):
        generate(config.model_copy(update={"seed": 1}))
    with pytest.raises(UsageError, match="instances=10"):
        generate(config.model_copy(update={"instances": 11}))


def test_what_diverges_is_told_and_nothing_else_suffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_trajectories, "MOST_STEPS", 256)

    def predators(growth: dict[str, Any], **more: Any) -> GenerateConfig:
        mechanism = {"kind": "lotka_volterra", "priors": {"growth": growth}}
        return build(GenerateConfig, {"mechanism": mechanism, "points": 11, "stop": 20.0, **more})

    config = predators({"kind": "lognormal", "median": 30.0, "spread": 3.0})
    draws = open_draws(config)
    arrays, rows = generate_block(config, draws, store_spec(config, draws), range(24))
    diverged = arrays["status"] == STATUSES["diverged"]
    assert 0 < diverged.sum() < 24
    assert np.isnan(arrays["solution_mean"][diverged]).all()
    assert np.isfinite(arrays["solution_mean"][~diverged]).all()
    assert all("Narrow the priors" in rows[i]["reason"] for i in np.flatnonzero(diverged))
    run = {"dir": str(tmp_path / "store"), "executor": "serial"}
    with pytest.raises(WorkError, match="None of 2 instances"):
        generate(predators({"kind": "uniform", "low": 1e4, "high": 2e4}, instances=2, run=run))


@pytest.mark.slow
def test_fields_on_a_mesh_of_fenics_go_into_a_store_with_their_mesh(tmp_path: Path) -> None:
    run = {"dir": tmp_path / "store", "executor": "serial", "block": 2}
    config = shipped("reaction_diffusion", instances=3)
    config = config.model_copy(update={"run": config.run.model_copy(update=run)})
    try:
        store = generate(config)
    finally:
        close_helper_groups()
    assert store.static("mesh_points").shape == (121, 1)
    assert store.static("mesh_cells").shape == (120, 2)
    assert np.isin(np.round(store.static("x"), 9), np.round(store.static("mesh_points"), 9)).all()
    assert store.read("solution_mean").shape == (3, 1, 41, 41)
    assert np.isfinite(store.read("solution_mean")).all()
    assert (store.read("solution_mean")[:, :, 0] == 0).all()
    instance = store.instances()[0]
    assert instance.positions is not None
    assert len(instance.times) == 41 * 41


@pytest.mark.slow
def test_fields_on_a_mesh_above_the_limit_are_divided_and_are_the_same_fields(tmp_path: Path) -> None:
    found = {}
    try:
        for limit in (60_000, 50):
            config = shipped("reaction_diffusion", instances=2, points=5)
            run = config.run.model_copy(update={"dir": tmp_path / str(limit), "executor": "serial"})
            mechanism = {**config.mechanism, "mesh_limit": limit}
            config = config.model_copy(update={"run": run, "mechanism": mechanism})
            found[limit] = generate(config)
            job = GenerateJob.of(config, found[limit])
            assert (job.cpus, job.grouped) == ((2, True) if limit == 50 else (1, False))
    finally:
        close_helper_groups()
    one, two = (found[limit].read("solution_mean") for limit in (60_000, 50))
    np.testing.assert_allclose(two, one, atol=1e-6 * np.abs(one).max())
