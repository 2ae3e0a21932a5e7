"""A study as one command: jobs that wait for each other, from generated instances to a judged operator, and a sweep."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import build, load
from distlfm.runs.settings import GenerateConfig
from distlfm.store import Store
from distlfm.store.inspection import verify
from distlfm.training.settings import TrainConfig
from distlfm.verbs.generate import generate
from distlfm.verbs.train import open_run
from tests.support.fleet_runs import numbers
from tests.support.importing import ROOT
from tests.support.slurm_jobs import QUICK, SMALL, Job, Queue
from tests.support.train_runs import STORE, TRAIN, TUNE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INSTANCES, EPOCHS, TRIALS = 24, 2, 2
VERBS = ["generate", "fit", "train", "evaluate"]
GENERATE: dict[str, Any] = {**STORE, "verb": "generate", "instances": INSTANCES, "run": {"block": 8}}
FIT: dict[str, Any] = {
    "verb": "fit",
    **{name: STORE[name] for name in ("mechanism", "likelihood")},
    "inference": QUICK,
    "run": {"batch": 8, "keep": "none", "seed": 5},
}
LOOP = {**TRAIN["loop"], "epochs": EPOCHS}
LEARN: dict[str, Any] = {**TRAIN, "loop": LOOP, "split": {"validation": 0.3, "calibration": 0.2}}
SWEEP: dict[str, Any] = {
    **TUNE,
    "train": {key: value for key, value in LEARN.items() if key not in ("verb", "run")},
    "search": {"trials": TRIALS, "seed": 2},
    "asha": {"grace": EPOCHS},
}


def written(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(content))
    return path


def chained(queue: Queue, pipeline: Job) -> dict[str, Job]:
    """The jobs that the first one has sent, by verb."""
    found = dict(re.findall(r"^(\w+): job (\d+)$", pipeline.text, re.MULTILINE))
    assert list(found) == VERBS, pipeline.text
    return {verb: Job(queue.cluster, number, queue.folder / f"{number}.log") for verb, number in found.items()}


def test_a_chain_of_jobs_leaves_a_store_its_fits_an_operator_and_its_judgement_and_a_sweep_learns_beside_it(
    queue: Queue, tmp_path: Path
) -> None:
    out, sweep = tmp_path / "study", tmp_path / "sweep"
    configs = [
        word
        for verb, content in (("generate", GENERATE), ("fit", FIT), ("train", LEARN))
        for word in (f"--{verb}", str(written(tmp_path, verb, content)))
    ]
    to_each = ["--nodes=1", f"--output={tmp_path}/%j.log", *SMALL]
    at_the_root = (f"--chdir={ROOT}",)
    pipeline = queue.submit("pipeline", "--out", out, *configs, "--", *to_each, options=at_the_root)
    assert pipeline.wait() == "COMPLETED", pipeline.text
    jobs = chained(queue, pipeline)
    tune = queue.submit(
        "tune",
        *(written(tmp_path, "tune", SWEEP), "--data", out / "store.zarr", "--out", sweep),
        options=(f"--dependency=afterok:{jobs['generate'].name}",),
    )
    assert {verb: job.wait() for verb, job in jobs.items()} == dict.fromkeys(VERBS, "COMPLETED"), [
        job.text for job in jobs.values()
    ]

    store = Store.open(out / "store.zarr")
    assert verify(store).flaws == []
    calm = generate(build(GenerateConfig, {**GENERATE, "run": {"block": 8, "dir": str(tmp_path / "calm.zarr")}}))
    found, wanted = numbers(store.path), numbers(calm.path)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)

    assert verify(Store.open(out / "fits")).flaws == []
    assert list(numbers(out / "fits")["id"]) == list(wanted["id"])
    run = open_run(out / "operator")
    assert run.summary["epochs"] == len(run.history) == EPOCHS
    assert run.config.data.stores == (out / "fits",)
    judged = json.loads((out / "judged" / "summary.json").read_text())
    assert "fits (its validation split" in judged["what"]
    assert 0 < judged["count"] < INSTANCES
    assert judged["failures"] == []
    assert (out / "judged" / "report.html").exists()

    assert tune.wait() == "COMPLETED", tune.text
    assert f"Ray Tune: {TRIALS} trials at a time on the cluster" in tune.text
    assert "(2 nodes, 2 CPUs)" in tune.text
    told = json.loads((sweep / "trials.json").read_text())["trials"]
    assert [one["status"] for one in told] == ["finished"] * TRIALS, told
    assert load(TrainConfig, sweep / "best.yaml").loop.epochs == EPOCHS
