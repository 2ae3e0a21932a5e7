"""A token file that is missing, closed or damaged: a sentence with the fix, and status tells all the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distlfm.cli import main
from distlfm.errors import UsageError
from distlfm.federated.link import status as status_module
from distlfm.federated.link.authn import TokenError, make_token, read_token
from distlfm.federated.link.service import only_one
from distlfm.federated.link.status import status
from distlfm.federated.setup.homes import LinkConfig, LinkHome
from distlfm.federated.setup.provision import make_link

MAKE = "distlfm federated provision token"


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "missing": (Path.unlink, "There is no {}.", MAKE),
    "a folder": (as_folder, "{} is a folder.", MAKE),
    "empty": (lambda path: path.write_bytes(b"\n"), "{} is empty.", MAKE),
    "no text": (lambda path: path.write_bytes(bytes(range(256))), "{} holds no token", MAKE),
    "two lines": (lambda path: path.write_text("one\ntwo\n"), "{} holds no token", MAKE),
    "other letters": (lambda path: path.write_text("schlüssel"), "{} holds no token", MAKE),
    "open to all": (lambda path: path.chmod(0o644), "{} can be read by others.", "chmod 600"),
}


@pytest.fixture
def home(tmp_path: Path) -> LinkHome:
    make_link(tmp_path / "link", LinkConfig(sites=("north", "south", "west")))
    return LinkHome(tmp_path / "link")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_token_file_that_is_of_no_use_is_told_with_the_fix(damage: str, home: LinkHome) -> None:
    change, cause, fix = DAMAGES[damage]
    change(home.admin_token)
    with pytest.raises(TokenError) as told:
        read_token(home.admin_token)
    assert cause.format(home.admin_token) in told.value.cause
    assert fix in told.value.fix


@pytest.mark.parametrize("damage", DAMAGES)
def test_status_of_a_running_link_tells_what_it_knows_and_why_the_link_was_not_asked(
    damage: str, home: LinkHome, capsys: pytest.CaptureFixture[str]
) -> None:
    change, cause, fix = DAMAGES[damage]
    change(home.admin_token)
    with only_one(home):
        assert main(["federated", "status", str(home.path)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    (line,) = [line for line in shown.out.splitlines() if line.startswith("not_asked")]
    assert cause.format(home.admin_token) in line
    assert fix in line
    assert fix != MAKE or line.endswith(f"{MAKE} {home.path} admin")
    assert "north not enrolled" in shown.out


def test_a_token_that_may_not_be_read_is_told_so(home: LinkHome, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != home.admin_token and real(path, mode))
    with only_one(home):
        told = status(home.path)
    assert (
        told["not_asked"] == f"Cannot read {home.admin_token}: Permission denied. Give yourself the right to read it."
    )
    assert told["state"] == "running"


def test_a_token_that_the_link_does_not_take_leaves_the_rest_of_status(
    home: LinkHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise TokenError("The link does not take this token.", "Give the file of a valid one.")

    monkeypatch.setattr(status_module, "Control", refused)
    with only_one(home):
        assert status(home.path)["not_asked"].startswith("The link does not take this token.")


def test_a_call_that_is_wrong_is_still_refused_whole(home: LinkHome) -> None:
    text = home.config_file.read_text()
    home.config_file.write_text(text.replace("bind: 127.0.0.1", "bind: 10.0.0.3"))
    home.admin_token.unlink()
    with only_one(home), pytest.raises(UsageError, match="--insecure is for this machine alone"):
        status(home.path, insecure=True)


def test_every_token_that_is_made_can_be_read(tmp_path: Path) -> None:
    for number in range(50):
        file, token = tmp_path / f"{number}.token", make_token()
        file.write_text(f"{token}\n")
        file.chmod(0o600)
        assert read_token(file) == token
