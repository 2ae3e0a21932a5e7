"""`distlfm fit` on fields: from the command line to the answer, on the real FEniCS, PETSc and MPI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from distlfm.config import build
from distlfm.data import write_npz
from distlfm.errors import UsageError
from distlfm.fleets.fit_job import model_of
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.field.settings import settle
from distlfm.inference.fit import fit_instances
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import FIELD as MODEL
from distlfm.verbs.fit import FitRun, fit

pytestmark = pytest.mark.slow

QUICK = {"posterior": {"stages": [5, 10], "draws": 24}, "field": {"refinements": 0}}


def changed(**mechanism: Any) -> dict[str, Any]:
    return {**MODEL, "mechanism": {**MODEL["mechanism"], **mechanism}}


def fields(count: int = 1, **more: Any) -> list[Instance]:
    content = {**MODEL, "instances": count, "stop": 1.0, "points": 9, "places": 9, "missing": 0.3, "seed": 1, **more}
    return simulate_from(build(SimulateConfig, content))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FitRun:
    """Two fields fitted together, into a run directory."""
    folder = tmp_path_factory.mktemp("fields")
    write_npz(folder / "two.npz", fields(2))
    content = {**MODEL, "inference": QUICK, "data": {"path": str(folder / "two.npz")}, "run": {"dir": str(folder)}}
    return fit(build(FitConfig, content))


def test_the_source_of_a_field_is_found_with_honest_bands(run: FitRun) -> None:
    assert [row["status"] for row in run.figures] == ["converged", "converged"]
    for row in run.figures:
        assert row["output_q2"] > 0.98
        assert row["latent_q2"] > 0.8
        assert row["latent_coverage_95"] > 0.75


def test_a_run_of_fields_leaves_summary_report_and_fits(run: FitRun) -> None:
    folder = run.config.run.dir
    assert folder is not None
    summary = json.loads((folder / "summary.json").read_text())
    assert {"output_q2", "latent_q2", "parameter_mae"} <= set(summary["instances"][0])
    page = (folder / "report.html").read_text()
    assert "<svg" in page or "data:image" in page
    assert len(list((folder / "fits").glob("*.npz"))) == 2


@pytest.mark.parametrize("relative", [False, True], ids=["even noise", "noise that grows"])
def test_a_saved_field_predicts_as_the_original_does(tmp_path: Path, relative: bool) -> None:
    likelihood = {**MODEL["likelihood"]}
    if relative:
        likelihood["relative"] = {"kind": "lognormal", "median": 0.2, "spread": 0.3}
    config = build(FitConfig, {**MODEL, "likelihood": likelihood, "inference": QUICK})
    two = [one.observed() for one in fields(2)]
    results = fit_instances(model_of(config, two), two, config.inference)
    times, places = np.array([0.5, 0.9, 1.3]), np.array([[0.31], [0.5], [0.77]])
    for result in results:
        save_fit(result, tmp_path / "one.npz")
        again, before = load_fit(tmp_path / "one.npz").predict(times, places), result.predict(times, places)
        for name in ("force", "outputs"):
            for column in ("mean", "sd", "upper95"):
                new, old = getattr(getattr(again, name), column), getattr(getattr(before, name), column)
                np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-8)


def test_a_field_is_not_asked_before_its_start(run: FitRun) -> None:
    with pytest.raises(UsageError, match="starts at 0"):
        run.results[0].predict([-1.0], np.array([[0.5]]))


def test_points_held_back_at_the_edges_are_scored_and_not_refused() -> None:
    bare = changed(mesh={"kind": "interval", "size": 0.1})
    content = {**bare, "inference": QUICK, "data": {"fraction": 0.2, "split_seed": 3}}
    figures = fit(build(FitConfig, content), data=fields(1, missing=0.0)).figures[0]
    assert figures["output_q2"] > 0.5


def test_a_field_in_a_batch_is_fitted_as_if_alone(run: FitRun) -> None:
    two = [one.observed() for one in fields(2)]
    config = build(FitConfig, {**MODEL, "inference": QUICK})
    model = model_of(config, two)
    together = fit_instances(model, two, config.inference)
    settled = config.inference
    shared = settled.model_copy(update={"settled": settle(model, two, settled.field)})
    alone = fit_instances(model, two[1:], shared)
    for one, other in zip(together[1].estimates, alone[0].estimates, strict=True):
        assert one.mean == pytest.approx(other.mean, rel=1e-3)
    assert run.figures[1]["id"] == together[1].id


def test_two_ranks_give_the_answer_of_one(run: FitRun) -> None:
    data = [fields(2)[0].observed()]
    options = {**QUICK, "posterior": {"method": "laplace", "draws": 8}, "optimiser": {"iterations": 12, "rounds": 1}}
    found = []
    for ranks in (1, 2):
        content = {**changed(ranks=ranks, solver="petsc"), "inference": options}
        found.append(fit(build(FitConfig, content), data=data).results[0])
    for one, other in zip(found[0].estimates, found[1].estimates, strict=True):
        assert one.mean == pytest.approx(other.mean, rel=1e-4)
    np.testing.assert_allclose(found[0].grid.force.mean, found[1].grid.force.mean, atol=1e-4)
    del run


def test_a_field_on_a_square_is_fitted_through_projected_shapes(tmp_path: Path) -> None:
    square = changed(mesh={"kind": "rectangle", "lower": [0.0, 0.0], "upper": [1.0, 1.0], "size": 0.06})
    content = {**square, "instances": 1, "stop": 1.0, "points": 7, "places": 8, "missing": 0.4, "seed": 2}
    instances = simulate_from(build(SimulateConfig, content))
    options = {**QUICK, "field": {"refinements": 0, "num_times": 5, "num_places": 25}}
    write_npz(tmp_path / "square.npz", instances)
    figures = fit(build(FitConfig, {**square, "inference": options}), data=tmp_path / "square.npz").figures[0]
    assert figures["output_q2"] > 0.95
    assert figures["latent_q2"] > 0.8


def refusal(content: dict[str, Any], data: list[Instance] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        fit(build(FitConfig, content), data=fields() if data is None else data)
    return caught.value


def test_bad_problems_are_refused_with_the_cause_and_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = refusal(changed(boundary={"lefft": {"kind": "dirichlet"}}))
    assert "lefft" in unknown.cause
    assert "left" in unknown.fix
    outside = refusal(changed(mesh={"kind": "interval", "lower": [0.0], "upper": [0.5]}))
    assert "outside the domain" in outside.cause
    negative = refusal(changed(fixed={"sensitivity": 1.0, "diffusion": -0.1}))
    assert "diffusion" in negative.cause
    assert "-0.1" in negative.cause
    with pytest.raises(UsageError, match="rate above zero"):
        fit(build(FitConfig, changed(boundary={"left": {"kind": "robin", "value": 1.0}})), data=fields())
    short = refusal(changed(initial={"kind": "given", "points": [5.0, 6.0], "values": [1.0, 2.0]}))
    assert "cover the domain" in short.fix
    hasty = refusal(changed(step=1e-9))
    assert "mechanism.step" in hasty.fix
    swapped = refusal(changed(mesh={"kind": "interval", "lower": [1.0], "upper": [0.0]}))
    assert "Swap" in swapped.fix
    late = refusal(changed(start=0.5))
    assert "first observation" in late.cause
    flat = refusal(changed(mesh={"kind": "rectangle"}))
    assert "dimensions" in flat.cause
    one = fields()[0].observed()
    bare = Instance("bare", ("output",), np.arange(5.0), np.ones((1, 5)), np.ones((1, 5), bool))
    assert "no positions" in refusal(MODEL, [bare]).cause
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unforced.py").write_text(
        "from distlfm.equations import Equation, positive, register_equation\n\n\n"
        "@register_equation('unforced')\n"
        "class Unforced(Equation):\n"
        "    coefficients = {'decay': positive(1.0)}\n\n"
        "    def form(self, y, v, f, p):\n"
        "        from ufl import dx\n\n"
        "        return -p['decay'] * y * v * dx\n"
    )
    content = {"plugins": ["unforced"], "mechanism": {"kind": "unforced"}}
    assert "force" in refusal(content, [one]).cause


def test_shipped_configs_of_fields_are_valid() -> None:
    for name in ("reaction_diffusion_noisy", "reaction_diffusion_toy", "reaction_diffusion_2d", "kni", "fisher_kpp"):
        content = yaml.safe_load(Path(f"configs/fit/{name}.yaml").read_text())
        assert build(FitConfig, content).mechanism["kind"] in ("reaction_diffusion", "fisher_kpp")
