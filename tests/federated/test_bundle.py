"""The bundle carries no code, and no other bundle is taken."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from flwr.supercore.run import Run, RunNotRunningException

from distlfm.federated.audit import AuditLog, verify
from distlfm.federated.link import bundle
from distlfm.federated.link.supernode import APP, BundleCheck
from distlfm.version import __version__
from tests.support.small_disks import disk, enlarge, mounts


def repacked(change: Callable[[dict[str, bytes]], None], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Our bundle with its files changed."""
    with zipfile.ZipFile(io.BytesIO(bundle.build())) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def with_code(files: dict[str, bytes]) -> None:
    files["distlfm_federated/__init__.py"] = b"import os"


def other_app(files: dict[str, bytes]) -> None:
    files["pyproject.toml"] = files["pyproject.toml"].replace(b"distlfm.federated.client_app", b"os.path")


def other_version(files: dict[str, bytes]) -> None:
    files["pyproject.toml"] = files["pyproject.toml"].replace(__version__.encode(), b"9.9.9")


def huge(files: dict[str, bytes]) -> None:
    files["README.md"] = b" " * 10_000_000


def damaged(compression: int) -> bytes:
    """Our bundle, of which some bytes were lost on the way."""
    packed = bytearray(repacked(lambda files: None, compression))
    first = packed.index(b"pyproject.toml") + len(b"pyproject.toml")
    packed[first : first + 40] = b"\xff" * 40
    return bytes(packed)


FOREIGN = {
    "with code": repacked(with_code),
    "of another app": repacked(other_app),
    "of another version": repacked(other_version),
    "that grows when unpacked": repacked(huge),
    "without a file": repacked(lambda files: files.pop("README.md") and None),
    "that is none": b"PK\x03\x04",
    "that is empty": b"",
    "that is damaged": damaged(zipfile.ZIP_STORED),
    "that is damaged, deflated": damaged(zipfile.ZIP_DEFLATED),
    "that is damaged, in bzip2": damaged(zipfile.ZIP_BZIP2),
    "that is damaged, in lzma": damaged(zipfile.ZIP_LZMA),
}


def test_our_bundle_has_no_code_and_names_the_installed_package() -> None:
    with zipfile.ZipFile(io.BytesIO(bundle.build())) as archive:
        assert sorted(archive.namelist()) == [".info/CONTENT", "README.md", "pyproject.toml"]
        settings = archive.read("pyproject.toml").decode()
    assert f'version = "{__version__}"' in settings
    assert 'clientapp = "distlfm.federated.client_app:app"' in settings


def test_the_same_files_are_taken_however_they_are_packed() -> None:
    stored = repacked(lambda files: None, zipfile.ZIP_STORED)
    assert stored != bundle.build()
    bundle.check(stored)


@pytest.mark.parametrize("which", FOREIGN)
def test_a_bundle_is_refused(which: str) -> None:
    with pytest.raises(bundle.ForeignBundle):
        bundle.check(FOREIGN[which])


def test_two_files_of_one_name_are_refused() -> None:
    """Who unpacks might take the other one."""
    out = io.BytesIO(bundle.build())
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("README.md", b"other")
    with pytest.raises(bundle.ForeignBundle, match="packed"):
        bundle.check(out.getvalue())


@dataclass(frozen=True)
class Fab:
    hash_str: str
    content: bytes
    verifications: dict[str, str] = field(default_factory=dict)


@pytest.mark.parametrize("which", FOREIGN)
def test_a_site_gives_no_foreign_bundle_to_flower_and_logs_it(which: str, tmp_path: Path) -> None:
    content = FOREIGN[which]
    sent = Fab(hashlib.sha256(content).hexdigest(), content, {"valid_license": "says the link"})
    given = BundleCheck(AuditLog(tmp_path / "audit.jsonl")).fab(lambda *_: sent)("", 7)
    assert (given.content, given.verifications) == (b"", {})
    [entry] = verify(tmp_path / "audit.jsonl").entries
    assert (entry["event"], entry["run"], entry["facts"]["what"]) == ("refused", "7", "app")


def test_a_site_takes_our_bundle_under_its_own_digest_only(tmp_path: Path) -> None:
    check, content = BundleCheck(AuditLog(tmp_path / "audit.jsonl")), bundle.build()
    right = Fab(hashlib.sha256(content).hexdigest(), content)
    assert check.fab(lambda *_: right)("", 7).verifications["valid_license"]
    wrong = replace(right, hash_str="../../somewhere")
    assert check.fab(lambda *_: wrong)("", 7).content == b""


@pytest.mark.parametrize(
    "change",
    [{"fab_id": "distlfm/../../tmp/x"}, {"fab_version": "9.9"}, {"primary_task_type": "flwr-agentapp"}],
    ids=["path", "version", "agent"],
)
def test_a_site_ignores_runs_of_anything_else(change: dict[str, str], tmp_path: Path) -> None:
    check = BundleCheck(AuditLog(tmp_path / "audit.jsonl"))
    ours = replace(Run.create_empty(7), fab_id=APP, fab_version=__version__, primary_task_type="flwr-serverapp")
    assert check.run(lambda _: ours)(7) is ours
    with pytest.raises(RunNotRunningException):
        check.run(lambda _: replace(ours, **change))(7)
    assert len(verify(tmp_path / "audit.jsonl").entries) == 1


@mounts
def test_a_bundle_is_installed_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk(tmp_path / "small", 4) as home:
        monkeypatch.setenv("FLWR_HOME", str(home))
        with pytest.raises(OSError, match="No space left on device"):
            bundle.install(bundle.build())
        assert not [path for path in home.rglob("*") if path.is_file()]
        enlarge(home, 100)
        place = bundle.install(bundle.build())
        settings = (place / "pyproject.toml").read_text()
        assert f'version = "{__version__}"' in settings
        (place / "pyproject.toml").write_text("")  # as a power cut may leave it
        assert bundle.install(bundle.build()) == place == bundle.install(bundle.build())
        assert (place / "pyproject.toml").read_text() == settings
        assert [path.name for path in place.parent.iterdir()] == [place.name]
