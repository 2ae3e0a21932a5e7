"""Data in other units than an operator's are refused before they are asked about, and an operator tells its units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from distlfm.cli import main
from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.instance import same_unit
from distlfm.lfo import Examples, Operator
from distlfm.queries.export import described
from distlfm.store import Store
from distlfm.training.settings import TrainConfig
from distlfm.training.start import read_observed
from distlfm.verbs.evaluate import evaluate
from distlfm.verbs.query import query
from tests.support.query_factories import genes, operator_of
from tests.support.serve_client import drop, served

UNITS = {"time": "h", "output_0": "nM", "output_1": "nM", "force": "nM/h", "decay[output_0]": "1/h"}
ROWS = [(t, 1 + t / 9, 2 - t / 9) for t in range(12)]
TABLE = "time,output,value\n" + "".join(f"{t},output_0,{a:g}\n{t},output_1,{b:g}\n" for t, a, b in ROWS)


def changed(folder: Path, **units: str) -> Path:
    """The checkpoint of two genes with these units in its schema."""
    operator = operator_of(genes()[0])
    schema = operator.schema.model_copy(update={"units": {**operator.schema.units, **units}})
    return replace(operator, schema=schema).save(folder / "operator.pt")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(tmp_path_factory.mktemp("operator"), **UNITS)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table.csv").write_text(TABLE)
    return tmp_path / "table.csv"


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("time=min", r"The times are in min, and the operator's in h\. Convert them, or set data\.units\.time=h if"),
        (
            "value=ug/L",
            r"The values are in ug/L, and the operator's in nM\. Convert them, or set data.units.value=nM",
        ),
    ],
)
def test_a_query_in_other_units_is_refused_before_anything_is_written(
    checkpoint: Path, table: Path, setting: str, word: str
) -> None:
    out = table.parent / "answers"
    with pytest.raises(UsageError, match=word):
        query(checkpoint, table, [f"data.units.{setting}", f"run.dir={out}"])
    assert not out.exists()


def test_the_command_line_says_it_in_a_sentence(
    checkpoint: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", str(checkpoint), str(table), "data.units.time=min"]) == 2
    assert "The times are in min, and the operator's in h." in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "settings",
    [(), ("data.units.time=hours", "data.units.value=nm"), ("data.units.value=unknown",), ("data.scale=output",)],
)
def test_the_same_unknown_and_no_units_are_answered(checkpoint: Path, table: Path, settings: tuple[str, ...]) -> None:
    assert len(query(checkpoint, table, settings).answers) == 1


def test_units_of_a_store_count_unless_the_query_names_others(tmp_path: Path) -> None:
    minutes = changed(tmp_path, time="min")  # the store says hours
    store = genes()[1]
    with pytest.raises(UsageError, match="The times are in h, and the operator's in min"):
        query(minutes, store)
    assert query(minutes, store, ["data.units.time=min"]).tally.count


def test_one_unit_for_all_outputs_has_to_be_that_of_one(tmp_path: Path, table: Path) -> None:
    mixed = changed(tmp_path, output_0="nM", output_1="cpm")
    assert query(mixed, table, ["data.units.value=cpm"]).answers
    with pytest.raises(UsageError, match="the operator's in nM and cpm"):
        query(mixed, table, ["data.units.value=g"])


def test_a_store_in_other_units_is_neither_evaluated_nor_learned_from(tmp_path: Path) -> None:
    store = genes()[1]
    minutes = changed(tmp_path, time="min")
    word = r"time is in h in .*, and in min for the operator\. Give a store in the operator's units"
    with pytest.raises(UsageError, match=word):
        evaluate(minutes, store)
    with pytest.raises(UsageError, match=word):
        Examples([Store.open(store)], Operator.load(minutes).schema)
    Examples([Store.open(store)], Operator.load(changed(tmp_path, time="hours")).schema)


def test_observations_in_other_units_teach_nothing(checkpoint: Path, table: Path) -> None:
    data = {"stores": [str(genes()[1])], "observations": {"path": str(table), "units": {"time": "min"}}}
    config = build(TrainConfig, {"verb": "train", "start": str(checkpoint), "data": data})
    with pytest.raises(UsageError, match="The times are in min, and the operator's in h"):
        read_observed(Operator.load(checkpoint), config)


def test_the_page_refuses_a_file_in_other_units_and_takes_its_fix(tmp_path: Path, checkpoint: Path) -> None:
    settings = {"checkpoint": str(checkpoint), "data": {"units": {"time": "min"}}}
    with served(tmp_path / "session", **settings) as client:
        refused = drop(client, "table.csv", TABLE.encode())
        assert refused.status_code == 400
        assert "The times are in min, and the operator's in h." in refused.text
        assert drop(client, "table.csv", TABLE.encode(), ["data.units.time=h"]).status_code == 200


def test_an_operator_is_described_with_its_units(checkpoint: Path) -> None:
    told = described(checkpoint)
    assert told["takes"] == "output_0 (nM), output_1 (nM)"
    assert " h (21 points)" in told["over"]
    assert told["gives"] == "force (nM/h)"
    assert "decay[output_0] (1/h)" in told["parameters"]
    assert "basal[output_0]," in told["parameters"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("h", "hours", True),
        ("Minutes", "min", True),
        ("mg/dl", "mg / dL", True),
        ("mg/dL/minute", "mg/dL/min", True),
        ("min", "h", False),
        ("mg/dL", "mmol/L", False),
    ],
)
def test_names_of_one_unit_are_known_to_be_the_same(one: str, other: str, same: bool) -> None:
    assert same_unit(one, other) is same
