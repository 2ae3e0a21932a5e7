"""`distlfm status` of runs that were submitted: what Slurm says of their jobs, and trainings and sweeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distlfm.cli import main
from distlfm.config import dump, load
from distlfm.training.settings import TuneConfig
from distlfm.verbs.generate import generate
from distlfm.verbs.train import train
from distlfm.verbs.tune import TrialLog
from tests.support.lfo_toy import make_store
from tests.support.slurm_stand_ins import DATA, HOUR, OUT, called, command, users_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return users_folder(tmp_path, monkeypatch)


def submit_one(folder: Path, capsys: pytest.CaptureFixture[str], squeue: str) -> None:
    command(folder, "sbatch", "17\n")
    command(folder, "squeue", squeue)
    assert main(["submit", "fit", "fit.yaml", *DATA, *OUT, *HOUR]) == 0
    capsys.readouterr()


def test_status_of_a_run_that_is_only_queued_tells_what_it_waits_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit_one(folder, capsys, "17|PENDING|0:00|Resources|\n")
    assert main(["status", "runs/genes"]) == 0
    log = folder / "runs" / "genes.jobs" / "distlfm-fit-17.log"
    assert capsys.readouterr().out.splitlines() == [
        "runs/genes: fit, queued",
        f"job 17 (fit): pending (Resources); log: {log}",
    ]


def test_status_of_a_run_whose_job_has_failed_is_stopped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit_one(folder, capsys, "17|FAILED|0:10|NonZeroExitCode|n1\n")
    assert main(["status", "runs/genes"]) == 1
    shown = capsys.readouterr().out
    assert "runs/genes: fit, stopped\n" in shown
    assert "job 17 (fit): failed on n1 (NonZeroExitCode)" in shown
    assert f"to go on: distlfm fit {folder}/runs/genes.jobs/fit-1.yaml\n" in shown


def test_status_shows_the_jobs_of_a_store_and_counts_the_tasks_of_an_array(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate("generate.yaml", ["run.dir=genes.zarr", "run.executor=serial"])
    command(folder, "sbatch", "17\n")
    command(
        folder, "squeue", "17_0|RUNNING|0:10|None|n1\n17_1|FAILED|0:10|NonZeroExitCode|n1\n17_2|RUNNING|0:1|None|n2\n"
    )
    assert main(["submit", "generate", "generate.yaml", "--out", "genes.zarr", *HOUR]) == 0
    capsys.readouterr()
    assert main(["status", "genes.zarr"]) == 0
    assert "job 17 (generate): 3 tasks: 1 failed, 2 running; log: " in capsys.readouterr().out
    assert main(["status", "genes.zarr", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["jobs"]
    assert told["states"] == {"17_0": "RUNNING", "17_1": "FAILED", "17_2": "RUNNING"}
    assert (told["job"], told["active"]) == ("17", True)


def test_a_job_that_has_left_the_queue_is_asked_of_the_accounting(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit_one(folder, capsys, "")
    command(folder, "sacct", "17|CANCELLED by 1000|00:00:07|0:15|n2\n")
    assert main(["status", "runs/genes"]) == 1
    assert "job 17 (fit): cancelled on n2 (0:15)" in capsys.readouterr().out
    assert "--jobs=17" in called(folder, "sacct")[-1]


def test_a_job_that_nobody_knows_any_more_points_to_its_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit_one(folder, capsys, "")
    command(folder, "squeue", "", 1, "slurm_load_jobs error: Invalid job id specified\n")
    command(folder, "sacct", "", 1, "Slurm accounting storage is disabled\n")
    assert main(["status", "runs/genes"]) == 1
    assert "job 17 (fit): no longer known to Slurm; its log says how it ended; log: " in capsys.readouterr().out


@pytest.mark.parametrize("there", [True, False])
def test_where_slurm_does_not_answer_status_says_so(
    there: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit_one(folder, capsys, "")
    command(folder, "squeue", "", 1, "squeue: error: Unable to contact slurm controller\n")
    if not there:
        os.remove(folder / "bin" / "squeue")
    assert main(["status", "runs/genes"]) == 1
    assert "job 17 (fit): Slurm does not answer here; log: " in capsys.readouterr().out


def test_a_damaged_list_of_jobs_costs_only_the_damaged_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit_one(folder, capsys, "17|PENDING|0:00|Priority|\n")
    notes = folder / "runs" / "genes.jobs" / "jobs.jsonl"
    notes.write_text('{"job": "16", "ver\n' + notes.read_text())
    assert main(["status", "runs/genes"]) == 0
    assert "job 17 (fit): pending (Priority)" in capsys.readouterr().out


def test_a_folder_without_run_and_jobs_has_no_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "bin"]) == 2
    assert "bin is not a store" in capsys.readouterr().err


def test_looking_at_a_run_loads_nothing_that_computes() -> None:
    program = "import sys, distlfm.verbs.status; print({'torch', 'ray', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# ---- trainings and sweeps --------------------------------------------------------------------------------------------

TRAIN = """verb: train
operator: {width: 4, modes: 2, layers: 1, head: 4, pooled: 2}
loop: {epochs: 2, batch: 4}
run: {threads: 1, tensorboard: false}
"""
TUNE = """verb: tune
train: {operator: {width: 4, modes: 2, layers: 1, head: 4, pooled: 2}, loop: {epochs: 2, batch: 4}}
space: {optimiser.lr: {kind: loguniform, low: 1.0e-4, high: 1.0e-2}}
search: {trials: 3}
"""


def test_status_of_a_training_counts_its_steps_and_a_finished_one_is_complete(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(folder / "store.zarr", count=12)
    (folder / "train.yaml").write_text(TRAIN)
    run = train("train.yaml", ["data.stores=[store.zarr]", "run.dir=operator"])
    steps = run.summary["steps"]
    assert main(["status", "operator"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "operator: train, complete",
        f"{steps}/{steps} steps done (100 %), 0 failed, 0 running",
    ]
    (folder / "operator" / "operator.pt").unlink()
    assert main(["status", "operator"]) == 1
    assert "nobody works on it; to go on: distlfm resume operator" in capsys.readouterr().out


def test_a_training_that_was_begun_with_other_settings_is_not_queued(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(folder / "store.zarr", count=12)
    (folder / "train.yaml").write_text(TRAIN)
    train("train.yaml", ["data.stores=[store.zarr]", "run.dir=operator"])
    call = ["submit", "train", "train.yaml", "--data", "store.zarr", "--out", "operator", *HOUR, "--dry-run"]
    assert main([*call, "loop.batch=3"]) == 2
    assert "operator was begun with loop.batch=4, and it is 3 now" in capsys.readouterr().err
    assert main(call) == 0


def test_status_of_a_sweep_counts_its_trials(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tune.yaml").write_text(TUNE)
    config = load(TuneConfig, folder / "tune.yaml")
    sweep = folder / "sweep"
    sweep.mkdir()
    (sweep / "config.yaml").write_text(dump(config))
    assert main(["status", "sweep"]) == 1
    assert "0/3 trials done (0 %), 0 failed, 0 running" in capsys.readouterr().out
    ledger = TrialLog(config, sweep)
    for rate in (1e-3, 2e-3):
        ledger.began({"optimiser.lr": rate})
    ledger.ended({"optimiser.lr": 1e-3}, "diverged")
    assert main(["status", "sweep"]) == 1
    shown = capsys.readouterr().out
    assert "sweep: tune, stopped\n1/3 trials done (33 %), 1 failed, 1 running\nended as: 1 failed\n" in shown
