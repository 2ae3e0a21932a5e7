"""The full fit beside the operator's answer: what it gives, and how both are compared."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from distlfm.config import build
from distlfm.data import write_npz
from distlfm.inference.fit import InferenceConfig
from distlfm.inference.optimise import OptimiserConfig, minimise
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import REGISTRY
from distlfm.mechanisms.build import import_plugins
from distlfm.queries.asking import as_data
from distlfm.runs.settings import FitConfig
from distlfm.runtime.reporting import watched
from distlfm.serve.answers import Shown, agreement, in_words, parameter_rows, plot_comparison, restored
from distlfm.serve.fit_child import INSTANCE, RESULT, STATE, TASK, Steps, work
from distlfm.serve.fits import FitOptions, FitProcess, fit_options
from distlfm.store import Store
from tests.support.query_factories import field, fresh_genes, genes, operator_of

QUICK = InferenceConfig(method="preestimate")
"""Solves no equation: enough to see what is done with a result."""


def shown_of(checkpoint: Path, instance: Instance) -> Shown:
    operator = operator_of(checkpoint)
    return Shown("answer", "source", instance, operator(instance.blind()), operator.schema, 0.01)


def gene() -> Shown:
    return shown_of(genes()[0], Store.open(fresh_genes()).instances(0, 1)[0])


def test_the_process_of_a_fit_finds_an_equation_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served_test_plugin.py").write_text(
        "from distlfm.mechanisms import register\n"
        "from distlfm.mechanisms.transcription import Transcription\n\n"
        "@register('served_test_genes')\nclass Mine(Transcription):\n    pass\n"
    )
    operator = operator_of(genes()[0])
    operator.schema = operator.schema.model_copy(update={"mechanism": {"kind": "served_test_genes"}})
    (tmp_path / "mine.yaml").write_text("verb: fit\nmechanism: {kind: served_test_genes}\n")
    monkeypatch.chdir(tmp_path)
    import_plugins(["served_test_plugin"])
    try:
        both = [fit_options(path, operator, ["served_test_plugin"]) for path in (None, tmp_path / "mine.yaml")]
    finally:
        REGISTRY.pop("served_test_genes")
        sys.modules.pop("served_test_plugin")
    monkeypatch.chdir("/")
    for options in both:
        assert isinstance(options, FitOptions)
        content = options.config.model_dump(mode="json")
        try:
            assert build(FitConfig, content).mechanism["kind"] == "served_test_genes"
        finally:
            REGISTRY.pop("served_test_genes", None)
            sys.modules.pop("served_test_plugin", None)


def task(folder: Path, shown: Shown, config: FitConfig) -> dict[str, Any]:
    """Do the work of a fit's process here."""
    write_npz(folder / INSTANCE, [shown.instance])
    axes = [axis.tolist() for axis in shown.answer.axes]
    content = {"config": config.model_dump(mode="json"), "schema": shown.schema.model_dump(mode="json"), "axes": axes}
    (folder / TASK).write_text(json.dumps(content))
    work(folder)
    found: dict[str, Any] = json.loads((folder / (RESULT if (folder / RESULT).exists() else STATE)).read_text())
    return found


