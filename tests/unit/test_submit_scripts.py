"""The scripts that `distlfm submit` writes.

The expectations in tests/golden/ are what `distlfm submit … --dry-run` prints, with /project for the working directory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from distlfm.cli import main
from tests.support.slurm_stand_ins import DATA, HOUR, OUT, SITE, command, dry, refused, users_folder

PROJECT = Path(__file__).resolve().parents[2]
GOLDEN = PROJECT / "tests" / "golden"
TRAIN = str(PROJECT / "configs" / "train" / "transcription.yaml")
TUNE = str(PROJECT / "configs" / "tune" / "transcription.yaml")
STORE = ["--data", "stores/genes.zarr"]
FIELD = ["--data", "places.csv"]
AFTER = ["--dependency"]
CHECKER = Path(sys.executable).parent / "shellcheck"
QOS = ["--sbatch=--qos=long", "--sbatch=--mail-type=END"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return users_folder(tmp_path, monkeypatch)


SCRIPTS = {
    "fit": ["fit", "fit.yaml", *DATA, *OUT, "--nodes", "4", "--cpus", "32", "--memory", "64G", "--time", "2-00:00"],
    "fit_array": ["fit", "fit.yaml", *DATA, *OUT, "--array", "64%16", "--time", "90", "--partition", "short"],
    "fit_mpi": ["fit", "field.yaml", *FIELD, *OUT, "--nodes", "2", "--mpi-ranks", "16", *HOUR, "--account", "lab"],
    "generate": ["generate", "generate.yaml", "--out", "stores/genes.zarr", "--nodes", "2", "--time", "5"],
    "train": ["train", TRAIN, *STORE, "--out", "runs/operator", *HOUR, *AFTER, "17", "--nodes", "2", "--gpus", "4"],
    "tune": ["tune", TUNE, *STORE, "--out", "runs/sweep", *HOUR, *AFTER, "afterany:17:18,singleton", *QOS],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_dry_run_prints_the_recorded_script_and_writes_nothing(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    shown = dry(capsys, *SCRIPTS[name])
    shown = shown.replace(str(folder), "/project").replace(sys.executable, "/project/.venv/bin/python")
    assert shown == (GOLDEN / f"submit_{name}.sbatch").read_text()
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", SCRIPTS)
def test_recorded_scripts_have_no_fault_that_shellcheck_knows(name: str) -> None:
    done = subprocess.run([CHECKER, GOLDEN / f"submit_{name}.sbatch"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_job_with_ranks_gets_a_config_that_names_them_and_can_be_submitted_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder, "sbatch", "17\n")
    command(folder, "squeue", "17|TIMEOUT|1:00:00|TimeLimit|n1\n")
    assert main(["submit", *SCRIPTS["fit_mpi"]]) == 0
    kept = folder / "runs" / "genes.jobs" / "fit-1.yaml"
    assert yaml.safe_load(kept.read_text())["mechanism"]["ranks"] == 16
    assert "--ntasks-per-node=8" in dry(capsys, "fit", str(kept), "--nodes", "2", "--mpi-ranks", "16", *HOUR)


@pytest.mark.parametrize("name", ["fit", "generate", "train", "tune"])
def test_a_job_gets_a_config_that_names_the_plugins_given_here(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the paths of their files where a run keeps them so; others are found in the folder the job begins in."""
    (folder / "submit_test_plugin.py").write_text("")
    command(folder, "sbatch", "17\n")
    command(folder, "squeue", "17|TIMEOUT|1:00:00|TimeLimit|n1\n")
    monkeypatch.delitem(sys.modules, "submit_test_plugin", raising=False)
    assert main(["submit", *SCRIPTS[name], "--plugin", "submit_test_plugin"]) == 0
    assert sys.modules.pop("submit_test_plugin").__file__ == str(folder / "submit_test_plugin.py")
    (kept,) = folder.glob(f"*/*.jobs/{name}-1.yaml")
    content = yaml.safe_load(kept.read_text())
    (plugin,) = (content["train"] if name == "tune" else content)["plugins"]
    assert plugin in ("submit_test_plugin", str(folder / "submit_test_plugin.py"))
    assert f"--chdir={folder}\n" in kept.with_suffix(".sbatch").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_recorded_scripts_start_the_programs_of_the_shipped_ones_and_ask_slurm_for_the_same_kinds_of_things(
    name: str,
) -> None:
    recorded, shipped = ((path / file).read_text() for path, file in _pair(name))
    assert _program(recorded) == _program(shipped)
    ours, theirs = _options(recorded), _options(shipped)
    same = ("job-name", "open-mode", "requeue", "no-kill")
    assert [ours.get(option) for option in same] == [theirs.get(option) for option in same]
    assert ours["output"].rpartition("/")[2] == theirs["output"]
    assert {"nodes", "time", "signal", "cpus-per-task"} <= ours.keys() & theirs.keys()


