"""Jobs that wait for others: when a fit counts as done, chains of jobs, and what `distlfm status` knows of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from distlfm.cli import main
from distlfm.cluster.blocks.ledger import Share
from distlfm.cluster.slurm.allocation import Allocation
from distlfm.cluster.slurm.jobs import add_note, jobs_folder, notes_of
from distlfm.errors import UsageError, WorkError
from distlfm.fleets.fit_job import FitWorker
from distlfm.launch import chain as program
from distlfm.launch.chain import chain, links, note_of
from distlfm.launch.preempt import accounted_for, launch, note_job, run_of
from tests.support.fleet_runs import command as fit_command
from tests.support.fleet_runs import write_fleet
from tests.support.slurm_stand_ins import called, command, users_folder

PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = {verb: PROJECT / "configs" / verb / "transcription.yaml" for verb in ("generate", "train")}
CONFIGS["fit"] = PROJECT / "configs" / "fit" / "transcription_toy.yaml"


# ---- when a fit counts as done ---------------------------------------------------------------------------------------


def test_a_fit_of_which_one_instance_failed_counts_as_done_when_all_are_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fleet(tmp_path, 4)
    config = json.loads((tmp_path / "config.yaml").read_text())
    config["plugins"] = ["one_that_fails"]
    config["run"] |= {"batch": 2}
    config["inference"] = {"optimiser": {"rounds": 0, "iterations": 2}, "posterior": {"draws": 4}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "one_that_fails.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(FitWorker, "run", FitWorker.run)  # so that what the plugin puts there is gone afterwards
    run, words = tmp_path / "run", fit_command(tmp_path, tmp_path / "run")[3:]
    assert not accounted_for(str(run))
    assert main(["-q", *words, "--part", "1/2"]) == 1
    assert accounted_for(str(run), Share(1, 2))
    assert not accounted_for(str(run), Share(2, 2))
    assert not accounted_for(str(run)), "what is stopped, or at work, is not complete"
    assert main(["-q", *words, "--part", "2/2"]) == 1
    assert accounted_for(str(run), Share(2, 2))
    assert accounted_for(str(run))

    def code_of(given: str) -> object:
        monkeypatch.setenv("DISTLFM_COMPLETE", given)
        with pytest.raises(SystemExit) as ended:
            launch(lambda log: log.run([sys.executable, "-c", "raise SystemExit(1)"]))
        return ended.value.code

    assert (code_of(str(run)), code_of(""), code_of(str(tmp_path / "none"))) == (0, 1, 1)


FAILING = """from distlfm.fleets.fit_job import FitWorker
_run = FitWorker.run
def run(self, block, left_out):
    return _run(self, block, {0: "of no use", **left_out} if block == 0 else left_out)