@pytest.mark.slow
def test_the_fits_process_gives_bands_on_the_operators_grid(tmp_path: Path) -> None:
    shown = gene()
    options = fit_options(None, operator_of(genes()[0]))
    assert isinstance(options, FitOptions)
    found = task(tmp_path, shown, options.config.model_copy(update={"inference": QUICK}))
    assert found["answer"]["id"] == shown.instance.id
    np.testing.assert_allclose(found["answer"]["dims"]["time"], shown.answer.times)
    fitted = restored(found["answer"], found["kinds"], shown.answer)
    assert (fitted.lower95 < fitted.mean).all()
    assert (fitted.mean < fitted.upper95).all()
    assert {one.name for one in fitted.estimates} >= {"decay[output_0]", "decay[output_1]"}
    assert found["method"] == "preestimate"
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_whoever_waits_for_a_fit_hears_of_every_step_of_its_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the search is the same as without a listener."""
    monkeypatch.setattr("distlfm.serve.fit_child.EVERY", 0.0)
    start = torch.tensor([[-1.2, 1.0], [0.5, 0.5]], dtype=torch.float64)

    def valley(z: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (1 - z[:, 0]) ** 2 + 100 * (z[:, 1] - z[:, 0] ** 2) ** 2

    alone = minimise(valley, start, OptimiserConfig())
    with watched(Steps(tmp_path)):
        heard = minimise(valley, start, OptimiserConfig())
    assert torch.equal(alone.z, heard.z)
    reached = json.loads((tmp_path / STATE).read_text())
    assert reached == {"step": 1, "doing": f"search step {len(heard.trace)}/80"}
    minimise(valley, start, OptimiserConfig(iterations=3))
    assert json.loads((tmp_path / STATE).read_text()) == reached, "nobody listens any more"


@pytest.mark.parametrize(
    ("said", "stage"),
    [
        ({}, "starting"),
        ({"step": 1}, "searching for force and parameters"),
        ({"step": 1, "doing": "search step 37/80"}, "searching for force and parameters (search step 37/80)"),
        ({"step": 3}, "drawing"),
    ],
)
def test_the_page_is_told_how_far_a_running_fit_is(tmp_path: Path, said: dict[str, int], stage: str) -> None:
    (tmp_path / STATE).write_text(json.dumps(said))
    process = SimpleNamespace(poll=lambda: None, pid=0, stdin=None)
    told = FitProcess("key", gene(), tmp_path, process, 0.0).about()  # type: ignore[arg-type]
    assert (told["state"], told["step"], told["stage"]) == ("running", said.get("step", 0), stage)


def test_a_fit_that_cannot_be_done_leaves_its_sentence(tmp_path: Path) -> None:
    config = FitConfig(mechanism={"kind": "transcription"}, likelihood=LikelihoodConfig(kind="poisson"))
    found = task(tmp_path, gene(), config)
    assert "which is not a count. Poisson and negative binomial take whole numbers" in found["error"]
    assert not (tmp_path / RESULT).exists()


def test_an_answer_comes_back_from_plain_data_as_it_was() -> None:
    answer = gene().answer
    kinds = {one.name: one.kind for one in answer.estimates}
    back = restored(json.loads(json.dumps(as_data(answer))), kinds, answer)
    for name in ("mean", "sd", "lower68", "upper95"):
        np.testing.assert_array_equal(getattr(back, name), getattr(answer, name))
    assert back.estimates == answer.estimates


def test_agreement_is_whole_with_itself_and_measured_with_another() -> None:
    shown = gene()
    (same,) = agreement(shown, shown.answer)["forces"]
    assert (same["difference"], same["inside_95"]) == (0.0, 1.0)
    far = replace(shown.answer, mean=shown.answer.mean + 100.0)
    (other,) = agreement(shown, far)["forces"]
    assert other["difference"] == pytest.approx(100.0)
    assert other["inside_95"] == 0.0
    assert "0% of the fit's mean is inside" in other["text"]


def test_parameters_that_only_one_of_both_has_are_listed_too() -> None:
    shown = gene()
    fitted = replace(shown.answer, estimates=shown.answer.estimates[1:])
    rows = {row["name"]: row for row in parameter_rows(shown, fitted)}
    first, second = shown.answer.estimates[:2]
    assert rows[first.name]["fit"] is None
    assert rows[second.name]["fit"]["mean"] == pytest.approx(second.mean)


def test_comparison_draws_both_curves_apart_by_more_than_colour() -> None:
    shown = gene()
    figure = plot_comparison(shown, replace(shown.answer, mean=shown.answer.mean + 1))
    (axes,) = figure.axes
    styles = {line.get_linestyle() for line in axes.lines}
    assert len(styles) >= 2
    told = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"operator: mean", "full fit: mean", "truth"} <= told


def test_a_field_is_told_and_drawn_by_its_maps() -> None:
    checkpoint, store = field()
    shown = shown_of(checkpoint, Store.open(store).instances(0, 1)[0])
    content = shown.content()
    assert list(content["dims"]) == ["time", "x"]
    assert len(content["observed"]["positions"]) == len(content["observed"]["times"])
    assert " x " in in_words(shown.answer, shown.schema)
    titles = [axes.get_title(loc="left") for axes in plot_comparison(shown, shown.answer).axes]
    assert "force: mean" in titles
    compared = agreement(shown, shown.answer)
    (same,) = compared["forces"]
    assert same["inside_95"] == 1.0
    assert content["caption"].startswith("Maps of what was measured")
    assert compared["caption"].startswith("Maps of the full fit")


def test_a_series_is_told_by_its_curves() -> None:
    shown = gene()
    assert "the blue line is the inferred force" in shown.content()["caption"]
    assert agreement(shown, shown.answer)["caption"].startswith("Blue: the operator.")
