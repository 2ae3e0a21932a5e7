"""Whole runs of fits: what they leave on the disk, and how they fail."""

from __future__ import annotations

import gc
import json
import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.config import load
from distlfm.errors import UsageError, WorkError
from distlfm.fleets import fit_job
from distlfm.inference import archive
from distlfm.inference.archive import load_fit
from distlfm.inference.fit import fit_instances
from distlfm.inference.result import FitResult, Prediction
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms.priors import LogNormal
from distlfm.runs.settings import FitConfig
from distlfm.verbs.fit import fit
from tests.support.fit_toy import GENES, MECHANISM, make_instances, quick

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "fit"
needs_data = pytest.mark.skipif("DISTLFM_DATA_DIR" not in os.environ, reason="DISTLFM_DATA_DIR is not set")
ROW_KEYS = {
    "id", "status", "output_q2", "latent_q2", "latent_correlation", "latent_coverage_68", "latent_coverage_95",
    "output_coverage_68", "output_coverage_95", "parameter_mae", "parameter_mae_sum", "elbo", "seconds",
    "parameters",
    "residual_structure",
}  # fmt: skip
KEYS = {
    "instances",
    "mean",
    "worst",
    "statuses",
    "failures",
    "unreliable",
    "set_aside",
    "notices",
    "config_hash",
    "versions",
}


@needs_data
@pytest.mark.slow
def test_the_toy_sets_are_recovered() -> None:
    run = fit(load(FitConfig, CONFIGS / "transcription_toy.yaml", ["inference.posterior.draws=12"]))
    assert len(run.figures) == 5
    for row in run.figures:
        assert row["status"] == "converged"
        assert row["latent_q2"] >= 0.99
        assert row["output_q2"] >= 0.999
        assert row["parameter_mae_sum"] <= 0.1


@needs_data
@pytest.mark.slow
def test_p53_runs_from_the_command_line_to_a_report(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    code = main(["fit", str(CONFIGS / "p53.yaml"), "--out", str(out), "inference.posterior.draws=4"])
    assert code == 0
    assert {path.name for path in out.iterdir()} == {
        "config.yaml",
        "events.jsonl",
        "fits",
        "lock",
        "report.html",
        "store.zarr",
        "summary.json",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) == KEYS
    assert len(summary["instances"]) == len(list((out / "fits").iterdir())) == 3
    for row in summary["instances"]:
        assert set(row) == ROW_KEYS
        assert row["output_q2"] > 0.8
        # There is no truth about p53's activity.
        assert row["latent_q2"] is row["latent_coverage_68"] is row["parameter_mae_sum"] is None
    assert load_fit(next((out / "fits").iterdir())).predict([1.0, 14.0]).force.mean.shape == (1, 2)
    again = load(FitConfig, out / "config.yaml")
    assert again.run.dir == out


def make_config(**run: Any) -> FitConfig:
    return FitConfig(
        mechanism={**MECHANISM, "outputs": list(GENES)},
        likelihood=LikelihoodConfig(prior=LogNormal(median=0.1)),
        inference=quick(optimiser={"rounds": 0, "iterations": 6}),
        run=run,
    )


@pytest.mark.slow
def test_a_summary_is_json_with_nulls_where_nothing_is_known(tmp_path: Path) -> None:
    known, unknown, bad = make_instances(3)
    instances = [known, replace(unknown, truth=None), replace(bad, values=np.full((3, 8), 1e200))]
    run = fit(make_config(dir=tmp_path / "run"), instances)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    rows = summary["instances"]
    assert [set(row) for row in rows] == [ROW_KEYS] * 3
    assert rows[0]["latent_q2"] is not None
    assert rows[1]["latent_q2"] is None
    assert rows[1]["output_q2"] is not None
    assert (rows[2]["status"], rows[2]["elbo"], rows[2]["output_q2"]) == ("diverged", None, None)
    assert [(one["id"], "units" in one["reason"]) for one in summary["failures"]] == [(bad.id, True)]
    assert summary["mean"]["latent_q2"] == pytest.approx(rows[0]["latent_q2"])
    assert summary["config_hash"] == run.summary["config_hash"]


@pytest.mark.slow
def test_a_run_keeps_no_posterior_and_its_results_are_read_again_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posteriors: list[weakref.ref[Any]] = []
    first: list[tuple[tuple[str, str, str], Prediction]] = []

    def watched(*arguments: Any) -> list[FitResult]:
        results = fit_instances(*arguments)
        posteriors.extend(weakref.ref(result.posterior) for result in results)
        first.extend(((result.id, result.status, result.advice), result.grid) for result in results)
        return results

    monkeypatch.setattr(fit_job, "fit_instances", watched)
    run = fit(make_config(dir=tmp_path / "run", batch=2, executor="serial"), make_instances(5))
    gc.collect()
    assert [reference() for reference in posteriors] == [None] * 5
    assert [one.id for one in run.results[-2:]] == [told[0] for told, _ in first[-2:]]
    for again, (told, grid) in zip(run.results, first, strict=True):
        assert (again.id, again.status, again.advice) == told
        np.testing.assert_allclose(again.grid.force.upper95, grid.force.upper95, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_a_report_reads_the_few_fits_that_it_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    load_one = archive.load_fit

    def watched(path: Path) -> FitResult:
        read.append(path)
        return load_one(path)

    monkeypatch.setattr(archive, "load_fit", watched)
    fit(make_config(dir=tmp_path / "run"), make_instances(9))
    assert len(read) == 4


def test_a_run_directory_that_cannot_be_made_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"Cannot write to .*file/run: .*Choose another --out directory"):
        fit(make_config(dir=tmp_path / "file" / "run"), make_instances(1))


def test_a_run_of_which_everything_fails_says_so() -> None:
    bad = [replace(one, values=np.full((3, 8), 1e200)) for one in make_instances(2)]
    with pytest.raises(WorkError, match=r"All 2 fits failed\. .*units"):
        fit(make_config(), bad)
