"""A user's folder, and stand-ins for Slurm's commands: programs that note how they were called, and answer."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from distlfm.cli import main

GENES = "time,gene,value\n0,a,1\n1,a,2\n2,a,3\n0,b,2\n1,b,2\n2,b,1\n"
FIT = "verb: fit\nmechanism: {kind: transcription}\n"
FIELD = """verb: fit
mechanism:
  kind: reaction_diffusion
  mesh: {kind: interval, lower: [0.0], upper: [1.0]}
"""
PLACES = "time,x,output,value\n0,0.2,a,1\n1,0.2,a,2\n0,0.8,a,2\n1,0.8,a,1\n"
GENERATE = "verb: generate\ninstances: 4\npoints: 12\nmechanism: {kind: transcription}\nrun: {block: 2}\n"
HOUR = ["--time", "1:00:00"]
OUT = ["--out", "runs/genes"]
DATA = ["--data", "genes.csv"]
SITE = """export DISTLFM_PYTHON="echo as the site wants" SBATCH_ACCOUNT=lab
[ $# = 0 ] || export DISTLFM_PYTHON="echo it saw $*" SBATCH_ACCOUNT=odd
false
"""
"""Sourced as it often is: its last command fails, and like conda's it would heed arguments."""


def users_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with configs and data, and a PATH without Slurm."""
    monkeypatch.chdir(path)
    (path / "fit.yaml").write_text(FIT)
    (path / "generate.yaml").write_text(GENERATE)
    (path / "field.yaml").write_text(FIELD)
    (path / "places.csv").write_text(PLACES)
    (path / "genes.csv").write_text(GENES)
    (path / "bin").mkdir()
    for name in ("bash", "env"):
        (path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(path / "bin"))
    monkeypatch.delenv("DISTLFM_SITE", raising=False)
    return path


def command(folder: Path, name: str, answer: str, code: int = 0, stderr: str = "") -> None:
    """A stand-in for one of Slurm's commands: it notes its arguments and some variables, and answers."""
    script = folder / "bin" / name
    script.write_text(
        "#!/usr/bin/bash\n"
        f'printf "%s\\n" "$*" >> {shlex.quote(str(folder / f"{name}.called"))}\n'
        f"env > {shlex.quote(str(folder / f'{name}.environment'))}\n"
        f"printf %s {shlex.quote(answer)}\nprintf %s {shlex.quote(stderr)} >&2\nexit {code}\n"
    )
    script.chmod(0o755)


def called(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.called"
    return path.read_text().splitlines() if path.exists() else []


def dry(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `distlfm submit … --dry-run` prints."""
    assert main(["submit", *arguments, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line with which `distlfm submit` refuses a wrong call."""
    assert main(["submit", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    return line
