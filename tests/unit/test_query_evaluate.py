"""`distlfm evaluate`: on what an operator is judged, against what, and what is told of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from distlfm.errors import UsageError
from distlfm.lfo import split
from distlfm.lfo.settings import SplitConfig
from distlfm.store import STATUSES, Store, content_hash
from distlfm.training.log import read_metrics
from distlfm.verbs.evaluate import evaluate, fresh, resolutions, thinned
from distlfm.verbs.generate import generate
from distlfm.verbs.query import query
from distlfm.verbs.train import report_training
from tests.support import lfo_toy
from tests.support.query_factories import PROJECT, field, fresh_genes, genes, operator_of


def as_run(folder: Path, checkpoint: Path, store: Path) -> Path:
    """A folder that looks like a training run of that checkpoint on that store."""
    folder.mkdir()
    (folder / "operator.pt").write_bytes(checkpoint.read_bytes())
    (folder / "config.yaml").write_text(yaml.safe_dump({"verb": "train", "data": {"stores": [str(store)]}}))
    return folder


@pytest.mark.slow
def test_summary_and_page_of_an_evaluation(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    found = evaluate(checkpoint, fresh_genes(), [f"run.dir={tmp_path}"])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["count"] == len(summary["instances"]) == 24
    asked = query(checkpoint, fresh_genes())
    assert summary["mean"]["latent_q2"] == pytest.approx(asked.overall["mean"]["latent_q2"], abs=1e-4)
    curve = summary["calibration"]
    assert len(curve["levels"]) == len(curve["force"]) == len(curve["parameters"])
    assert curve["force"] == sorted(curve["force"])
    at = curve["levels"].index(0.95)
    assert curve["force"][at] == pytest.approx(summary["mean"]["latent_coverage_95"], abs=1e-6)
    assert summary["latent_q2_quantiles"]["0"] == summary["worst"]["latent_q2"]
    assert summary["speed"]["seconds_for_one"] > 0
    assert len(summary["super_resolution"]) == 2
    assert [one.place for one in found.examples] == ["worst", "median", "best"]
    page = (tmp_path / "report.html").read_text()
    assert "Calibration" in page
    assert "Super-resolution" in page


def test_what_the_operator_learned_from_is_not_judged(tmp_path: Path) -> None:
    checkpoint, store = genes()
    run = as_run(tmp_path / "run", checkpoint, store)
    held = split([str(name) for name in Store.open(store).read("id")], SplitConfig(validation=0.15, calibration=0.2))
    found = evaluate(run, store)
    assert len(found.rows) == len(held.validation) < 40
    assert {row["id"] for row in found.rows} == {f"gen-{i:06d}" for i in held.validation}
    assert "validation split" in found.what
    assert len(evaluate(run, store, ["part=all"]).rows) == 160
    assert len(evaluate(run, fresh_genes()).rows) == 24


def test_a_store_that_was_learned_from_is_known_wherever_it_and_the_operator_lie(tmp_path: Path) -> None:
    checkpoint, store = genes()
    shutil.copytree(store, tmp_path / "moved.zarr")
    found = evaluate(checkpoint, tmp_path / "moved.zarr")
    assert "validation split" in found.what
    assert len(found.rows) < 40


def as_fits(path: Path, store: Store, **changed: np.ndarray) -> Store:
    """A store of fits of another one's instances; their means are what that one has for the truth, if not given."""
    told = {**store.spec.attributes, "config_hash": "of the fits", "data": content_hash(store.markers())}
    fitted = Store.create(path, store.spec.model_copy(update={"kind": "fit", "attributes": told}))
    for block in range(store.spec.num_blocks):
        rows = store.block_range(block)
        arrays = {name: store.read(name, rows.start, rows.stop) for name in store.variables}
        arrays |= {name: array[rows.start : rows.stop] for name, array in changed.items()}
        arrays["status"] = np.full(len(rows), STATUSES["converged"], np.int8)
        fitted.write_block(block, arrays, [{"id": str(name)} for name in arrays["id"]])
    return fitted


def test_fits_of_what_was_learned_from_are_not_taken_for_new(tmp_path: Path) -> None:
    checkpoint, store = genes()
    fitted = as_fits(tmp_path / "fits.zarr", Store.open(store))
    found = evaluate(checkpoint, fitted.path)
    assert "validation split" in found.what
    assert len(found.rows) < 40
    assert "all of them" in evaluate(checkpoint, as_fits(tmp_path / "new.zarr", Store.open(fresh_genes())).path).what


