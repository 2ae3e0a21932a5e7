"""`distlfm submit`: what it refuses before queueing, and what it notes for `distlfm status`.

Slurm's commands are stand-ins here: small programs on the PATH that note how they were called.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from distlfm.cli import main
from distlfm.cluster.slurm.jobs import notes_of
from distlfm.store.lock import driver_lock
from distlfm.verbs.generate import generate
from tests.support.slurm_stand_ins import DATA, HOUR, OUT, SITE, called, command, dry, refused, users_folder

PROJECT = Path(__file__).resolve().parents[2]
TRAIN = str(PROJECT / "configs" / "train" / "transcription.yaml")
TUNE = str(PROJECT / "configs" / "tune" / "transcription.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return users_folder(tmp_path, monkeypatch)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["query", "fit.yaml", *OUT, *HOUR], "'query' cannot be submitted. These can: fit, generate, train, tune."),
        (["evaluate", "operator", "genes.zarr", *OUT, *HOUR], "Queue its script: sbatch slurm/evaluate.sbatch"),
        (["train", "fit.yaml", *OUT, *HOUR], "fit.yaml is a config of `distlfm fit`. Submit it as fit"),
        (["fit", "none.yaml", *OUT, *HOUR], "There is no config file none.yaml."),
        (["fit", "fit.yaml", *DATA, *HOUR], "No folder is given for the results."),
        (["fit", "fit.yaml", *OUT, *HOUR], "No data are named."),
        (["fit", "fit.yaml", "--data", "none.csv", *OUT, *HOUR], "none.csv"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "run.sed=1"], "Did you mean 'run.seed'"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "run.executor=serial"], "run.executor is serial"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "run.address=auto"], "a job starts a Ray of its own"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--array", "2", "--nodes", "2"], "Leave --nodes out."),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--array", "0"], "--array '0' is not a number of tasks."),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--array", "2", "--mpi-ranks", "2"], "not both"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--nodes", "2", "--mpi-ranks", "3"], "a multiple of 2"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--mpi-ranks", "2"], "Unknown key 'mechanism.ranks'"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--gpus", "1"], "--gpus is for trainings, not for fit."),
        (["fit", "fit.yaml", *DATA, *OUT, "--time", "soon"], "--time 'soon' is not a time."),
        (["fit", "fit.yaml", *DATA, *OUT, "--time", "0"], "--time '0' is not a time."),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--memory", "much"], "--memory 'much' is not an amount"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--dependency", "tomorrow"], "is not known to Slurm"),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--sbatch=--output=x"], "--output is set already."),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--sbatch=rm -rf"], "'rm -rf' is not an option of sbatch."),
        (["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--partition", "a\nb"], "no batch script can hold"),
        (["generate", "generate.yaml", *DATA, *OUT, *HOUR], "--data genes.csv is one too many for generate."),
        (["generate", "generate.yaml", *OUT, *HOUR, "--array", "2"], "--array is for fits, not for generate."),
        (["generate", "generate.yaml", "--out", "bin", *HOUR], "bin is not empty."),
        (["train", TRAIN, *OUT, *HOUR, "data.stores=[]"], "There are no data to learn from."),
        (["train", TRAIN, *OUT, *HOUR, "--data", "none.zarr"], "none.zarr"),
        (["train", TRAIN, *OUT, *HOUR, "--tasks", "2", "run.launcher=ray"], "run.launcher is ray"),
        (["tune", TUNE, *OUT, *HOUR, "--data", "none.zarr"], "none.zarr"),
    ],
)
def test_what_a_job_would_refuse_is_refused_before_it_is_queued(
    arguments: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder, "sbatch", "17\n")
    before = sorted(folder.rglob("*"))
    assert sentence in refused(capsys, *arguments)
    assert sorted(folder.rglob("*")) == before


def test_data_that_cannot_be_read_are_told_before_the_job_is_queued(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "genes.csv").write_text("time,gene,value\n0,a,one\n1,a,two\n")
    assert "genes.csv" in refused(capsys, "fit", "fit.yaml", *DATA, *OUT, *HOUR)


def test_data_of_a_job_that_waits_for_another_need_not_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = dry(capsys, "fit", "fit.yaml", "--data", "later.zarr", *OUT, *HOUR, "--dependency", "17")
    assert "#SBATCH --dependency=afterok:17\n" in text


def test_a_store_that_was_begun_with_other_settings_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate("generate.yaml", ["run.dir=genes.zarr", "run.executor=serial"])
    told = refused(capsys, "generate", "generate.yaml", "--out", "genes.zarr", *HOUR, "points=13")
    assert "was begun with points=12, and it is 13 now" in told
    assert "--nodes=1" in dry(capsys, "generate", "generate.yaml", "--out", "genes.zarr", *HOUR)


def test_without_slurm_a_sentence_says_so_and_nothing_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    told = refused(capsys, "fit", "fit.yaml", *DATA, "--out", "genes", *HOUR)
    assert told.startswith("distlfm: There is no Slurm here: sbatch is not on the PATH.")
    assert "--dry-run" in told
    assert sorted(folder.rglob("*")) == before


def test_what_sbatch_refuses_is_told_in_its_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "sbatch: error: invalid partition specified: short\nsbatch: error: Batch job submission failed\n"
    command(folder, "sbatch", "", 1, said)
    assert main(["submit", "fit", "fit.yaml", *DATA, "--out", "genes", *HOUR]) == 1
    assert "invalid partition specified: short; Batch job submission failed. " in capsys.readouterr().err
    assert not (folder / "genes.jobs").exists()


# ---- what is queued --------------------------------------------------------------------------------------------------


def test_a_job_gets_the_config_that_was_checked_and_the_user_how_to_follow_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder, "sbatch", "17;cluster\n")
    command(folder, "squeue", "17|RUNNING|1:02|None|n[1-2]\n")
    assert main(["submit", "fit", "fit.yaml", "run.seed=3", *DATA, *OUT, "--nodes", "2", *HOUR]) == 0
    jobs = folder / "runs" / "genes.jobs"
    assert capsys.readouterr().out.splitlines() == [
        "job 17: fit on 2 nodes, for 1:00:00 at most",
        f"script: {jobs}/fit-1.sbatch",
        f"log: {jobs}/distlfm-fit-17.log",
        "to follow it: distlfm status runs/genes; to stop it: scancel 17",
    ]
    assert called(folder, "sbatch") == [f"--parsable {jobs}/fit-1.sbatch"]
    kept = yaml.safe_load((jobs / "fit-1.yaml").read_text())
    assert kept["run"]["seed"] == 3
    assert kept["run"]["dir"] == str(folder / "runs" / "genes")
    assert kept["data"]["path"] == str(folder / "genes.csv")
    assert f"ray_cluster fit {jobs}/fit-1.yaml" in (jobs / "fit-1.sbatch").read_text()


def test_a_job_that_cannot_be_noted_is_named_with_how_to_stop_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder, "sbatch", "17\n")
    (folder / "genes.jobs" / "jobs.jsonl").mkdir(parents=True)
    assert main(["submit", "fit", "fit.yaml", *DATA, "--out", "genes", *HOUR]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.endswith(
        "Job 17 is queued, and no other command knows of it. Stop it (scancel 17), mend that, and submit again."
    )


def test_a_note_after_one_that_was_cut_short_is_a_line_of_its_own(folder: Path) -> None:
    command(folder, "sbatch", "17\n")
    command(folder, "squeue", "17|PENDING|0:00|None|\n")
    (folder / "genes.jobs").mkdir()
    (folder / "genes.jobs" / "jobs.jsonl").write_text('{"job": "16", "verb": "f')
    assert main(["submit", "fit", "fit.yaml", *DATA, "--out", "genes", *HOUR]) == 0
    assert [note.job for note in notes_of(folder / "genes")] == ["17"]


def test_sbatch_sees_what_the_site_file_sets_and_nothing_of_a_surrounding_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(folder, "sbatch", "17\n")
    (folder / "site.sh").write_text(f"{SITE}echo modules are loaded\nfalse\n")
    around = {"SLURM_NNODES": "9", "SLURM_JOB_ID": "5", "SLURM_CONF": "/etc/slurm.conf", "DISTLFM_COMPLETE": "/other"}
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    assert main(["submit", "fit", "fit.yaml", *DATA, *OUT, *HOUR, "--site", "site.sh"]) == 0
    seen = dict(line.split("=", 1) for line in (folder / "sbatch.environment").read_text().splitlines() if "=" in line)
    assert seen["SBATCH_ACCOUNT"] == "lab"
    assert {name for name in seen if name.startswith("SLURM_")} == {"SLURM_CONF"}
    assert "DISTLFM_COMPLETE" not in seen


def test_the_config_that_a_job_got_can_be_submitted_again_with_other_resources(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command(folder, "sbatch", "17\n")
    command(folder, "squeue", "17|TIMEOUT|1:00:00|TimeLimit|n1\n")
    assert main(["submit", "fit", "fit.yaml", *DATA, *OUT, *HOUR]) == 0
    jobs = folder / "runs" / "genes.jobs"
    monkeypatch.chdir(folder / "bin")
    assert main(["submit", "fit", str(jobs / "fit-1.yaml"), "--nodes", "3", *HOUR]) == 0
    assert (jobs / "fit-2.yaml").read_text() == (jobs / "fit-1.yaml").read_text()
    assert "--nodes=3\n" in (jobs / "fit-2.sbatch").read_text()


@pytest.mark.parametrize(("state", "again"), [("PENDING", 2), ("RUNNING", 2), ("COMPLETED", 0), ("FAILED", 0)])
def test_a_second_job_for_a_run_is_refused_while_the_first_waits_or_runs(
    state: str, again: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder, "sbatch", "17\n")
    command(folder, "squeue", f"17|{state}|0:00|Priority|\n")
    call = ["submit", "fit", "fit.yaml", *DATA, *OUT, *HOUR]
    assert main(call) == 0
    assert main(call) == again
    told = capsys.readouterr().err
    assert ("--dependency afterany:17" in told) == bool(again)
    assert main([*call, "--dependency", "afterany:17"]) == 0
    numbers = [1, 2] if again else [1, 2, 3]
    assert sorted(one.name for one in (folder / "runs" / "genes.jobs").glob("*.sbatch")) == [
        f"fit-{number}.sbatch" for number in numbers
    ]


@pytest.mark.parametrize(
    ("dependency", "code"),
    [
        ("17", 0),
        ("afterok:16:17", 0),
        ("afterany:16,afterok:17", 0),
        ("singleton", 0),
        ("afterok:16", 2),
        ("after:17", 2),
        ("afterok:170", 2),
    ],
)
def test_a_job_may_queue_behind_another_of_its_run_if_it_waits_for_the_end_of_that_one(
    dependency: str, code: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder, "sbatch", "17\n")
    command(folder, "squeue", "17|RUNNING|0:00|None|n1\n")
    call = ["submit", "fit", "fit.yaml", *DATA, *OUT, *HOUR]
    assert main(call) == 0
    assert main([*call, "--dependency", dependency]) == code
    assert ("job 17 (fit): running" in capsys.readouterr().err) == bool(code)


def test_what_a_job_works_on_is_refused_to_those_that_do_not_wait_for_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command(folder, "sbatch", "18\n")
    run = folder / "runs" / "genes"
    run.mkdir(parents=True)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    call = ["fit", "fit.yaml", *DATA, *OUT, *HOUR, "--dependency"]
    with driver_lock(run):
        assert f"{run} is in use: fit on" in refused(capsys, *call, "16")
        assert main(["submit", *call, "17"]) == 0
