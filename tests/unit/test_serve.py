"""What the page gives: the numbers, tables and sentences of the command line, and nothing from elsewhere."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.data import write_npz
from distlfm.errors import DataError
from distlfm.fleets.sources import read_instances
from distlfm.instance import Instance
from distlfm.runs.settings import DataConfig
from distlfm.serve.app import PAGE, page_file
from distlfm.serve.sources import MOST_FILES, safe_name
from distlfm.store import Store
from distlfm.verbs.query import query
from tests.support.query_factories import fresh_genes, genes, operator_of
from tests.support.serve_client import TestClient, drop, first_answer, served

VALUES = [(t, 1 + t / 9, 2 - t / 9) for t in range(12)]
WIDE = b"hours,lactate,glucose\n" + b"".join(b"%g,%g,%g\n" % row for row in VALUES)
GOOD = b"time,output,value\n" + b"".join(b"%g,output_0,%g\n%g,output_1,%g\n" % (t, a, t, b) for t, a, b in VALUES)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served(tmp_path_factory.mktemp("session")) as found:
        yield found


def page_files() -> dict[str, str]:
    return {name: page_file(name) for name, _ in PAGE.values()}


# ---- the page --------------------------------------------------------------------------------------------------------


def test_page_needs_nothing_from_elsewhere() -> None:
    for name, text in page_files().items():
        addresses = [one for one in re.findall(r"https?:[^\s\"'`)]+", text) if one != "http://www.w3.org/2000/svg"]
        assert addresses == [], name
        assert not re.search(r"@import|url\(|\bon\w+=|style=|javascript:", text), name
    named = re.findall(r'(?:src|href)="([^"#]+)"', page_files()["index.html"])
    assert set(named) <= set(PAGE)


def test_every_part_that_the_program_fills_is_on_the_page() -> None:
    filled = {
        name for file in ("page.js", "show.js") for name in re.findall(r'(?:byId|say)\("([\w-]+)"', page_files()[file])
    }
    there = set(re.findall(r'\bid="([\w-]+)"', page_files()["index.html"]))
    assert len(filled) > 30
    assert filled - there == set()


def test_every_file_of_the_page_is_served_as_what_it_is(client: TestClient) -> None:
    for path, (name, kind) in PAGE.items():
        found = client.get(path)
        assert (found.status_code, found.headers["content-type"]) == (200, kind)
        assert found.text == page_files()[name]


def test_page_says_why_a_latent_force_deserves_doubt() -> None:
    text = " ".join(page_files()["index.html"].split())
    for words in ("Not for clinical decisions", "never measured", "may not be identified", "conditional on the model"):
        assert words in text


def test_every_control_has_a_label_and_every_picture_a_place_for_words() -> None:
    text = page_files()["index.html"]
    controls = re.findall(r"<(?:input|select|textarea|progress) [^>]*?id=\"([\w-]+)\"", text)
    assert len(controls) == 7
    assert [one for one in controls if f'<label for="{one}"' not in text] == []
    assert all("alt=" in image for image in re.findall(r"<img [^>]*>", text))


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_patients_of_a_store_are_listed_and_searched(client: TestClient) -> None:
    source = client.get("/api/about").json()["sources"][0]
    ids = [one.id for one in Store.open(fresh_genes()).instances(0, 24)]
    assert (source["count"], source["dropped"]) == (24, False)
    listed = client.get(f"/api/sources/{source['key']}/patients").json()
    assert [one["id"] for one in listed["patients"]] == ids
    some = client.get(f"/api/sources/{source['key']}/patients", params={"search": ids[7].upper()}).json()
    assert {"place": 7, "id": ids[7]} in some["patients"]
    assert some["found"] < 24


def test_answer_is_the_operators(client: TestClient) -> None:
    shown = first_answer(client, 3)
    wanted = operator_of(genes()[0])(Store.open(fresh_genes()).instances(3, 4)[0].blind())
    assert shown["id"] == wanted.id
    np.testing.assert_allclose(shown["dims"]["time"], wanted.times)
    for name in ("mean", "lower68", "upper68", "lower95", "upper95"):
        np.testing.assert_allclose(shown["forces"]["force"][name], getattr(wanted, name)[0], rtol=1e-6)
    assert {name: row["upper95"] for name, row in shown["parameters"].items()} == pytest.approx(
        {one.name: one.upper95 for one in wanted.estimates}
    )
    assert shown["novelty"] == pytest.approx(wanted.novelty)


def test_words_name_the_highest_point_of_the_force(client: TestClient) -> None:
    shown = first_answer(client)
    mean, times = shown["forces"]["force"]["mean"], shown["dims"]["time"]
    top = int(np.argmax(mean))
    assert f"highest at time {times[top]:.3g}" in shown["text"]
    assert f"{mean[top]:.3g}" in shown["text"]


def test_downloads_are_the_files_of_a_query(client: TestClient, tmp_path: Path) -> None:
    shown = first_answer(client, 0)
    query(genes()[0], fresh_genes(), [f"run.dir={tmp_path}"])
    for name, file in (("force.csv", "answers.csv"), ("parameters.csv", "parameters.csv")):
        found = client.get(f"/api/answers/{shown['key']}/{name}")
        mine = list(csv.reader(io.StringIO(found.text)))
        every = list(csv.reader((tmp_path / file).open()))
        wanted = [every[0], *(row for row in every if row[0] == shown["id"])]
        assert [row[0] for row in mine] == [row[0] for row in wanted]
        for row, other in zip(mine[1:], wanted[1:], strict=True):
            numbers = [(float(x), float(y)) for x, y in zip(row, other, strict=True) if _is_number(x)]
            assert all(x == pytest.approx(y, rel=1e-4, abs=1e-6) for x, y in numbers)
        assert re.fullmatch(r'attachment; filename="[\w.-]+\.csv"', found.headers["content-disposition"])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_pictures_come_as_png_and_svg(client: TestClient) -> None:
    key = first_answer(client)["key"]
    assert client.get(f"/api/answers/{key}/figure.png").content.startswith(b"\x89PNG\r\n")
    drawn = client.get(f"/api/answers/{key}/figure.svg")
    assert drawn.headers["content-type"] == "image/svg+xml"
    assert "<svg" in drawn.text
    assert "<script" not in drawn.text


def test_values_in_another_unit_bring_the_warning(client: TestClient) -> None:
    wrong = re.sub(rb"[\d.]+$", lambda found: b"%g" % (1000 * float(found[0])), GOOD, flags=re.MULTILINE)
    source = drop(client, "grams.csv", wrong).json()["key"]
    shown = client.post("/api/answers", json={"source": source, "place": 0}).json()
    assert shown["novelty"] > 1
    assert "unlike the data that the operator was trained on" in shown["warning"]
    assert "fit the instance instead" in shown["warning"]


def test_outputs_that_the_operator_does_not_know_are_refused_with_its_own(client: TestClient) -> None:
    source = drop(client, "other.csv", GOOD.replace(b"output_1", b"heart_rate")).json()["key"]
    found = client.post("/api/answers", json={"source": source, "place": 0})
    assert found.status_code == 400
    assert "heart_rate" in found.json()["error"]
    assert "output_0, output_1" in found.json()["error"]


# ---- dropped files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "csv.gz", "npz", "parquet"])
def test_a_dropped_file_is_answered_and_does_not_stay_on_the_disk(form: str, tmp_path: Path) -> None:
    with served(tmp_path / "session", data={}) as client:
        found = drop(client, f"ward 7.{form}", _as_file(form, tmp_path))
        assert found.status_code == 200, found.text
        source = found.json()
        assert (source["name"], source["count"], source["dropped"]) == (f"ward 7.{form}", 1, True)
        shown = client.post("/api/answers", json={"source": source["key"], "place": 0}).json()
        assert shown["observed"]["outputs"]["output_0"][0] == pytest.approx(1.0)
        assert list((tmp_path / "session").iterdir()) == []


def _as_file(form: str, folder: Path) -> bytes:
    import gzip

    import pyarrow.csv
    import pyarrow.parquet

    if form == "csv":
        return GOOD
    if form == "csv.gz":
        return gzip.compress(GOOD)
    path = folder / f"made.{form}"
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(GOOD)), path)
    else:
        rows, names = np.array(VALUES, float).T, ("output_0", "output_1")
        write_npz(path, [Instance("p", names, rows[0], rows[1:], np.ones((2, 12), bool))])
    return path.read_bytes()


BAD = {
    "semicolons.csv": b"time;output_0\n0;1\n1;2\n",
    "empty.csv": b"",
    "word.csv": GOOD.replace(b"\n3,", b"\n3,high,", 1),
    "doubt.csv": WIDE,
    "cell.csv": b"time,output_0\n0,1\n1,high\n2,3\n",
    "latin.csv": GOOD + "12,µ,1\n".encode("latin-1"),
    "once.csv": b"time,output_0\n0,1\n",
    "twice.csv": b"time,output_0,output_0\n0,1,1\n1,2,2\n",
    "cut.csv.gz": b"\x1f\x8b\x08\x00\x00",
    "no.npz": b"PK not at all",
    "no.parquet": b"PAR1PAR1",
    "notes.docx": b"dear colleague",
    "no_ending": b"time,output_0\n0,1\n1,2\n",
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_file_is_refused_with_the_sentence_of_the_command_line(
    name: str, client: TestClient, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(BAD[name])
    with pytest.raises(DataError) as caught:
        read_instances(DataConfig(path=tmp_path / name))
    found = drop(client, name, BAD[name])
    assert found.status_code == 400
    assert found.json()["error"] == str(caught.value).replace(f"{tmp_path}/", "")


def test_columns_may_be_named_with_the_file(client: TestClient) -> None:
    settings = ["data.columns.time=hours", "columns.values=[lactate, glucose]", "outputs.lactate=output_0"]
    source = drop(client, "own.csv", WIDE, [*settings, "outputs.glucose=output_1"]).json()
    shown = client.post("/api/answers", json={"source": source["key"], "place": 0}).json()
    assert list(shown["observed"]["outputs"]) == ["output_0", "output_1"]


@pytest.mark.parametrize("setting", ["data.path=/etc/passwd", "data.dataset=p53", "checkpoint=x", "run.dir=/tmp/x"])
def test_settings_of_a_file_cannot_name_another_place(setting: str, client: TestClient) -> None:
    found = drop(client, "own.csv", GOOD, [setting])
    assert found.status_code == 400
    assert "is not a setting of a file" in found.json()["error"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/cron.d/x.csv", "x.csv"),
        ("C:\\Users\\me\\ward.csv", "ward.csv"),
        (".csv", "csv"),
        ("", "file"),
        ("a\nb\0.csv", "a_b_.csv"),
        ("Ä ward.csv", "Ä ward.csv"),
    ],
)
def test_names_of_dropped_files_cannot_leave_their_folder(given: str, kept: str) -> None:
    assert safe_name(given) == kept


def test_a_forgotten_file_is_gone_with_its_answers(client: TestClient) -> None:
    source = drop(client, "gone.csv", GOOD).json()["key"]
    shown = client.post("/api/answers", json={"source": source, "place": 0}).json()
    assert client.delete(f"/api/sources/{source}").status_code == 200
    for path in (f"/api/sources/{source}/patients", f"/api/answers/{shown['key']}/force.csv"):
        assert client.get(path).status_code == 404
    named = client.get("/api/about").json()["sources"][0]["key"]
    assert client.delete(f"/api/sources/{named}").status_code == 404, "what was named at the start stays"


def test_only_the_latest_files_are_held(tmp_path: Path) -> None:
    with served(tmp_path / "session", data={}) as client:
        keys = [drop(client, f"{i}.csv", GOOD).json()["key"] for i in range(MOST_FILES + 1)]
        assert [one["key"] for one in client.get("/api/about").json()["sources"]] == keys[1:]


def test_what_was_set_aside_is_told(client: TestClient) -> None:
    table = b"patient,time,output_0\n" + b"".join(b"a,%d,%d\n" % (t, t) for t in range(5)) + b"b,0,1\n"
    source = drop(client, "two.csv", table).json()
    assert source["count"] == 1
    assert "instance 'b'" in source["set_aside"][0]
    assert "/" not in source["set_aside"][0].partition(":")[0]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/answers", b"no json", 400),
        ("POST", "/api/answers", b'{"source": 3, "place": "x"}', 400),
        ("POST", "/api/answers", b'{"source": "nobody", "place": 0}', 404),
        ("POST", "/api/answers", b"[" * 5000, 413),
        ("GET", "/api/answers/nobody/force.csv", b"", 404),
        ("GET", "/api/fits/nobody", b"", 404),
        ("DELETE", "/api/fits/nobody", b"", 404),
        ("GET", "/api/nothing", b"", 404),
        ("PUT", "/api/about", b"", 405),
        ("GET", "/../settings.py", b"", 404),
    ],
)
def test_a_wrong_request_gets_a_sentence(method: str, path: str, body: bytes, status: int, client: TestClient) -> None:
    found = client.request(method, path, content=body)
    assert found.status_code == status
    told: dict[str, Any] = found.json()
    assert told["error"].endswith(".")
    assert "Traceback" not in told["error"]


def test_a_place_beyond_the_list_is_refused(client: TestClient) -> None:
    source = client.get("/api/about").json()["sources"][0]["key"]
    for place in (-1, 24):
        assert client.post("/api/answers", json={"source": source, "place": place}).status_code == 404


def test_patients_whose_names_have_no_utf8_are_listed_and_answered(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.csv")).write_bytes(GOOD)
    with served(tmp_path / "session", data={"path": str(folder)}) as client:
        (source,) = client.get("/api/about").json()["sources"]
        (patient,) = client.get(f"/api/sources/{source['key']}/patients").json()["patients"]
        assert os.fsencode(patient["id"]) == b"caf\xe9"
        answer = first_answer(client)
        assert answer["id"] == patient["id"]
        assert client.get(f"/api/answers/{answer['key']}/force.csv").status_code == 200
        assert client.get(f"/api/answers/{answer['key']}/figure.svg").status_code == 200
