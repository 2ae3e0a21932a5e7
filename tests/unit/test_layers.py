"""Imports go down the layers only, and nothing but the MPI helper groups loads MPI."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
IMPORT_ALL = PROJECT / "tests" / "release" / "import_all.py"
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"


def lint(config: Path, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT, str(config)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_contracts_hold() -> None:
    done = lint(PROJECT / ".importlinter")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_of_the_package_has_a_layer() -> None:
    """A folder that the contract doesn't name would be free to import anything."""
    contracts = configparser.ConfigParser()
    contracts.read(PROJECT / ".importlinter")
    layers = contracts["importlinter:contract:layers"]["layers"]
    named = {word.strip("()") for word in layers.replace("|", " ").split()}
    parts = {f"distlfm.{path.stem}" for path in (PROJECT / "distlfm").iterdir() if is_module(path)}
    assert parts - named == {"distlfm.version"}, "it holds one constant"


def test_what_tests_share_is_in_one_package() -> None:
    """A module beside tests is imported by its bare name, which only one folder can have; `release` has no tests."""
    files = [path for path in (PROJECT / "tests").glob("*/*") if path.parent.name not in ("support", "release")]
    assert [path for path in files if path.is_symlink()] == []
    others = {path.name for path in files if path.suffix == ".py" and not path.name.startswith("test_")}
    assert others == {"conftest.py"}


def is_module(path: Path) -> bool:
    return (path / "__init__.py").exists() or (path.suffix == ".py" and path.stem not in ("__init__", "__main__"))


def test_an_import_upwards_would_be_found(tmp_path: Path) -> None:
    """The same layers, around a package that breaks them."""
    for folder in ("distlfm/verbs", "distlfm/gp"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "distlfm" / "__init__.py").touch()
    (tmp_path / "distlfm" / "gp" / "sly.py").write_text("import distlfm.verbs\n")
    contracts = configparser.ConfigParser()
    contracts.read(PROJECT / ".importlinter")
    contracts.remove_section("importlinter:contract:mpi")
    layers = contracts["importlinter:contract:layers"]
    layers["layers"] = "\n".join(["", "distlfm.verbs", "(distlfm.mechanisms) | (distlfm.gp) | (distlfm.data)"])
    with (tmp_path / ".importlinter").open("w") as file:
        contracts.write(file)
    done = lint(tmp_path / ".importlinter", cwd=tmp_path)
    assert done.returncode == 1
    assert "distlfm.gp.sly -> distlfm.verbs" in done.stdout


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_importing_the_package_does_not_load_mpi() -> None:
    """MPI starts when dolfin, petsc4py or mpi4py is imported, and that kills workers of Ray and steps of Slurm."""
    command = [sys.executable, str(IMPORT_ALL), "--no-mpi"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "distlfm.cli\t" in done.stdout
