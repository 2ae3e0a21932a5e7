"""A prior that is meant for other times is told once, before the fit and in its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.config import build
from distlfm.inference.findings.expectations import length_notice, prior_notice
from distlfm.inference.fit import InferenceConfig
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.survey import survey
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system

CONFIG = """\
verb: fit
mechanism: {kind: transcription}
force: {kernel: {kind: matern52}}
inference: {method: preestimate, preestimate: {draws: 4}}
"""
GENE: dict[str, Any] = {"kind": "transcription", "outputs": ["glucose"]}


def told(times: FloatArray, force: dict[str, Any] | None = None, mechanism: dict[str, Any] = GENE) -> str:
    model = Model(build_system(mechanism), build(ForceConfig, force or {}), LikelihoodConfig())
    values = np.ones((len(model.system.outputs), len(times)))
    some = [Instance("one", model.system.outputs, times, values, np.ones_like(values, dtype=bool))]
    return prior_notice(model, survey(model, some, some, InferenceConfig()))


@pytest.mark.parametrize(
    ("times", "force", "word"),
    [
        (np.arange(0.0, 100.0, 5.0), {}, "The default prior of the force's lengthscale has its middle at 1, far below"),
        (np.arange(0.0, 0.2, 0.02), {}, "far above the whole span of times, 0.18"),
        (np.arange(0.0, 12.0, 2.0), {}, ""),
        (np.arange(0.0, 100.0, 5.0), {"priors": {"lengthscale": {"kind": "lognormal", "median": 40}}}, ""),
        (np.arange(0.0, 100.0, 5.0), {"priors": {"lengthscale": {"kind": "lognormal", "median": 1, "spread": 3}}}, ""),
        (
            np.arange(0.0, 10.0, 1.0),
            {"priors": {"lengthscale": {"kind": "uniform", "low": 50, "high": 90}}},
            "The prior of the force's lengthscale has its middle at 70, far above",
        ),
        (np.arange(0.0, 100.0, 5.0), {"fixed": {"lengthscale": 1.0}}, ""),
    ],
)
def test_a_prior_far_from_the_times_is_told(times: FloatArray, force: dict[str, Any], word: str) -> None:
    notice = told(times, force)
    assert word in notice
    assert bool(notice) == bool(word)
    assert not word or "Set force.priors.lengthscale" in notice


def test_a_force_that_does_not_depend_on_time_is_not_compared_with_times() -> None:
    assert told(np.arange(0.0, 100.0, 5.0), mechanism={"kind": "nonparametric", "outputs": ["a"]}) == ""


@pytest.mark.parametrize(
    ("priors", "word"),
    [
        ({"lengthscale": 10.0}, "far above the whole extent of x, 0.5: the force could hardly change along it"),
        ({"lengthscale": 10.0, "lengthscale[x]": 0.1}, ""),
        ({"lengthscale": 0.1, "lengthscale[t]": 10.0}, ""),
        ({"lengthscale[x]": 0.1}, "The default prior of the force's lengthscale has its middle at 1, far below"),
    ],
)
def test_a_prior_for_minutes_is_told_where_places_are_in_metres(priors: dict[str, float], word: str) -> None:
    given = {name: {"kind": "lognormal", "median": median, "spread": 0.5} for name, median in priors.items()}
    model = Model(
        build_system({"kind": "reaction_diffusion"}), build(ForceConfig, {"priors": given}), LikelihoodConfig()
    )
    times, places = np.meshgrid(np.arange(0.0, 60.0, 5.0), np.linspace(0.0, 0.5, 6), indexing="ij")
    shape = (1, times.size)
    field = Instance(
        "rod", ("output",), times.ravel(), np.ones(shape), np.ones(shape, bool), positions=places.reshape(-1, 1)
    )
    notice = prior_notice(model, survey(model, [field], [field], InferenceConfig()))
    assert word in notice
    assert bool(notice) == bool(word)
    assert "extent" not in word or "Set force.priors.lengthscale[x]" in notice


@pytest.mark.parametrize(
    ("kernel", "count", "likelihood", "said"),
    [
        ("rbf", 500, "gaussian", True),
        ("rbf", 399, "gaussian", False),
        ("matern52", 500, "gaussian", False),
        ("rbf", 500, "poisson", False),
    ],
)
def test_long_series_that_a_filter_would_fit_quicker_are_told(
    kernel: str, count: int, likelihood: str, said: bool
) -> None:
    force = build(ForceConfig, {"kernel": {"kind": kernel}})
    model = Model(build_system(GENE), force, build(LikelihoodConfig, {"kind": likelihood}))
    values = np.ones((1, count))
    some = [Instance("one", ("glucose",), np.arange(float(count)), values, np.ones_like(values, dtype=bool))]
    notice = length_notice(model, survey(model, some, some, InferenceConfig()), InferenceConfig())
    assert ("force.kernel.kind=matern52" in notice) is said
    assert bool(notice) is said


def test_the_finest_instance_of_a_fleet_counts() -> None:
    model = Model(build_system(GENE), ForceConfig(), LikelihoodConfig())

    def some(step: float) -> list[Instance]:
        times = np.arange(0.0, 10 * step, step)
        values = np.ones((1, len(times)))
        return [Instance(f"every {step:g}", ("glucose",), times, values, np.ones_like(values, dtype=bool))]

    coarse, fine = (survey(model, some(step), some(step), InferenceConfig()) for step in (5.0, 1.0))
    assert prior_notice(model, coarse)
    assert not prior_notice(model, coarse.joined(fine))


def test_the_user_is_told_once_at_the_start_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fit.yaml").write_text(CONFIG)
    rows = [f"{who},{t},{120 + 20 * np.sin(t / 60):.1f}" for who in "abc" for t in range(0, 240, 15)]
    (tmp_path / "data.csv").write_text("patient,time,glucose\n" + "\n".join(rows) + "\n")
    out = tmp_path / "run"
    arguments = ["fit", str(tmp_path / "fit.yaml"), "--data", str(tmp_path / "data.csv"), "--out", str(out)]
    main([*arguments, "data.columns={instance: patient, time: time, values: glucose}", "--executor", "serial"])
    begin = "The default prior of the force's lengthscale"
    shown = capsys.readouterr()
    assert " ".join((shown.out + shown.err).split()).count(begin) == 1
    (notice,) = json.loads((out / "summary.json").read_text())["notices"]
    assert notice.startswith(begin)
    report = (out / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert report.count(begin) == 1