def test_a_store_that_has_grown_or_another_grid_of_the_same_draws_is_not_taken_for_new(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    for name, settings in (("grown", ["points=21", "instances=170"]), ("finer", ["points=41", "instances=60"])):
        path = tmp_path / f"{name}.zarr"
        made = ["num_outputs=2", *settings, f"run.dir={path}", "run.executor=serial"]
        generate(PROJECT / "configs/generate/transcription.yaml", made)
        assert "validation split" in evaluate(checkpoint, path, ["limit=2"]).what


def test_bands_are_held_against_what_fits_leave_open(tmp_path: Path) -> None:
    """Fits whose means the operator gives, and which are as uncertain as it is: its bands are honest, not too wide."""
    checkpoint, _ = genes()
    store, operator = Store.open(fresh_genes()), operator_of(checkpoint)
    answers = operator([one.blind() for one in store.instances()])
    index = [operator.schema.parameters.index(name) for name in operator.schema.parameters]
    params, spread = store.read("params_mean"), np.zeros_like(store.read("params_mean"))
    for row, answer in enumerate(answers):
        for k in index:
            one, at = answer.estimates[k], store.spec.parameters.index(answer.estimates[k].name)
            params[row, at] = one.mean
            # to first order, the variance of a normal one on the scale on which it is learned
            low, high = operator.model.normal.standardised(
                torch.tensor([[getattr(x, side) for x in answer.estimates] for side in ("lower95", "upper95")])
            )[:, k].tolist()
            slope = one.mean if operator.model.normal.param_log[k] > 0 else 1.0
            spread[row, at] = ((high - low) / 2 / 1.96 * float(operator.model.normal.param_sd[k]) * slope) ** 2
    half = np.stack([(answer.upper95 - answer.lower95) / 2 / 1.96 for answer in answers])
    fitted = as_fits(
        tmp_path / "fits.zarr",
        store,
        force_mean=np.stack([answer.mean for answer in answers]),
        force_var=half**2,
        params_mean=params,
        params_var=spread,
    )
    found = evaluate(checkpoint, fitted.path)
    mean = found.overall["mean"]
    assert mean["latent_q2"] == pytest.approx(1.0, abs=1e-3)
    assert mean["latent_coverage_95"] == pytest.approx(0.95, abs=0.03)
    curve = found.overall["calibration"]
    assert curve["force"][curve["levels"].index(0.95)] == pytest.approx(0.95, abs=0.03)
    assert curve["parameters"][curve["levels"].index(0.95)] == pytest.approx(0.95, abs=0.06)
    assert "posterior" in found.what
    assert (
        evaluate(checkpoint, fitted.path, ["limit=3"]).rows[0]["latent_coverage_68"]
        == (found.rows[0]["latent_coverage_68"])
    )


def test_what_cannot_be_drawn_anew_is_told_and_the_scores_stand(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    store = Store.open(fresh_genes())
    config = store.spec.attributes["config"]
    odd = {**config, "mechanism": {**config["mechanism"], "kind": "of_a_plugin"}}
    spec = store.spec.model_copy(update={"attributes": {**store.spec.attributes, "config": odd}})
    other = Store.create(tmp_path / "odd.zarr", spec)
    other.write_block(0, {name: store.read(name) for name in store.variables}, [{"id": "a"}] * spec.instances)
    found = evaluate(checkpoint, other.path)
    assert found.fine == []
    assert found.overall["mean"]["latent_q2"] is not None
    (notice,) = found.overall["notices"]
    assert "Super-resolution was left out" in notice
    assert "of_a_plugin" in notice


def test_limit_takes_evenly_spaced_instances() -> None:
    found = evaluate(genes()[0], fresh_genes(), ["limit=4"])
    assert [row["id"] for row in found.rows] == ["gen-000000", "gen-000007", "gen-000015", "gen-000023"]


def test_fits_stand_for_the_truth_of_a_fitted_store(tmp_path: Path) -> None:
    store = lfo_toy.make_store(tmp_path / "toy.zarr", count=6)
    spec = store.spec.model_copy(update={"kind": "fit"})
    fitted = Store.create(tmp_path / "fitted.zarr", spec)
    arrays = {name: store.read(name) for name in store.variables}
    arrays["status"] = np.array([STATUSES["converged"]] * 5 + [STATUSES["failed"]], np.int8)
    fitted.write_block(0, arrays, [{"id": f"toy-{i}"} for i in range(6)])
    assert all(one.truth is None for one in fitted.instances())
    for one, known in zip(fitted.instances(answers=True), store.instances(), strict=True):
        assert one.truth is not None
        assert known.truth is not None
        np.testing.assert_array_equal(one.truth.force, known.truth.force)
        assert one.truth.parameters.keys() == known.truth.parameters.keys()
    assert resolutions(operator_of(genes()[0]), fitted) == []


def test_instances_that_failed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lfo_toy, "GENES", ("output_0", "output_1"))
    store = lfo_toy.make_store(tmp_path / "toy.zarr", count=6, failed=(1, 4))
    found = evaluate(genes()[0], store.path)
    assert [row["id"] for row in found.rows] == ["toy-0", "toy-2", "toy-3", "toy-5"]


def test_store_of_something_else_is_refused(tmp_path: Path) -> None:
    store = lfo_toy.make_store(tmp_path / "toy.zarr", count=2)
    with pytest.raises(UsageError, match="outputs"):
        evaluate(genes()[0], store.path)
    with pytest.raises(UsageError, match="outputs"):
        evaluate(genes()[0], field()[1])


def test_nothing_to_judge_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lfo_toy, "GENES", ("output_0", "output_1"))
    store = lfo_toy.make_store(tmp_path / "toy.zarr", count=2, failed=(0, 1))
    with pytest.raises(UsageError, match="Nothing of"):
        evaluate(genes()[0], store.path)
    with pytest.raises(UsageError, match="There is no store"):
        evaluate(genes()[0], tmp_path / "none")


