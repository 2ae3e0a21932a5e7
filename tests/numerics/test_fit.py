"""Whole fits: neighbours, gaps and the truth change nothing; predictions and archives agree."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.kernels import KernelConfig
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.collapsed import Starts, best_of_starts
from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import fit_instances, seed_of
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.optimise import OptimiserConfig
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from tests.support.fit_toy import GENES, make_instances, make_model, quick


def bands(result: FitResult) -> FloatArray:
    parts = [
        getattr(band, name)
        for band in (result.grid.force, result.grid.outputs)
        for name in ("mean", "sd", "lower68", "upper95")
    ]
    return np.concatenate(parts)


def assert_same(one: FitResult, other: FitResult, tolerance: float) -> None:
    assert one.id == other.id
    assert one.status == other.status
    np.testing.assert_allclose(bands(one), bands(other), rtol=tolerance, atol=tolerance)
    assert one.bound == pytest.approx(other.bound, rel=tolerance, abs=tolerance)
    for first, second in zip(one.estimates, other.estimates, strict=True):
        assert first.mean == pytest.approx(second.mean, rel=max(tolerance, 1e-9))


@pytest.fixture(scope="module")
def fits() -> list[FitResult]:
    return fit_instances(make_model(), make_instances(4, missing=0.2), quick())


# ---- neighbours ------------------------------------------------------------------------------------------------------


def test_a_batch_is_its_instances_one_by_one_in_any_order(fits: list[FitResult]) -> None:
    model = make_model()
    for result in fits[:2]:
        assert_same(fit_instances(model, [result.instance], quick())[0], result, 1e-6)
    turned = fit_instances(model, [result.instance for result in reversed(fits)], quick())
    for one, other in zip(reversed(turned), fits, strict=True):
        assert_same(one, other, 1e-6)


@pytest.mark.slow
def test_a_batch_through_the_solver_is_its_instances_one_by_one() -> None:
    """Rounding differs with the size of a batch, and natural gradients make it grow to some thousandths."""
    options = quick(method="variational", optimiser={"rounds": 0, "iterations": 8})
    model, instances = make_model(response={"kind": "softplus"}), make_instances(2)
    together = fit_instances(model, instances, options)
    for result in together:
        assert_same(fit_instances(model, [result.instance], options)[0], result, 5e-3)


@pytest.mark.parametrize("value", [1e12, 1e200], ids=["huge", "overflowing"])
def test_a_hopeless_neighbour_changes_nothing(fits: list[FitResult], value: float) -> None:
    instances = [result.instance for result in fits]
    bad = replace(instances[0], id="bad", values=np.full(instances[0].values.shape, value))
    found = fit_instances(make_model(), [instances[0], bad, *instances[1:]], quick())
    for one, other in zip([found[0], *found[2:]], fits, strict=True):
        assert_same(one, other, 1e-9)
    if value == 1e200:
        assert found[1].status == "diverged"
        assert figures(found[1])["output_q2"] is None


def test_a_neighbour_with_other_times_changes_nothing() -> None:
    model, instances = make_model(), make_instances(4)
    other = Instance("other", GENES, np.array([0.0, 30.0, 31.0]), np.ones((3, 3)), np.ones((3, 3), dtype=bool))
    options = quick(posterior={"method": "point"})
    found = fit_instances(model, [*instances, other], options)
    for one, alone in zip(found, fit_instances(model, instances, options), strict=False):
        off = np.abs(one.grid.force.mean - alone.grid.force.mean) / alone.grid.force.sd.max()
        assert off.max() < 0.01


def test_a_long_neighbour_does_not_change_the_method() -> None:
    model = make_model(KernelConfig(kind="matern52"))
    shape = (3, 60)
    long = Instance("long", GENES, np.arange(60.0), np.ones(shape), np.ones(shape, dtype=bool))
    options = quick(posterior={"method": "point"}, optimiser={"rounds": 0, "iterations": 1})
    (short,) = make_instances(1)
    alone, together = (fit_instances(model, batch, options)[0] for batch in ([short], [short, long]))
    assert together.method == alone.method


def test_seeds_go_by_name_not_by_place() -> None:
    assert seed_of(0, "x") == seed_of(0, "x")
    assert len({seed_of(0, "x"), seed_of(1, "x"), seed_of(0, "y")}) == 3


@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_times_and_gaps_give_finite_bands_in_order(data: st.DataObject) -> None:
    """Instances of 2 to 6 times with any pattern of gaps, an output that is never seen included."""
    instances = []
    for b in range(data.draw(st.integers(1, 2))):
        steps = data.draw(st.lists(st.floats(0.01, 20.0), min_size=2, max_size=6))
        shape = (3, len(steps))
        cells = data.draw(st.lists(st.booleans(), min_size=3 * len(steps), max_size=3 * len(steps)))
        mask = np.array(cells).reshape(shape)
        mask[0, 0] = True
        values = np.random.default_rng(b).normal(size=shape)
        instances.append(Instance(f"i{b}", GENES, np.cumsum(steps), np.where(mask, values, 0), mask))
    options = quick(posterior={"stages": [2], "draws": 3}, optimiser={"rounds": 0, "iterations": 6})
    for result in fit_instances(make_model(), instances, options):
        assert np.isfinite(bands(result)).all()
        for band in (result.grid.force, result.grid.outputs):
            order = [band.lower95, band.lower68, band.upper68, band.upper95]
            assert all((low <= high + 1e-9).all() for low, high in itertools.pairwise(order))
        assert result.grid.outputs.mean.shape == (3, 9)


def test_an_output_that_is_never_seen_is_predicted_with_a_wide_band() -> None:
    (whole,) = make_instances(1)
    mask = np.ones(whole.mask.shape, dtype=bool)
    mask[2] = False
    seen, blind = fit_instances(make_model(), [whole, replace(whole, id="blind", mask=mask)], quick())
    assert blind.ok
    assert blind.grid.outputs.sd[2].mean() > 3 * seen.grid.outputs.sd[2].mean()


def test_an_instance_with_fewer_outputs_in_another_order_is_scored_by_name() -> None:
    (whole,) = make_instances(1)
    assert whole.truth is not None
    assert whole.truth.outputs is not None
    rows = [2, 0]
    truth = replace(whole.truth, outputs=whole.truth.outputs[rows], parameters={})
    part = replace(
        whole, outputs=("c", "a"), values=whole.values[rows], mask=whole.mask[rows], truth=truth
    )  # fmt: skip
    mask = whole.mask.copy()
    mask[1] = False
    masked = replace(whole, mask=mask)
    one, other = (fit_instances(make_model(), [instance], quick())[0] for instance in (part, masked))
    assert one.grid.outputs.mean.shape == (3, 9)
    assert_same(one, other, 1e-9)
    wrong = replace(part, truth=replace(truth, outputs=truth.outputs[::-1]))
    assert figures(one)["output_q2"] > figures(replace(one, instance=wrong))["output_q2"] + 0.1


# ---- what a fit may see ----------------------------------------------------------------------------------------------


def test_the_truth_is_never_read(fits: list[FitResult]) -> None:
    times = np.linspace(0, 8, 17)
    garbage = Truth(times, np.full((1, 17), 1e9), np.full((3, 17), -7.0), parameters={"decay": np.full(3, 1e6)})
    for truth in (garbage, None):
        found = fit_instances(make_model(), [replace(result.instance, truth=truth) for result in fits], quick())
        for one, other in zip(found, fits, strict=True):
            assert_same(one, other, 0.0)


def test_of_several_starts_the_best_by_the_bound_is_kept() -> None:
    def wells(z: Tensor, rows: Tensor) -> Tensor:
        """The deeper of two wells is at −1 for even rows and at +1 for odd ones; the middle leads to either."""
        side = torch.where(rows % 2 == 0, 0.3, -0.3)
        return ((z.square() - 1).square() + side.unsqueeze(-1) * z).sum(-1)

    found = best_of_starts(wells, [1, 2, 3, 4], 1, OptimiserConfig(), Starts(12, random=True))
    assert torch.sign(found.z[:, 0]).tolist() == [-1, 1, -1, 1]
    alone = [best_of_starts(wells, [seed], 1, OptimiserConfig(), Starts(1, random=True)) for seed in range(20)]
    assert {float(torch.sign(one.z)) for one in alone} == {-1.0, 1.0}, "one start does not always find it"


def test_more_starts_never_end_lower_and_the_trace_ends_at_the_bound() -> None:
    model, instances = make_model(), make_instances(2)
    once = fit_instances(model, instances, quick())
    for one, result in zip(once, fit_instances(model, instances, quick(restarts=4)), strict=True):
        assert result.bound >= one.bound - 1e-6
        assert result.trace[-1] == pytest.approx(result.bound)
        assert (np.diff(result.trace) >= -1e-9).all()


# ---- predictions and archives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["collapsed", "exact", "filter", "nested", "variational"])
@pytest.mark.slow
def test_a_saved_fit_predicts_as_the_original_at_any_times(tmp_path: Path, method: str) -> None:
    options = quick(method=method, optimiser={"rounds": 0, "iterations": 8})
    model = make_model(KernelConfig(kind="matern52" if method == "filter" else "rbf"))
    result = fit_instances(model, make_instances(2), options)[1]
    save_fit(result, tmp_path / "one.npz")
    again = load_fit(tmp_path / "one.npz")
    for name in ("id", "method", "status", "bound", "effective_draws", "force_names"):
        assert getattr(again, name) == getattr(result, name)
    times = [7.9, 0.0, 3.3, 12.0, 3.3]
    found, other = result.predict(times), again.predict(times)
    np.testing.assert_allclose(other.force.mean, found.force.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(other.outputs.upper95, found.outputs.upper95, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(bands(again), bands(result), rtol=1e-7, atol=1e-9)
    assert found.force.mean[0, 2] == pytest.approx(found.force.mean[0, 4])


def test_predictions_off_the_grid_agree_with_the_grid_in_any_order(fits: list[FitResult]) -> None:
    result = fits[0]
    turned = np.concatenate([result.grid.times[::-1], [20.0]])
    found = result.predict(turned)
    assert np.array_equal(found.times, turned)
    width = result.grid.force.sd.max()
    np.testing.assert_allclose(found.force.mean[:, -2::-1], result.grid.force.mean, rtol=0, atol=5e-3 * width)
    np.testing.assert_allclose(found.outputs.sd[:, -2::-1], result.grid.outputs.sd, rtol=5e-2, atol=1e-4)
    assert found.force.sd[0, -1] > found.force.sd[0, :-1].min()  # nothing is known out there


def test_times_before_the_data_and_no_times_are_refused(fits: list[FitResult]) -> None:
    with pytest.raises(UsageError, match=r"Cannot predict at -1: the data begin at 0.*Ask for later times"):
        fits[0].predict([3.0, -1.0])
    for times in ([], [np.nan], [[1.0]]):
        with pytest.raises(UsageError, match="a list of finite numbers"):
            fits[0].predict(times)


def test_a_model_with_nothing_unknown_is_conditioned_and_no_more() -> None:
    known = {"basal": 0.1, "sensitivity": 1.0, "decay": 0.5}
    mechanism = build_mechanism(
        {"kind": "transcription", "outputs": ("a",), "fixed": {name: {"a": value} for name, value in known.items()}}
    )
    model = Model(mechanism, ForceConfig(fixed={"lengthscale": 1.0, "variance": 1.0}), LikelihoodConfig(noise="given"))
    assert model.space.num_free == 0
    shape = (1, 6)
    instance = Instance("x", ("a",), np.arange(6.0), np.ones(shape), np.ones(shape, bool), variance=np.ones(shape))
    (result,) = fit_instances(model, [instance], quick())
    assert result.status == "converged"
    assert result.estimates == ()
    assert result.undetermined == ()


def test_a_saved_fit_keeps_the_truth_of_its_instance(tmp_path: Path, fits: list[FitResult]) -> None:
    save_fit(fits[0], tmp_path / "one.npz")
    kept, truth = load_fit(tmp_path / "one.npz").instance.truth, fits[0].instance.truth
    assert kept is not None
    assert truth is not None
    assert kept.parameters.keys() == truth.parameters.keys()
    for name in ("times", "force", "outputs"):
        assert np.array_equal(getattr(kept, name), getattr(truth, name))
    for name, value in truth.parameters.items():
        assert np.array_equal(kept.parameters[name], value)
    assert figures(load_fit(tmp_path / "one.npz"))["latent_q2"] == pytest.approx(figures(fits[0])["latent_q2"])
