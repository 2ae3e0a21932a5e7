"""Who may reach the page, by which name, with which token, and how much it takes."""

from __future__ import annotations

import gzip
import io
import os
import socket
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distlfm.cli.app import main
from distlfm.config import build
from distlfm.errors import DataError, UsageError
from distlfm.runs.settings import ServeConfig
from distlfm.serve.guard import HEADERS, Guard, check_exposure, open_token
from distlfm.serve.server import PREFIX, open_port, page_address, scratch_folder, sweep
from distlfm.serve.session import Session
from distlfm.serve.sizes import refuse_oversized
from tests.support.query_factories import genes
from tests.support.serve_client import drop, served

TOKEN = "a-token-that-nobody-guesses"


def config(**settings: Any) -> ServeConfig:
    return build(ServeConfig, {"checkpoint": "operator.pt", **settings})


# ---- names, origins, headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local", "open_to_all"),
    [
        ("127.0.0.1:8765", True, True),
        ("localhost:9000", True, True),
        ("LOCALHOST", True, True),
        ("[::1]:8765", True, True),
        ("clinic-3:8765", True, True),
        ("192.168.0.7:8765", False, True),
        ("evil.example:8765", False, False),
        ("localhost.evil.example", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("evil.example#127.0.0.1", False, False),
        ("127.0.0.1:8765:1", False, False),
        ("", False, False),
    ],
)
def test_only_addresses_and_own_names_are_answered(host: str, local: bool, open_to_all: bool) -> None:
    async def nothing(*_: Any) -> None:
        raise AssertionError

    assert Guard(nothing, None, True, ["clinic-3"]).is_ours(host) is local
    assert Guard(nothing, None, False, ["clinic-3"]).is_ours(host) is open_to_all


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with served(tmp_path_factory.mktemp("session"), TOKEN, data={}, max_megabytes=1) as client:
        yield client


KEY = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize("path", ["/", "/api/about", "/page.js"])
def test_a_rebound_name_is_refused_everywhere(path: str, guarded: Any) -> None:
    found = guarded.get(path, headers={**KEY, "Host": "rebound.example:8765"})
    assert found.status_code == 421
    assert "distlfm serve" in found.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_page_in_the_same_browser_gets_nothing(headers: dict[str, str], guarded: Any) -> None:
    assert guarded.get("/api/about", headers={**KEY, **headers}).status_code == 403


def test_the_page_itself_is_let_through(guarded: Any) -> None:
    own = {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}
    assert guarded.get("/api/about", headers={**KEY, **own}).status_code == 200


def test_a_server_with_tls_before_it_is_let_through_by_its_name(tmp_path: Path) -> None:
    headers = {"Host": "clinic.example", "Origin": "https://clinic.example", "Sec-Fetch-Site": "same-origin"}
    for names, status in ((["clinic.example"], 200), ([], 421)):
        with served(tmp_path / "session", data={}, names=names) as client:
            assert client.get("/api/about", headers=headers).status_code == status


@pytest.mark.parametrize("path", ["/", "/api/about", "/api/nothing", "/favicon.svg"])
def test_every_answer_forbids_what_the_page_does_not_need(path: str, guarded: Any) -> None:
    headers = guarded.get(path).headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert "set-cookie" not in headers
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "given", ["", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", "Bearer µ"]
)
def test_without_the_token_there_is_no_data(given: str, guarded: Any) -> None:
    headers = {"Authorization": given.encode("latin-1")} if given else {}
    found = guarded.get("/api/about", headers=headers)
    assert found.status_code == 401
    assert TOKEN not in found.text
    assert guarded.post("/api/sources?name=a.csv", content=b"time,a\n0,1\n1,2\n", headers=headers).status_code == 401
    assert guarded.get("/", headers=headers).status_code == 200, "the page must be there to ask for it"


# ---- the token file --------------------------------------------------------------------------------------------------


def test_a_token_file_is_made_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = open_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 32
    assert open_token(path) == token
    assert open_token(tmp_path / "other") != token