@pytest.mark.parametrize(("make", "coarse", "fine"), [(genes, (21,), (41,)), (field, (9, 9), (17, 17))])
@pytest.mark.slow
def test_fresh_instances_are_answered_on_both_grids(make, coarse, fine) -> None:  # type: ignore[no-untyped-def]
    checkpoint, store = make()
    operator = operator_of(checkpoint)
    (one,) = resolutions(operator, Store.open(store), count=1)
    assert [answer.shape for answer in one.answers] == [coarse, fine]
    (instance,) = fresh(Store.open(store).spec.attributes["config"], operator, 1)
    kept = thinned(instance)
    assert len(kept.times) == np.prod(coarse)
    known = {(t, *x): v for t, x, v in zip(instance.times, _places(instance), instance.values[0], strict=True)}
    assert all(known[(t, *x)] == v for t, x, v in zip(kept.times, _places(kept), kept.values[0], strict=True))


def _places(instance) -> list[tuple[float, ...]]:  # type: ignore[no-untyped-def]
    if instance.positions is None:
        return [()] * len(instance.times)
    return [tuple(row) for row in instance.positions]


@pytest.mark.slow
def test_page_of_a_training_run(tmp_path: Path) -> None:
    checkpoint, store = genes()
    run = as_run(tmp_path / "run", checkpoint, store)
    lines = [{"event": "step", "step": i, "epoch": 0, "loss": 2.0 - i / 10, "lr": 1e-3} for i in range(1, 9)]
    epoch = {"event": "epoch", "step": 8, "epoch": 0, "train_total": 1.4, "validation_loss": 1.3, "validation_q2": 0.5}
    text = "".join(json.dumps(line) + "\n" for line in [*lines, epoch])
    (run / "metrics.jsonl").write_text(text + '{"event": "step", "st')
    assert len(read_metrics(run / "metrics.jsonl")) == 9
    page = report_training(run).read_text()
    for title in ("Training", "Scores", "Calibration", "Super-resolution", "(worst)", "(median)", "(best)"):
        assert title in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_page_of_a_run_whose_store_is_gone(tmp_path: Path) -> None:
    run = as_run(tmp_path / "run", genes()[0], tmp_path / "gone.zarr")
    page = report_training(run).read_text()
    assert "Training" in page
    assert "Scores" not in page
    with pytest.raises(UsageError, match="not a finished training run"):
        report_training(tmp_path)