def _pair(name: str) -> list[tuple[Path, str]]:
    return [(GOLDEN, f"submit_{name}.sbatch"), (PROJECT / "slurm", f"{name}.sbatch")]


def _program(script: str) -> list[str]:
    """Module and verb that a script starts."""
    (line,) = (line for line in script.splitlines() if line.startswith("exec "))
    return line.split(" -m ")[1].split()[:2]


def _options(script: str) -> dict[str, str]:
    found = (line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH "))
    return {name: value for name, _, value in (option.partition("=") for option in found)}


def test_the_site_file_is_sourced_before_the_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slurm").mkdir()
    (folder / "slurm" / "site.sh").write_text("")
    (folder / "my site.sh").write_text("")
    call = ["fit", "fit.yaml", *DATA, *OUT, *HOUR]
    assert f"\nsite={folder}/slurm/site.sh\n" in dry(capsys, *call)
    assert f"\nsite='{folder}/my site.sh'\n" in dry(capsys, *call, "--site", "my site.sh")
    assert "There is no site file other.sh." in refused(capsys, *call, "--site", "other.sh")


def test_a_submitted_script_reads_the_site_file_whatever_it_returns_and_without_arguments(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "my site.sh").write_text(SITE)
    script = folder / "job.sbatch"
    script.write_text(dry(capsys, "fit", "fit.yaml", *DATA, *OUT, *HOUR, "--site", "my site.sh"))
    environment = {"PATH": "/usr/bin"}
    done = subprocess.run(["bash", script, "an argument"], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("as the site wants -m distlfm.launch.ray_cluster fit "), done
    assert subprocess.run([CHECKER, script], capture_output=True, text=True).stdout == ""
    (folder / "my site.sh").unlink()
    gone = subprocess.run(["bash", script], capture_output=True, text=True)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert f"There is no site file {folder}/my site.sh." in gone.stderr


@pytest.mark.parametrize("script", sorted((PROJECT / "slurm").glob("*.sbatch")), ids=lambda path: path.stem)
def test_a_shipped_script_reads_the_site_file_whatever_it_returns_and_without_arguments(
    script: Path, folder: Path
) -> None:
    (folder / "site.sh").write_text(SITE)
    environment = {"PATH": "/usr/bin", "DISTLFM_SITE": str(folder / "site.sh")}
    done = subprocess.run(["bash", script, "a b", "c"], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("as the site wants -m distlfm.launch."), done
    assert done.stdout.endswith(" a b c\n")
    (folder / "site.sh").unlink()
    gone = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "There is no site file" in gone.stderr


def test_names_with_spaces_and_signs_stay_whole_in_the_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = dry(capsys, "fit", "fit.yaml", *DATA, "--out", 'runs/50% of "my" genes; $HOME', *HOUR)
    (output,) = (line for line in text.splitlines() if "--output=" in line)
    assert output == f'#SBATCH --output="{folder}/runs/50%% of \\"my\\" genes; $HOME.jobs/%x-%j.log"'
    (program,) = (line for line in text.splitlines() if line.startswith("exec "))
    config = f'{folder}/runs/50% of "my" genes; $HOME.jobs/fit-1.yaml'
    echo = program.replace("exec ", "printf '%s\\n' ")
    done = subprocess.run(["bash", "-c", echo], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin"})
    assert done.stdout.splitlines() == [sys.executable, "-m", "distlfm.launch.ray_cluster", "fit", config]


def test_python_of_a_site_may_be_several_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = dry(capsys, "fit", "fit.yaml", *DATA, *OUT, *HOUR)
    (program,) = (line for line in text.splitlines() if line.startswith("exec "))
    environment = {"PATH": "/usr/bin", "DISTLFM_PYTHON": "apptainer exec image.sif python3"}
    echo = program.replace("exec ", "printf '%s\\n' ")
    done = subprocess.run(["bash", "-c", echo], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[:5] == ["apptainer", "exec", "image.sif", "python3", "-m"]