@pytest.mark.parametrize(("mode", "content", "told"), [
    (0o644, "a-token-that-nobody-guesses", "chmod 600"),
    (0o600, "short", "at least 16 letters"),
    (0o600, "two words that are long enough", "not a single word"),
])  # fmt: skip
def test_a_token_that_protects_nothing_is_refused(mode: int, content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(UsageError, match=told) as caught:
        open_token(path)
    assert content not in str(caught.value)


# ---- where it listens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_loopback_needs_no_leave(host: str) -> None:
    assert config(host=host).is_local
    check_exposure(config(host=host))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "not encrypted.*--expose-unencrypted"),
        ({"token_file": "token"}, "not encrypted.*--expose-unencrypted"),
        ({"expose_unencrypted": True, "no_token": True}, "nothing would keep them out.*--no-token"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7"])
def test_other_machines_come_in_only_where_risk_and_token_are_named(
    host: str, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        check_exposure(config(host=host, **settings))
    check_exposure(config(host=host, expose_unencrypted=True))
    check_exposure(config(host=host, expose_unencrypted=True, token_file="token"))


def test_a_port_in_use_is_told_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with open_port(config(port=0)) as taken:
        number = taken.getsockname()[1]
        code = main(["serve", str(genes()[0]), "--port", str(number)])
    told = capsys.readouterr().err
    assert code == 2
    assert told == (
        f"distlfm: Port {number} of 127.0.0.1 is in use. Give another one with --port, or --port 0 for any that is "
        "free.\n"
    )


def test_a_free_port_is_found_and_its_address_told() -> None:
    with open_port(config(port=0)) as port:
        address = page_address(port)
        assert address.startswith("http://127.0.0.1:")
        with socket.create_connection(port.getsockname()) as caller:
            assert caller.getpeername() == port.getsockname()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.pt"], "There is no checkpoint nowhere.pt."),
        (["nowhere.pt", "--host", "clinic"], "'clinic' is not an address."),
        (["nowhere.pt", "--host", "0.0.0.0"], "0.0.0.0 can be reached by other machines"),
        (["nowhere.pt", "--port", "99999"], "'port' should be less than or equal to 65535"),
        (["nowhere.pt", "tokn_file=x"], "Unknown key 'tokn_file'. Did you mean 'token_file'?"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port = [] if "--port" in arguments else ["--port", "0"]
    assert main(["serve", *arguments, *port]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"distlfm: {told}") or told in error
    assert "Traceback" not in error


def test_a_missing_extra_is_told_with_its_install_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "operator.pt"]) == 1
    told = 'distlfm: uvicorn is not installed. Install it with: pip install "distlfm[serve]"\n'
    assert capsys.readouterr().err == told


# ---- how much it takes -----------------------------------------------------------------------------------------------


def test_a_file_that_is_too_large_is_refused_before_and_while_it_is_sent(guarded: Any) -> None:
    limit = 2**20
    wanted = "big.csv: The file is larger than 1 MB. Split it"

    def pieces() -> Any:
        for _ in range(40):
            yield b"x" * (limit // 16)

    told = guarded.post("/api/sources?name=big.csv&size=1048577", content=b"", headers=KEY)
    whole = guarded.post("/api/sources?name=big.csv", content=b"x" * (limit + 1), headers=KEY)
    unsaid = guarded.post("/api/sources?name=big.csv", content=pieces(), headers=KEY)
    for found in (told, whole, unsaid):
        assert found.status_code == 413
        assert found.json()["error"].startswith(wanted)


def bomb(form: str) -> bytes:
    """Little on the disk, more than 2 MB once it is unpacked."""
    zeros, file = np.zeros(2**19), io.BytesIO()
    if form == "csv.gz":
        return gzip.compress(b"0,0\n" * 2**19)
    if form == "npz":
        np.savez_compressed(file, times=zeros, values=zeros[None])
    else:
        pq.write_table(pa.table({"time": zeros, "output_0": zeros}), file)
    return file.getvalue()


@pytest.mark.parametrize("form", ["csv.gz", "npz", "parquet"])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    form: str, guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bomb(form)
    assert len(content) < 2**18
    monkeypatch.setitem(guarded.headers, "Authorization", KEY["Authorization"])
    found = drop(guarded, f"bomb.{form}", content)
    assert found.json()["error"].startswith(f"bomb.{form}: The file is larger than 1 MB.")


def test_what_cannot_be_looked_into_is_left_to_the_readers(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a.npy", b"0" * 2000)
    for name, content in (
        ("cut.npz", whole.getvalue()[:60]),
        ("cut.csv.gz", b"\x1f\x8b\x08"),
        ("cut.parquet", b"PAR1"),
    ):
        (tmp_path / name).write_bytes(content)
        refuse_oversized(tmp_path / name, name, 0.001)
    (tmp_path / "whole.npz").write_bytes(whole.getvalue())
    with pytest.raises(DataError, match=r"larger than 0\.001 MB"):
        refuse_oversized(tmp_path / "whole.npz", "whole.npz", 0.001)


# ---- the session's folder --------------------------------------------------------------------------------------------


def test_the_sessions_folder_is_private_and_gone_afterwards() -> None:
    with scratch_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "data").write_text("x")
    assert not folder.exists()


def test_what_a_killed_session_left_is_removed_and_a_living_ones_stays(tmp_path: Path) -> None:
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    os.waitpid(ended, 0)
    dead, alive, other = (tmp_path / name for name in (f"{PREFIX}{ended}-a", f"{PREFIX}{os.getpid()}-b", "serve-1-c"))
    for folder in (dead, alive, other):
        folder.mkdir()
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, other])


def test_a_place_for_temporary_files_that_may_not_be_listed_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    sweep(tmp_path)


def test_a_disk_that_is_full_is_no_fault_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Session) -> None:
        raise OSError(28, "No space left on device", "session")

    with served(tmp_path / "session") as client:
        monkeypatch.setattr(Session, "about", full)
        told = client.get("/api/about").json()["error"]
    assert told.startswith("Cannot use session: No space left on device. Free space")