FitWorker.run = run
"""


# ---- chains ----------------------------------------------------------------------------------------------------------


def test_a_chain_sends_each_job_after_the_one_before(tmp_path: Path) -> None:
    sent: list[list[str]] = []

    def send(words: list[str]) -> str:
        sent.append(list(words))
        return str(100 + len(sent))

    found = links(tmp_path, Path("g.yaml"), Path("f.yaml"), Path("t.yaml"))
    numbers = chain(found, Path("slurm"), ["--partition=long"], send)
    assert numbers == {"generate": "101", "fit": "102", "train": "103", "evaluate": "104"}
    waits = [[word for word in words if word.startswith("--dependency")] for words in sent]
    assert waits == [[], ["--dependency=afterok:101"], ["--dependency=afterok:102"], ["--dependency=afterok:103"]]
    assert all("--partition=long" in words for words in sent)
    given = [words[[word.endswith(".sbatch") for word in words].index(True) :] for words in sent]
    store, fits, operator = tmp_path / "store.zarr", tmp_path / "fits", tmp_path / "operator"
    assert given == [
        ["slurm/generate.sbatch", "g.yaml", "--out", str(store)],
        ["slurm/fit.sbatch", "f.yaml", "--data", str(store), "--out", str(fits)],
        ["slurm/train.sbatch", "t.yaml", "--data", str(fits), "--out", str(operator)],
        ["slurm/evaluate.sbatch", str(operator), str(fits), "--out", str(tmp_path / "judged")],
    ]
    assert f"--export=ALL,DISTLFM_COMPLETE={fits}" in sent[1]


def test_a_chain_refuses_a_place_that_sbatch_would_not_hand_on_whole(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has a comma"):
        links(tmp_path / "a,b", Path("g.yaml"), Path("f.yaml"), Path("t.yaml"))


def test_a_chain_that_cannot_be_sent_whole_is_withdrawn(tmp_path: Path) -> None:
    sent: list[str] = []

    def send(words: list[str]) -> str:
        if len(sent) == 2:
            raise WorkError("sbatch refused a job: no such partition.", "Mend that.")
        sent.append(str(101 + len(sent)))
        return sent[-1]

    found = links(tmp_path, Path("g.yaml"), Path("f.yaml"), Path("t.yaml"))
    with pytest.raises(WorkError, match=r"no such partition\. Mend that\. \['101', '102'\] are gone"):
        chain(found, Path("slurm"), [], send, lambda numbers: f"{numbers} are gone")


@pytest.mark.parametrize(("code", "told"), [(0, "Withdrawn: jobs 17, 18."), (1, "scancel 17 18")])
def test_jobs_of_a_broken_chain_are_cancelled_or_named(
    code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(users_folder(tmp_path, monkeypatch), "scancel", "", code)
    assert told in program.withdraw(["17", "18"])
    assert called(tmp_path, "scancel") == ["17 18"]


def run_chain(folder: Path, **configs: Path) -> object:
    given = [word for verb, path in (CONFIGS | configs).items() for word in (f"--{verb}", str(path))]
    with pytest.raises(SystemExit) as ended:
        program.main(["--out", str(folder / "study"), "--scripts", str(PROJECT / "slurm"), *given])
    return ended.value.code


def test_a_chain_is_checked_before_any_of_it_is_sent_noted_and_not_sent_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = users_folder(tmp_path, monkeypatch)
    command(folder, "sbatch", "17\n")
    (folder / "wrong.yaml").write_text("verb: train\noperator: {widht: 4}\n")
    assert run_chain(folder, train=folder / "wrong.yaml") == 2
    assert "Did you mean" in capsys.readouterr().err
    assert called(folder, "sbatch") == []
    assert not (folder / "study").exists()

    assert run_chain(folder) == 0
    assert len(called(folder, "sbatch")) == 4
    (note,) = notes_of(folder / "study" / "fits")
    assert (note.job, note.verb, note.nodes) == ("17", "fit", 2)
    assert note.log == str(folder / "study" / "fits.jobs" / "distlfm-fit-17.log")
    command(folder, "squeue", "17|PENDING|0:00|Dependency|\n")
    capsys.readouterr()
    assert main(["status", str(folder / "study" / "fits")]) == 0
    assert "job 17 (fit): pending (Dependency)" in capsys.readouterr().out
    assert run_chain(folder) == 2
    assert "job 17 (generate): pending (Dependency), and it is for" in capsys.readouterr().err
    assert len(called(folder, "sbatch")) == 4


def test_a_chain_of_scripts_that_say_little_is_noted_as_slurm_names_its_jobs(tmp_path: Path) -> None:
    (tmp_path / "fit.sbatch").write_text("#!/bin/bash\n#SBATCH -N 3\n")
    link = links(tmp_path, Path("g.yaml"), Path("f.yaml"), Path("t.yaml"))[1]
    note = note_of(link, "17", tmp_path, ["--qos=long"])
    assert (note.nodes, note.log) == (1, str(tmp_path / "fits.jobs" / "fit.sbatch-17.log"))
    assert note_of(link, "17", tmp_path, ["--nodes=4", "--job-name=mine"]).nodes == 4


# ---- jobs that sbatch was given directly -----------------------------------------------------------------------------


def test_the_run_of_a_verb_follows_from_its_arguments_or_its_config(tmp_path: Path) -> None:
    config = tmp_path / "fit.yaml"
    config.write_text("verb: fit\nrun: {dir: /runs/told}\n")
    words = ["fit", str(config)]
    assert run_of(words) == Path("/runs/told")
    assert run_of([*words, 'run.dir="/runs/a b"', "--data", "x"]) == Path("/runs/a b")
    assert run_of([*words, "run.dir=/runs/a", "--out", "/runs/b"]) == Path("/runs/b")
    assert run_of([*words, "--out=/runs/c"]) == Path("/runs/c")
    assert run_of(["train", "none.yaml", "--out", "runs/d"]) == Path.cwd() / "runs" / "d"
    assert run_of(["evaluate", "operator", "store", "--out", "judged"]) is None
    assert run_of(["fit"]) is None


def test_a_job_notes_itself_once_and_of_an_array_the_first_task_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = users_folder(tmp_path, monkeypatch)
    run, words = folder / "run", ["fit", "fit.yaml", "--data", "genes.csv", "--out", "run"]
    for _ in range(2):
        note_job(words, Allocation("17", 17, ("n1", "n2")), {})
    for task in ("1", "0"):
        environment = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_MIN": "0"}
        note_job(words, Allocation(f"20_{task}", 20 + int(task), ("n1",)), environment)
    assert [(note.job, note.nodes) for note in notes_of(run)] == [("17", 2), ("20", 1)]
    add_note(jobs_folder(run), notes_of(run)[0])
    assert [note.job for note in notes_of(run)] == ["17", "20"], "sender and job may both note it"
    command(folder, "squeue", "20_0|FAILED|0:01|NonZeroExitCode|n1\n")
    assert main(["status", "run"]) == 1
    shown = capsys.readouterr().out
    assert "job 17 (fit): " in shown
    assert "job 20 (fit): " in shown
    assert f"to go on: distlfm fit {folder}/fit.yaml --data genes.csv --out run\n" in shown
