"""The page against files, names and callers that mean it harm."""

from __future__ import annotations

import csv
import io
import re
import resource
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distlfm.config import build
from distlfm.data import write_npz
from distlfm.errors import DataError, UsageError
from distlfm.queries.asking import as_cell
from distlfm.runs.settings import ServeConfig
from distlfm.runtime.reporting import Silent
from distlfm.serve import server
from distlfm.serve.guard import check_exposure, token_of
from distlfm.serve.sizes import refuse_oversized
from distlfm.store import Store
from distlfm.verbs.query import query
from tests.support.query_factories import fresh_genes, genes
from tests.support.serve_client import TestClient, drop, first_answer, served


def config(**settings: Any) -> ServeConfig:
    return build(ServeConfig, {"checkpoint": str(genes()[0]), **settings})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served(tmp_path_factory.mktemp("session"), data={}, max_megabytes=1) as found:
        yield found


# ---- a token by default ----------------------------------------------------------------------------------------------


class Said(Silent):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.told.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def begin(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Said, str | None, str, str]:
    """Start a page that ends at once: what it told, its token, what a browser would open, and what is in that."""
    said, seen = Said(), {}

    def run(session: Any, token: str | None, port: Any) -> None:
        seen["token"] = token

    def ready(opened: str) -> None:
        seen["opened"] = opened
        if not opened.startswith("http"):
            assert stat.S_IMODE(Path(opened).parent.stat().st_mode) == 0o700
            seen["page"] = Path(opened).read_text()

    monkeypatch.setattr(server, "run", run)
    server.serve(config(port=0, **settings), said, ready)
    return said, seen["token"], seen["opened"], seen.get("page", "")


def test_a_page_has_a_token_by_default_and_its_link_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said, token, opened, page = begin(monkeypatch)
    assert token is not None
    assert len(token) >= 32
    link = re.fullmatch(r"page: (http://127\.0\.0\.1:\d+/#token=(\S+)) \(Ctrl-C closes it\)", said.told[0])
    assert link is not None
    assert link[2] == token
    assert token not in opened, "what a browser is started with can be read by other accounts"
    assert f'content="0; url={link[1]}"' in page
    assert not Path(opened).exists(), "it ends with the page"
    assert begin(monkeypatch)[1] != token, "the next page has another one"


def test_a_page_without_a_token_must_be_asked_for_and_says_what_that_means(monkeypatch: pytest.MonkeyPatch) -> None:
    said, token, opened, _ = begin(monkeypatch, no_token=True)
    assert token is None
    assert opened.startswith("http://127.0.0.1:")
    assert said.told[0] == f"page: {opened} (Ctrl-C closes it)"
    assert "everybody with an account on this machine can open the page" in said.warned[0]


def test_a_token_that_a_file_keeps_is_not_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said, token, opened, page = begin(monkeypatch, token_file=str(tmp_path / "token"))
    assert token == (tmp_path / "token").read_text().strip()
    assert token not in "".join([*said.told, *said.warned, opened])
    assert f"#token={token}" in page


def test_a_token_and_none_are_not_asked_for_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Give --token-file FILE or --no-token"):
        check_exposure(config(no_token=True, token_file=str(tmp_path / "token")))
    assert token_of(config(no_token=True)) is None


def test_a_token_is_taken_from_the_header_alone_and_no_cookie_is_set(tmp_path: Path) -> None:
    """Browsers send cookies of 127.0.0.1 to all of its ports, and so to pages of other accounts."""
    token = "a-token-that-nobody-guesses"
    with served(tmp_path / "session", token, data={}) as client:
        for given in ({"params": {"token": token}}, {"cookies": {"token": token}}):
            assert client.get("/api/about", **given).status_code == 401
        found = client.get("/api/about", headers={"Authorization": f"Bearer {token}"})
        assert found.status_code == 200
        assert "set-cookie" not in found.headers


# ---- files that unpack to much ---------------------------------------------------------------------------------------


def parquet(table: pa.Table, **settings: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", **settings)
    return file.getvalue()


def repeated_text() -> bytes:
    """One text of 20 kB in 1.5 million rows: 30 GB from 3 kB, of which the file says that they are 20 kB."""
    rows = 1_500_000
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 20_000]))
    return parquet(pa.table({"instance": text, "time": np.zeros(rows), "value": np.zeros(rows)}))


def large_page() -> bytes:
    """One cell in one page that unpacks to 400 MB."""
    table = pa.table({"instance": pa.array(["y" * 400_000_000]), "time": [0.0], "value": [0.0]})
    return parquet(table, use_dictionary=False, write_statistics=False)


def nested() -> bytes:
    """A cell with a million of nothing."""
    values = pa.ListArray.from_arrays(pa.array([0, 2_000_000]), pa.nulls(2_000_000, pa.float64()))
    return parquet(pa.table({"time": [0.0], "value": values}))


