"""Extras on demand: what is missing is told with the exact line that installs it, and nothing else is disguised."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from distlfm.errors import DistlfmError, MissingExtra
from distlfm.optional import SYSTEM_PACKAGES, install_line, require

PROJECT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_module_that_is_there_is_returned() -> None:
    assert require("json.decoder", "ray").__name__ == "json.decoder"


@pytest.mark.parametrize("module", ["no_such_module_here", "no_such_module_here.part"])
def test_missing_module_names_itself_and_the_install_line(module: str) -> None:
    with pytest.raises(MissingExtra) as caught:
        require(module, "ray")
    assert str(caught.value) == f'{module} is not installed. Install it with: pip install "distlfm[ray]"'
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, DistlfmError)
    assert caught.value.exit_code == 1


def test_module_that_lacks_something_itself_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs") as caught:
        require("half_installed", "ray")
    assert not isinstance(caught.value, MissingExtra)


def test_module_that_fails_keeps_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "falls_over.py").write_text("raise OSError('no library')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OSError, match="no library"):
        require("falls_over", "ray")


@pytest.mark.parametrize("extra", ["ray", "fem", "federated"])
def test_install_line_names_an_extra_that_exists(extra: str) -> None:
    assert extra in EXTRAS
    assert install_line(extra).endswith(f'pip install "distlfm[{extra}]"')


def test_what_pip_cannot_bring_comes_from_the_system_first() -> None:
    assert install_line("fem") == f'{SYSTEM_PACKAGES["fem"]} && pip install "distlfm[fem]"'
    assert set(SYSTEM_PACKAGES) <= set(EXTRAS)


def test_system_packages_of_the_message_are_those_that_the_set_up_installs() -> None:
    script = (PROJECT / "launch" / "bootstrap.sh").read_text()
    for line in SYSTEM_PACKAGES.values():
        command, _, packages = line.partition(" install ")
        assert command == "apt-get"
        assert [package for package in packages.split() if package not in script.split("TEST_PACKAGES")[0]] == []


def test_package_works_without_any_extra() -> None:
    """Everything but the extras is imported and answers, in a process in which no extra can be imported."""
    program = """
import sys
for name in ("ray", "optuna", "flwr", "dolfin", "petsc4py", "mpi4py", "fenics_adjoint", "meshio", "pytest", "xarray"):
    sys.modules[name] = None
from distlfm.cli import main
assert main(["--version"]) == 0
from distlfm.errors import MissingExtra
from distlfm.solvers.fem.forms import adjoint
try:
    adjoint.import_adjoint()
except MissingExtra as error:
    print(error.fix)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"Install it with: {install_line('fem')}"
