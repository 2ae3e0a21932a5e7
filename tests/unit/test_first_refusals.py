"""What the operating system refuses, with every verb: no right to read or write, disks that are full or read-only,
names that cannot be. One short sentence with the fix, and the same command goes on when it is mended.

Told elsewhere: `doctor`, whose table has a line on the folder that it is given (test_doctor), and a fleet whose disk
fills while it runs (tests/faults).
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import matplotlib.font_manager  # noqa: F401 - its list of fonts is made by who can write it
import pytest

from distlfm.cli import main
from distlfm.federated.link.processes import Supervisor
from distlfm.serve import server
from tests.support.cli_verbs import verbs as all_verbs
from tests.support.small_disks import disk, enlarge, mounts
from tests.support.system_refusals import FILLED, fill, ordinary_user, users_folder

READ: dict[str, tuple[str, ...]] = {
    "generate generate.yaml --out o": ("generate.yaml",),
    "simulate simulate.yaml --out o.npz": ("simulate.yaml",),
    "fit fit.yaml --data good.csv --out o": ("fit.yaml", "good.csv"),
    "fit fit.yaml data.path=genes.zarr --out o": ("genes.zarr", "genes.zarr/zarr.json", "genes.zarr/observed"),
    "train train.yaml --out o": ("train.yaml", "genes.zarr", "genes.zarr/zarr.json", "genes.zarr/force_mean"),
    "train train.yaml --out o --start operator": ("operator", "operator/operator.pt"),
    "tune tune.yaml --out o": ("tune.yaml", "genes.zarr", "genes.zarr/zarr.json"),
    "evaluate operator genes.zarr": ("operator/operator.pt", "genes.zarr", "genes.zarr/observed"),
    "query operator good.csv": ("operator", "operator/operator.pt", "good.csv"),
    "query operator genes.zarr": ("genes.zarr", "genes.zarr/zarr.json", "genes.zarr/id"),
    "serve operator --port 0 --data good.csv": ("operator/operator.pt", "good.csv"),
    "serve operator --port 0 --fit fit.yaml": ("fit.yaml",),
    "serve operator --port 0 --token-file good.csv": ("good.csv",),
    "resume stopped.zarr": ("stopped.zarr", "stopped.zarr/zarr.json", "stopped.zarr/markers"),
    "status stopped.zarr": ("stopped.zarr", "stopped.zarr/zarr.json", "stopped.zarr/markers"),
    "submit generate job.yaml --time 10 --out o": ("job.yaml",),
    "submit fit fit.yaml --data good.csv --time 10 --array 2 --out o": ("good.csv",),
    "data check good.csv": ("good.csv",),
    "config show fit.yaml": ("fit.yaml",),
    "config equations infusion --plugin infusion.py": ("infusion.py",),
    "store ls genes.zarr": ("genes.zarr", "genes.zarr/markers"),
    "store verify genes.zarr": ("genes.zarr", "genes.zarr/zarr.json", "genes.zarr/markers", "genes.zarr/observed"),
    "store merge few.zarr stopped.zarr --prefix --out o": ("few.zarr", "stopped.zarr/zarr.json", "few.zarr/rows"),
    "store export few.zarr --format npz --out o.npz": ("few.zarr", "few.zarr/observed"),
    "operator show operator": ("operator", "operator/operator.pt"),
    "operator export operator --out o": ("operator", "operator/operator.pt"),
    "federated link fed/link": tuple(
        f"fed/link{name}" for name in ("", "/link.yaml", "/server.key", "/server.pem", "/superexec.secret")
    )
    + tuple(f"fed/link/{name}" for name in ("tokens.json", "roster.json", "audit.jsonl")),
    f"federated prepare {FILLED}": (FILLED, f"{FILLED}/site.yaml", "good.csv"),
    f"federated site {FILLED}": tuple(
        f"{FILLED}/{name}"
        for name in ("", "node.yaml", "site.yaml", "policy.yaml", "node.key", "signing.key", "ca.pem")
    )
    + tuple(f"{FILLED}/{name}" for name in ("superexec.secret", "audit.jsonl", "model", "model/base.pt")),
    "federated run programme.yaml --link fed/link": ("programme.yaml", "fed/link", "fed/link/admin.token"),
    f"federated query good.csv --site {FILLED}": (FILLED, "good.csv", f"{FILLED}/model", f"{FILLED}/model/base.pt"),
    "federated query cohort --programme programme.yaml --link fed/link": ("programme.yaml", "fed/link/admin.token"),
    "federated status fed/link": ("fed/link", "fed/link/link.yaml", "fed/link/roster.json"),
    "federated simulate programme.yaml --out o": ("programme.yaml",),
    "federated audit fed/link": ("fed/link", "fed/link/audit.jsonl"),
    "federated provision site fed/link/kits/north.kit.json o": ("fed/link/kits", "fed/link/kits/north.kit.json"),
    f"federated provision enrol fed/link {FILLED}/north.public.json": (
        "fed/link/link.yaml",
        "fed/link/roster.json",
        f"{FILLED}/north.public.json",
    ),
    f"federated provision pin {FILLED} fed/link/peers.json": (
        "fed/link/peers.json",
        f"{FILLED}/policy.yaml",
        f"{FILLED}/signing.key",
    ),
    "federated provision kit fed/link east": ("fed/link/link.yaml", "fed/link/ca.pem"),
    "federated provision renew fed/link": ("fed/link/link.yaml", "fed/link/ca.pem", "fed/link/ca.key"),
    "federated provision revoke fed/link north": ("fed/link/link.yaml", "fed/link/roster.json"),
    "federated provision token fed/link anna": ("fed/link/link.yaml", "fed/link/tokens.json"),
    "federated provision local o --operator operator/operator.pt": ("operator/operator.pt",),
}
READ_NOTHING = {"doctor", "demo", "data ls", "config schema", "federated provision link", "federated drill"}

NEW: tuple[str, ...] = (
    "generate generate.yaml --out {}",
    "simulate transcription --out {}.npz",
    "fit fit.yaml --data good.csv --out {}",
    "fit fit.yaml --data good.csv --out {} --part 1/2",
    "train train.yaml --out {}",
    "tune tune.yaml --out {}",
    "evaluate operator genes.zarr --out {}",
    "query operator good.csv --out {}",
    "serve operator --port 0 --token-file {}",
    "submit generate job.yaml --time 10 --out {}",
    "demo --out {}",
    "store merge few.zarr stopped.zarr --prefix --out {}",
    "store export few.zarr --format npz --out {}.npz",
    "store export few.zarr --format well --out {}.h5",
    "operator export operator --format torchscript --out {}",
    "federated run programme.yaml --link fed/link --out {}",
    f"federated query good.csv --site {FILLED} --out {{}}",
    "federated simulate federated/glucose.yaml data=generated --out {}",
    "federated drill --out {}",
    "federated provision link {} --sites a,b,c",
    "federated provision site fed/link/kits/north.kit.json {}",
    "federated provision local {} --sites a,b,c",
)
"""Verbs that make something new, at {}."""

CHANGED: dict[str, str] = {
    "resume {}": "stopped.zarr",
    "federated link {}": "fed/link",
    "federated site {}": FILLED,
    "federated prepare {}": FILLED,
    f"federated provision enrol {{}} {FILLED}/north.public.json": "fed/link",
    "federated provision pin {} fed/link/peers.json": FILLED,
    "federated provision kit {} east": "fed/link",
    "federated provision renew {}": "fed/link",
    "federated provision revoke {} north": "fed/link",
    "federated provision token {} anna": "fed/link",
}
"""Verbs that write into a folder which is there, with that folder."""

WRITE_NOTHING = {"doctor", "status", "data ls", "data check", "config schema", "config show", "store ls"} | {
    "config equations",
    "store verify",
    "operator show",
    "federated status",
    "federated audit",
}

HALFWAY: dict[str, int] = {
    "generate generate.yaml --out {}": 190,
    "simulate transcription --out {}.npz": 40,
    "query operator good.csv --out {}": 12,
    "store merge few.zarr stopped.zarr --prefix --out {}": 190,
    "store export few.zarr --format npz --out {}.npz": 8,
    "store export few.zarr --format well --out {}.h5": 8,
    "operator export operator --format torchscript --out {}": 40,
    "submit generate job.yaml --time 10 --out {}": 4,
    "serve operator --port 0 --token-file {}": 0,
    "federated provision link {} --sites a,b,c": 24,
    "federated provision site fed/link/kits/north.kit.json {} --operator operator/operator.pt": 24,
    "federated provision local {} --sites a,b,c": 64,
}
"""Kilobytes that are enough for a part of what a verb writes."""

FIXES = ("right", "ermissions", "hoose", "shorter", "Free space", "Mount it")


@pytest.fixture(scope="module")
def bench() -> Iterator[Path]:
    folder = users_folder()
    before = Path.cwd()
    os.chdir(folder)
    fill(folder)
    yield folder
    os.chdir(before)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _there(bench: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In that folder, with Slurm, and without anything of the test before. What would serve for ever ends at once."""
    monkeypatch.chdir(bench)
    monkeypatch.setenv("PATH", f"{bench / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(Supervisor, "run", lambda *_: None)
    monkeypatch.setattr(server, "run", lambda *_: None)
    known = set(bench.iterdir())
    yield
    for path in set(bench.iterdir()) - known:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def call_of(text: str, place: str = "") -> list[str]:
    return text.format(place).split()


def refused(call: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a call says that is refused: one line, with what to do."""
    code = main(call)
    said = capsys.readouterr()
    told = [*said.err.splitlines(), *(line for line in said.out.splitlines() if line.startswith("warning: Cannot"))]
    assert code in (1, 2), said
    (line,) = told
    assert line.startswith(("distlfm: ", "warning: "))
    for technical in ("Errno", "Traceback", "fault of distlfm", "damaged", ".part"):
        assert technical not in line
    assert any(fix in line for fix in FIXES), line
    return line


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can be somebody else")
def test_a_clone_may_lie_where_the_ordinary_user_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("imported_by_statement", "imported_by_function"):
        (closed / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(closed)
    with ordinary_user():
        import imported_by_statement

        by_function = importlib.import_module("imported_by_function")
        with pytest.raises(PermissionError):
            Path(imported_by_statement.__file__).read_bytes()
        assert os.geteuid() != 0
    assert Path(by_function.__file__ or "").parent == closed


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, names in READ.items() for name in names])
def test_what_may_not_be_read_is_named(call: str, name: str, bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bench / name
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with ordinary_user():
            line = refused(call.split(), capsys)
    finally:
        path.chmod(mode)
    assert "ermission denied" in line or "is not readable" in line
    assert Path(name).name in line


@pytest.fixture(scope="module")
def disks(bench: Path) -> Iterator[None]:
    """`full`, on which there is no space, and `fixed`, which is read-only."""
    with disk(bench / "full", 4) as full, disk(bench / "fixed", 4, read_only=True):
        (full / "ballast").write_bytes(bytes(4096))
        yield


@pytest.mark.parametrize("call", NEW)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("closed/new", ["Permission denied"]),
        ("good.csv/new", ["Not a directory", "File exists"]),
        ("n" * 300, ["File name too long"]),
    ],
)
def test_where_nothing_can_be_made_the_verb_is_refused(
    call: str, place: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("closed").mkdir(mode=0o555)
    with ordinary_user():
        line = refused(call_of(call, place), capsys)
    assert any(word in line for word in words), line


@mounts
@pytest.mark.usefixtures("disks")
@pytest.mark.parametrize("call", NEW)
@pytest.mark.parametrize(("name", "words"), [("full", "No space left on device"), ("fixed", "Read-only file system")])
def test_a_disk_that_takes_nothing_is_told_of(
    call: str, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(call_of(call, f"{name}/new"), capsys)
    files = [path for path in Path(name).rglob("*") if path.is_file() and path.name not in ("ballast", "lock")]
    for path in Path(name).glob("new*"):
        shutil.rmtree(path)
    assert not files, "none of them can be whole"


@pytest.mark.parametrize("call", CHANGED)
def test_a_folder_in_which_nothing_may_be_written_stays_as_it_is(
    call: str, bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = bench / "closed"
    shutil.copytree(bench / CHANGED[call], closed)
    paths = [closed, *closed.rglob("*")]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    before = {path: path.read_bytes() for path in paths if path.is_file()}
    try:
        with ordinary_user():
            assert "Permission denied" in refused(call_of(call, "closed"), capsys)
    finally:
        for path in paths:
            path.chmod(0o700)
    assert {path: path.read_bytes() for path in [closed, *closed.rglob("*")] if path.is_file()} == before


@mounts
@pytest.mark.parametrize("call", HALFWAY)
def test_a_disk_that_fills_halfway_leaves_nothing_that_looks_whole_and_the_same_command_goes_on(
    call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path("disk").absolute()
    with disk(place, max(4, HALFWAY[call])):
        if not HALFWAY[call]:
            (place / "ballast").write_bytes(bytes(4096))
        assert "No space left on device" in refused(call_of(call, "disk/new"), capsys)
        if "provision" in call:
            assert not (place / "new").exists(), "keys are never replaced, so none may be left"
        enlarge(place, 20_000)
        assert main(call_of(call, "disk/new")) == 0
        assert not list(place.rglob(".*"))


def test_every_verb_is_tried() -> None:
    verbs = {" ".join(command) for command in all_verbs()}
    read = {verb for verb in verbs if any(call.startswith(f"{verb} ") for call in READ)}
    written = {verb for verb in verbs if any(call.startswith(f"{verb} ") for call in (*NEW, *CHANGED))}
    assert verbs - read == READ_NOTHING
    assert verbs - written == WRITE_NOTHING