def archive(**members: tuple[str, tuple[int, ...], bytes]) -> bytes:
    """An NPZ whose arrays say what type and shape they have."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as whole:
        for name, (kind, shape, content) in members.items():
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
            whole.writestr(f"{name}.npy", head.getvalue() + content)
    return file.getvalue()


BOMBS = {
    "repeated.parquet": repeated_text,
    "page.parquet": large_page,
    "nested.parquet": nested,
    "narrow.npz": lambda: archive(times=("|i1", (300_000,), bytes(300_000)), values=("|i1", (1, 300_000), b"")),
    "empty_texts.npz": lambda: archive(times=("<U0", (10**12,), b""), values=("<U0", (1, 10**12), b"")),
    "promised.npz": lambda: archive(times=("<f8", (10**300,), b""), values=("<f8", (1, 10**300), b"")),
    "many_instances.npz": lambda: archive(t=("<f8", (1,), bytes(8)), y=("|i1", (100_000, 1, 1), bytes(100_000))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_decodes_to_far_more_than_it_says_is_refused_before_it_is_read(
    name: str, client: TestClient
) -> None:
    content = BOMBS[name]()
    assert len(content) < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = drop(client, name, content)
    assert found.status_code == 400
    assert found.json()["error"].startswith(f"{name}: The file is larger than 1 MB.")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kB"


def test_an_honest_file_of_the_same_kinds_is_within_the_limit(tmp_path: Path) -> None:
    count = 10_000
    table = pa.table({"instance": ["ward"] * count, "time": np.arange(count) * 1.0, "value": np.ones(count)})
    (tmp_path / "a.parquet").write_bytes(parquet(table))
    write_npz(tmp_path / "a.npz", Store.open(fresh_genes()).instances(0, 24))
    for name in ("a.parquet", "a.npz"):
        refuse_oversized(tmp_path / name, name, 1.0)
    with pytest.raises(DataError, match=r"larger than 0\.1 MB"):
        refuse_oversized(tmp_path / "a.parquet", "a.parquet", 0.1)


# ---- names that a spreadsheet would run ------------------------------------------------------------------------------

FORMULAS = ('=HYPERLINK("http://evil.example";"x")', "+1+cmd|'/C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "＝1+1")


def test_names_that_are_formulas_become_text_and_numbers_stay_numbers() -> None:
    for name in FORMULAS:
        assert as_cell(name) == f"'{name}"
    for name in ("patient 7", "-5", "+3.5e-7", "-.5", "a=b", ""):
        assert as_cell(name) == name


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_in_ids_reach_no_csv_of_a_query_or_of_the_page(name: str, tmp_path: Path) -> None:
    (one,) = Store.open(fresh_genes()).instances(0, 1)
    file = tmp_path / "data.npz"
    write_npz(file, [replace(one, id=name)])
    query(genes()[0], file, [f"run.dir={tmp_path / 'query'}"])
    tables = [(tmp_path / "query" / one).read_bytes() for one in ("answers.csv", "parameters.csv")]
    with served(tmp_path / "session", data={"path": str(file)}) as client:
        shown = first_answer(client)
        assert shown["id"] == name, "JSON has it as it is"
        tables += [client.get(f"/api/answers/{shown['key']}/{one}").content for one in ("force.csv", "parameters.csv")]
    for table in tables:
        rows = list(csv.reader(io.StringIO(table.decode(), newline="")))[1:]
        assert {row[0] for row in rows} == {f"'{name}"}
        numbers = [cell for row in rows for cell in row[1:] if cell.startswith("-")]
        assert all(float(cell) < 0 for cell in numbers)


# ---- numbers and settings without an end -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "1e3", "٣", "0x10"])
def test_a_size_that_is_no_number_of_bytes_is_a_wrong_request(size: str, client: TestClient) -> None:
    found = client.post("/api/sources", params={"name": "a.csv", "size": size}, content=b"time,a\n0,1\n1,2\n")
    assert found.status_code == 400
    assert "not a number of bytes" in found.json()["error"]


@pytest.mark.parametrize(
    "setting",
    [
        "data.stride=" + "9" * 5000,
        "data.columns.values=" + "[" * 1900,
        "data.columns.time=" + "[" * 900 + "]" * 900,
        "data.columns." + "a." * 900 + "b=1",
        "data.scale=!!x",
        "data.stride=2020-13-45",
    ],
)
def test_a_setting_without_an_end_is_a_wrong_request(setting: str, client: TestClient) -> None:
    found = drop(client, "a.csv", b"time,a\n0,1\n1,2\n", [setting])
    assert found.status_code == 400
    assert "Traceback" not in found.text


def test_a_name_in_an_archive_without_an_end_is_a_wrong_file(client: TestClient) -> None:
    number = "9" * 5000
    content = archive(**{f"{number}/times": ("<f8", (1,), bytes(8)), f"{number}/values": ("<f8", (1, 1), bytes(8))})
    assert drop(client, "a.npz", content).status_code == 400
