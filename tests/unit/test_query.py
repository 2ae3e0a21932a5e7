"""`distlfm query`: what is answered, from which data, what is written, and what one bad instance does to the others."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from distlfm.answer.parameters import COLUMNS
from distlfm.data import write_npz
from distlfm.errors import DistlfmError, UsageError, WorkError
from distlfm.inference.findings.scores import AVERAGED
from distlfm.instance import Instance
from distlfm.queries.asking import find_checkpoint, tables
from distlfm.store import Store
from distlfm.verbs.query import query, worth_a_look
from tests.support.query_factories import field, fresh_genes, genes, operator_of

SINGLE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}
"""The network computes in single precision, and sums in another order for another number of instances."""


def some(count: int = 4) -> list[Instance]:
    return Store.open(fresh_genes()).instances(0, count)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_tables_hold_every_number_of_every_answer(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    instances = some()
    query(checkpoint, instances, [f"run.dir={tmp_path}"])
    answers = operator_of(checkpoint)([one.blind() for one in instances])
    found = rows_of(tmp_path / "answers.csv")
    assert list(found[0]) == ["instance", "time", "force", *COLUMNS]
    assert len(found) == len(instances) * 21
    for column in COLUMNS:
        told = np.array([float(row[column]) for row in found]).reshape(len(instances), 1, -1)
        np.testing.assert_allclose(told, [getattr(one, column) for one in answers], rtol=1e-5, atol=1e-6)
    parameters = rows_of(tmp_path / "parameters.csv")
    assert [row["parameter"] for row in parameters if row["instance"] == "gen-000000"] == [
        one.name for one in answers[0].estimates
    ]
    first = {row["parameter"]: row for row in parameters if row["instance"] == "gen-000000"}
    assert instances[0].truth is not None
    assert float(first["decay[output_1]"]["true"]) == pytest.approx(instances[0].truth.parameters["decay"][1], rel=1e-5)
    document = json.loads((tmp_path / "answers.json").read_text())
    assert [one["id"] for one in document["answers"]] == [one.id for one in instances]
    assert np.allclose(document["answers"][1]["forces"]["force"]["mean"], answers[1].mean[0])


def test_summary_has_the_figures_of_a_fit(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    query(checkpoint, fresh_genes(), [f"run.dir={tmp_path}"])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"instances", "mean", "worst", "failures", "set_aside", "config_hash", "versions"} <= summary.keys()
    assert set(summary["mean"]) == {*AVERAGED, "parameter_mae"} == set(summary["worst"])
    assert {"id", "status", *AVERAGED, "parameter_mae", "novelty", "warning"} <= summary["instances"][0].keys()
    assert len(summary["instances"]) == 24
    scores = [one["latent_q2"] for one in summary["instances"]]
    assert summary["mean"]["latent_q2"] == pytest.approx(np.mean(scores))
    assert summary["worst"]["latent_q2"] == min(scores)


def test_figures_are_what_they_say_by_hand() -> None:
    checkpoint, _ = genes()
    (instance,) = some(1)
    run = query(checkpoint, [instance])
    (answer,) = run.answers
    truth = instance.truth
    assert truth is not None
    assert truth.force is not None
    error = ((answer.mean - truth.force) ** 2).sum() / ((truth.force - truth.force.mean()) ** 2).sum()
    row = run.rows[0]
    assert row["latent_q2"] == pytest.approx(1 - error)
    inside = (truth.force >= answer.lower68) & (truth.force <= answer.upper68)
    assert row["latent_coverage_68"] == pytest.approx(inside.mean())
    decay = [one.mean for one in answer.estimates if one.name.startswith("decay[")]
    assert row["parameter_mae"]["decay"] == pytest.approx(np.abs(decay - truth.parameters["decay"]).mean())
    own = [row["parameter_mae"][name] for name in ("basal", "decay", "sensitivity")]
    assert row["parameter_mae_sum"] == pytest.approx(sum(own))
    assert row["output_q2"] is None
    assert row["elbo"] is None


def test_truth_is_never_handed_to_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from distlfm.lfo import Operator

    seen: list[Instance] = []
    real = Operator.__call__

    def spy(self: Operator, instances: Any) -> Any:
        seen.extend(instances if isinstance(instances, list) else [instances])
        return real(self, instances)

    monkeypatch.setattr(Operator, "__call__", spy)
    query(genes()[0], some())
    assert seen
    assert all(one.truth is None for one in seen)


def test_truth_beyond_the_trained_times_is_not_scored() -> None:
    (instance,) = some(1)
    truth = instance.truth
    assert truth is not None
    assert truth.force is not None
    longer = replace(
        truth, times=np.append(truth.times, 50.0), force=np.append(truth.force, [[1e6]], axis=1), outputs=None
    )
    plain, extended = query(genes()[0], [instance]), query(genes()[0], [replace(instance, truth=longer)])
    assert extended.rows[0]["latent_q2"] == pytest.approx(plain.rows[0]["latent_q2"])


def test_order_of_an_instance_s_outputs_does_not_matter() -> None:
    (instance,) = some(1)
    truth = instance.truth
    assert truth is not None
    assert truth.outputs is not None
    turned = replace(
        instance,
        outputs=instance.outputs[::-1],
        values=instance.values[::-1],
        mask=instance.mask[::-1],
        truth=replace(
            truth,
            outputs=truth.outputs[::-1],
            parameters={
                name: values[::-1] if len(values) == 2 else values for name, values in truth.parameters.items()
            },
        ),
    )
    first, second = query(genes()[0], [instance]).rows[0], query(genes()[0], [turned]).rows[0]
    assert second["parameter_mae"] == pytest.approx(first["parameter_mae"])
    assert second["latent_q2"] == pytest.approx(first["latent_q2"])


def as_table(instances: list[Instance]) -> pa.Table:
    columns: dict[str, list[Any]] = {"who": [], "hours": [], "output_0": [], "output_1": []}
    for one in instances:
        columns["who"] += [one.id] * len(one.times)
        columns["hours"] += one.times.tolist()
        for i, name in enumerate(one.outputs):
            columns[name] += one.values[i].tolist()
    return pa.table(columns)


def test_every_kind_of_data_gives_the_same_answers(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    instances = some(3)
    (tmp_path / "folder").mkdir()
    write_npz(tmp_path / "data.npz", instances)
    write_npz(tmp_path / "folder" / "data.npz", instances)
    pyarrow.csv.write_csv(as_table(instances), tmp_path / "data.csv")
    pyarrow.parquet.write_table(as_table(instances), tmp_path / "data.parquet")
    columns = "data.columns={time: hours, instance: who, values: [output_0, output_1]}"
    expected = [one.mean for one in query(checkpoint, instances).answers]
    for name, settings in (("data.npz", []), ("folder", []), ("data.csv", [columns]), ("data.parquet", [columns])):
        found = query(checkpoint, tmp_path / name, settings)
        np.testing.assert_allclose([one.mean for one in found.answers], expected, **SINGLE, err_msg=name)
    stored = query(checkpoint, fresh_genes())
    np.testing.assert_allclose([one.mean for one in stored.answers][:3], expected, **SINGLE)


def test_irregular_times_and_finer_ones_are_answered() -> None:
    checkpoint, _ = genes()
    (instance,) = some(1)
    kept = np.array([0, 1, 3, 4, 7, 8, 12, 13, 17, 20])
    sparse = replace(instance, times=instance.times[kept], values=instance.values[:, kept], mask=instance.mask[:, kept])
    fine_times = np.linspace(instance.times[0], instance.times[-1], 41)
    values = np.stack([np.interp(fine_times, instance.times, row) for row in instance.values])
    fine = replace(instance, times=fine_times, values=values, mask=np.ones(values.shape, bool), truth=None)
    run = query(checkpoint, [sparse, fine])
    assert [one.shape for one in run.answers] == [(21,), (41,)]
    assert all(np.isfinite(one.mean).all() for one in run.answers)


def test_instance_that_cannot_be_answered_does_not_stop_the_others(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    instances = some(3)
    stranger = replace(instances[1], id="stranger", outputs=("output_0", "unheard"))
    run = query(checkpoint, [instances[0], stranger, instances[2]], [f"run.dir={tmp_path}"])
    assert [row["status"] == "failed" for row in run.rows] == [False, True, False]
    assert run.tally.failures[0]["id"] == "stranger"
    assert "unheard" in run.tally.failures[0]["reason"]
    assert {row["instance"] for row in rows_of(tmp_path / "answers.csv")} == {instances[0].id, instances[2].id}
    with pytest.raises(WorkError, match="unheard"):
        query(checkpoint, [stranger])


def test_outputs_may_have_other_names(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    (instance,) = some(1)
    named = replace(instance, outputs=("left", "right"))
    found = query(checkpoint, [named], ["outputs.left=output_0", "outputs.right=output_1"])
    np.testing.assert_array_equal(found.answers[0].mean, query(checkpoint, [instance]).answers[0].mean)
    with pytest.raises(UsageError, match="the data have no output 'top'"):
        query(checkpoint, [named], ["outputs.top=output_0"])
    with pytest.raises(UsageError, match="the operator has no output 'other'"):
        query(checkpoint, [named], ["outputs.left=other"])


@pytest.mark.slow
def test_single_output_needs_no_name() -> None:
    checkpoint, store = field()
    (instance,) = Store.open(store).instances(0, 1)
    found = query(checkpoint, [replace(instance, outputs=("temperature",))])
    np.testing.assert_array_equal(found.answers[0].mean, query(checkpoint, [instance]).answers[0].mean)


def test_times_outside_the_trained_ones_bring_a_warning() -> None:
    (instance,) = some(1)
    run = query(genes()[0], [replace(instance, times=instance.times * 60, truth=None)])
    assert run.rows[0]["status"] == "unlike_training"
    assert run.rows[0]["novelty"] > 1
    assert "outside" in run.rows[0]["warning"]
    assert run.overall["novelty"]["warned"] == 1


def test_tables_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    operator = operator_of(genes()[0])
    (instance,) = some(1)
    answer = operator(instance.blind())

    def break_off() -> None:
        with tables(tmp_path, operator.schema) as files:
            files.add(answer, instance)
            assert len(list(tmp_path.iterdir())) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["plot=true"], "Give --out"),
        (["data.colums.time=t"], "Did you mean"),
        (["run.batch=0"], "run.batch"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(settings: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        query(genes()[0], fresh_genes(), settings)


def test_wrong_places_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"operator\.pt"):
        find_checkpoint(tmp_path)
    with pytest.raises(UsageError, match="no checkpoint"):
        query(tmp_path / "nothing.pt", fresh_genes())
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(UsageError, match="not a checkpoint"):
        query(tmp_path / "text.pt", fresh_genes())
    with pytest.raises(DistlfmError):
        query(genes()[0], tmp_path / "nothing.csv")


def test_few_are_all_looked_at_and_of_many_the_telling_ones() -> None:
    rows = [{"status": "answered", "latent_q2": i / 100, "novelty": 0.5, "warning": None} for i in range(100)]
    rows[40]["novelty"] = 3.0
    rows[7] = {"status": "failed", "latent_q2": None, "novelty": None, "warning": None}
    assert list(worth_a_look(rows[:5])) == [0, 1, 2, 3, 4]
    found = worth_a_look(rows, unlike=1)
    assert found == {0: "worst", 50: "median", 99: "best", 40: "most unlike the training data"}
    unknown = [{**row, "latent_q2": None} for row in rows]
    assert list(worth_a_look(unknown, unlike=1)) == [40]


@pytest.mark.slow
def test_pictures_and_page_are_drawn(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    instances = [replace(one, id=f"../{one.id} <b>") for one in some(2)]
    query(checkpoint, instances, [f"run.dir={tmp_path}", "plot=true"])
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert names == [f"0000{i}_.._gen-00000{i}_b_.{kind}" for i in (0, 1) for kind in ("png", "svg")]
    page = (tmp_path / "report.html").read_text()
    assert "<b>" not in page
    assert 'src="http' not in page
    assert page.count("<figure>") == 2
