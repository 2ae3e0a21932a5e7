"""What a user installs: the wheel, built from tracked files only, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from distlfm.version import __version__

PROJECT = Path(__file__).resolve().parents[2]
IMPORT_ALL = PROJECT / "tests" / "release" / "import_all.py"
PACKAGE_FOLDERS = ("distlfm", "launch", "federated")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="needs a git checkout, to know which files are tracked"),
]


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def tracked() -> list[PurePosixPath]:
    listed = run("git", "ls-files", "-z", cwd=PROJECT).stdout.split("\0")
    return [PurePosixPath(name) for name in listed if name and os.path.lexists(PROJECT / name)]


@pytest.fixture(scope="module")
def packaged(tracked: list[PurePosixPath]) -> set[str]:
    """Where each tracked file of the package belongs in the wheel."""
    found = set()
    for path in tracked:
        if path.parts[0] in PACKAGE_FOLDERS and not (PROJECT / path).is_symlink():
            found.add(str(path if path.parts[0] == "distlfm" else "distlfm" / path))
    return found


@pytest.fixture(scope="module")
def built(tracked: list[PurePosixPath], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in tracked:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / path, copy / path, follow_symlinks=False)
    run(sys.executable, "-m", "build", "--outdir", out, copy, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and nothing else; the dependencies are looked up where this test has them."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder.parent)
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder.parent).stdout
    # Plain lines: .pth files in those folders, such as the one of an editable distlfm, are not followed.
    mine = sysconfig.get_path("purelib")
    elsewhere = [mine, *(path for path in sys.path if path.endswith("-packages") and path != mine)]
    Path(purelib.strip(), "dependencies.pth").write_text("\n".join(elsewhere) + "\n")
    return folder


def test_wheel_holds_every_tracked_file_of_the_package(wheel: Path, packaged: set[str]) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"distlfm/py.typed", "distlfm/launch/__init__.py", "distlfm/federated/__init__.py"} <= names
    assert packaged - names == set()


def test_wheel_installs_one_top_level_name(wheel: Path, packaged: set[str]) -> None:
    """`launch`, `federated` and `tests` are too common as names of somebody's environment."""
    names = {
        name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(f"distlfm-{__version__}.dist-info/")
    }
    assert names - packaged == set()


def test_sdist_holds_the_same_sources(built: Path, packaged: set[str]) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert packaged - names == set()
    assert {"README.md", "LICENSE", "pyproject.toml"} <= names


def test_every_module_is_imported_from_the_wheel(clean: Path, tmp_path: Path, packaged: set[str]) -> None:
    lines = run(clean / "bin" / "python", IMPORT_ALL, cwd=tmp_path).stdout.splitlines()
    files = dict(line.split("\t") for line in lines)
    assert {name: file for name, file in files.items() if not file.startswith(f"{clean}{os.sep}")} == {}
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in packaged
        if name.endswith(".py")
    }
    assert modules - set(files) == set()


def test_command_answers_from_an_unrelated_folder(clean: Path, tmp_path: Path) -> None:
    assert run(clean / "bin" / "distlfm", "--version", cwd=tmp_path).stdout == f"distlfm {__version__}\n"
    wrong = run(clean / "bin" / "distlfm", "no-such-verb", cwd=tmp_path, check=False)
    assert wrong.returncode == 2
    assert "no-such-verb" in wrong.stderr


def test_metadata_names_the_licence_and_the_extras(clean: Path, tmp_path: Path) -> None:
    program = (
        "from importlib.metadata import metadata; about = metadata('distlfm');"
        "print(about['License-Expression'], *about.get_all('Provides-Extra'))"
    )
    shown = run(clean / "bin" / "python", "-c", program, cwd=tmp_path).stdout.split()
    for_users = ["ray", "fem", "federated", "export", "train", "serve"]
    assert shown == ["MIT", *for_users, "arviz", "reference", "bench", "dev", "docs", "full", "all"]
