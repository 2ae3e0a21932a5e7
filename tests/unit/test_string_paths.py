"""Whoever writes Python gives paths as text, too."""

from __future__ import annotations

from pathlib import Path

import pytest

import distlfm
from distlfm.config import load
from distlfm.data import read, write_npz
from distlfm.lfo import Operator
from distlfm.runs.settings import GenerateConfig
from distlfm.store import Store, find_store, is_store
from distlfm.store.export import export
from distlfm.store.inspection import summarise
from distlfm.verbs.fit import resume
from distlfm.verbs.train import open_run, resume_train
from tests.support.query_factories import genes

GENERATE = "verb: generate\nmechanism: {kind: transcription}\ninstances: 4\npoints: 11\nnum_outputs: 2\n"
FIT = "verb: fit\nmechanism: {kind: transcription}\nrun: {executor: serial}\n"
SMALL = "{layers: 1, width: 4, modes: 2, head: 4, pooled: 2, regressions: 0}"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_store_is_generated_opened_created_and_exported() -> None:
    Path("generate.yaml").write_text(GENERATE)
    assert load(GenerateConfig, "generate.yaml").instances == 4
    made = distlfm.generate("generate.yaml", ["run.dir=few.zarr", "run.executor=serial"])
    opened = Store.open("few.zarr")
    assert opened.spec == made.spec
    assert is_store("few.zarr")
    assert find_store("few.zarr") == opened.path
    assert Store.create("another.zarr", opened.spec).spec == opened.spec
    assert summarise("few.zarr") == summarise(Path("few.zarr"))
    export(opened, "npz", "few.npz")
    assert Path("few.npz").is_file()


def test_instances_are_written_read_fitted_saved_and_loaded() -> None:
    instances = Store.open(str(genes()[1])).instances(0, 1)
    write_npz("one.npz", instances)
    Path("fit.yaml").write_text(FIT)
    run = distlfm.fit("fit.yaml", "one.npz", ["run.dir=run"])
    distlfm.save_fit(run.results[0], "a.npz")
    assert distlfm.load_fit("a.npz").id == read("one.npz").instances[0].id
    assert resume("run").tally.count == 1


def test_an_operator_is_trained_loaded_saved_asked_and_judged() -> None:
    checkpoint, store = map(str, genes())
    content = f"verb: train\ndata: {{stores: [{store}]}}\noperator: {SMALL}\nloop: {{epochs: 1}}\n"
    Path("train.yaml").write_text(content)
    assert distlfm.train("train.yaml", ["run.dir=operator"]).summary["epochs"] == 1
    assert open_run("operator").summary == resume_train("operator").summary
    assert Operator.load(checkpoint).save("copy.pt") == Path("copy.pt")
    write_npz("one.npz", Store.open(store).instances(0, 1))
    assert len(distlfm.query("copy.pt", "one.npz").answers) == 1
    assert distlfm.evaluate("copy.pt", store, ["limit=2", "run.dir=judged"]).tally.count == 2
    assert Path("judged/report.html").is_file()
