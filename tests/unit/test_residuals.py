"""Residuals: standardised as the model says, and structure told from chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distlfm.inference.findings.residuals import Structure, residuals, structure
from distlfm.inference.result import FitResult, Prediction
from distlfm.instance import FloatArray
from tests.support.field_factories import NOISE, make_field
from tests.support.result_factories import band, make_result


def with_values(result: FitResult, change: FloatArray) -> FitResult:
    """The same fit of other data: the fitted curve plus `change` [n]."""
    fitted = result.at_data.outputs.mean
    instance = replace(result.instance, values=fitted + change)
    posterior = type(result.posterior)(result.posterior.model, instance, *_mesh(result))  # type: ignore[call-arg]
    return replace(result, instance=instance, posterior=posterior)


def _mesh(result: FitResult) -> tuple[FloatArray, ...]:
    marginal = getattr(result.posterior, "marginal", None)
    return () if marginal is None else (marginal.map.discretised.nodes,)


def series(errors: FloatArray, sd: float = 0.01) -> FitResult:
    """A fit of outputs [P, 13] that are off by errors in units of the learned noise."""
    result = make_result(num_outputs=len(errors))
    instance = result.instance
    noise = float(result.posterior.model.space.unpack(result.posterior.unknowns().proposals[0])["noise"][0, 0])
    fitted = np.zeros_like(errors)
    seen = np.ones_like(instance.mask)
    changed = replace(instance, values=fitted + noise * errors, mask=seen)
    posterior = type(result.posterior)(result.posterior.model, changed)  # type: ignore[call-arg]
    curve = band(fitted, np.full_like(fitted, sd * noise))
    at_data = Prediction(instance.times, result.at_data.force, curve)
    return replace(result, instance=changed, posterior=posterior, at_data=at_data)


def test_residual_is_the_error_over_what_the_fit_leaves_of_the_noise() -> None:
    result = make_field(truth=False)
    found = residuals(result)
    assert found is not None
    # The invented curve's sd is a fifth of the noise's.
    expected = (found.observed - found.fitted) / (NOISE * np.sqrt(1 - 0.2**2))
    assert found.values == pytest.approx(expected, rel=1e-6)
    assert 0.85 < float(np.sqrt((found.values**2).mean())) < 1.15


def test_values_that_the_equation_holds_fast_are_left_out() -> None:
    result = make_field(truth=False)
    found = residuals(result)
    assert found is not None
    assert found.positions is not None
    assert found.times.min() > 0
    fixed = result.at_data.outputs.sd[0] == 0
    assert len(found) == int((~fixed).sum())


def test_independent_noise_is_not_flagged() -> None:
    flags = [structure(make_field(seed=seed)) for seed in range(40)]
    assert all(one is not None and not one.flagged for one in flags)


def test_residuals_that_are_somewhat_alike_are_not_called_independent() -> None:
    plain = Structure(0.62, 0.003, 0.05, 0.4, 0.3, 1.0, in_space=False)
    assert not plain.flagged
    assert plain.sentence().startswith("Neighbouring residuals are somewhat alike in time (Moran's I 0.62, p = 0.003")
    assert replace(plain, statistic=0.05).sentence().startswith("Residuals look independent")
    assert replace(plain, p_value=0.02).sentence().startswith("Residuals look independent")
    assert replace(plain, p_value=0.4, size_statistic=0.5, size_p_value=0.004).doubtful


def test_misfit_with_a_shape_is_flagged() -> None:
    found = structure(make_field(wave=2.0))
    assert found is not None
    assert found.alike
    assert found.p_value < 0.001
    assert found.explained > 0.2
    assert "do not trust the bands" in found.sentence()


def test_misfit_that_is_a_matter_of_place_is_flagged_though_it_has_no_trend() -> None:
    result = make_field(truth=False)
    positions = result.instance.positions
    assert positions is not None
    rng = np.random.default_rng(2)
    size = np.where(np.abs(positions[:, 0] - 0.5) > 0.25, 3.0, 0.5)
    found = structure(with_values(result, NOISE * size * rng.normal(size=len(size))))
    assert found is not None
    assert not found.alike
    assert found.clustered
    assert found.flagged
    assert "large residuals lie together" in found.sentence()


def test_structure_far_below_the_assumed_noise_is_not_held_against_the_equation() -> None:
    result = make_field(truth=False)
    positions = result.instance.positions
    assert positions is not None
    smooth = 0.1 * NOISE * np.sin(6 * result.instance.times) * np.sin(6 * positions[:, 0])
    found = structure(with_values(result, smooth))
    assert found is not None
    assert found.flagged
    assert found.overstated
    assert "does not speak against the equation" in found.sentence()


def test_series_are_tested_at_lag_one_output_by_output() -> None:
    rng = np.random.default_rng(0)
    independent = structure(series(rng.normal(size=(5, 13))))
    assert independent is not None
    assert not independent.flagged
    assert not independent.in_space
    drift = np.sin(np.linspace(0, 6, 13)) + 0.2 * rng.normal(size=(5, 13))
    found = structure(series(drift))
    assert found is not None
    assert found.alike
    assert found.statistic > 0.5
    assert "in time (" in found.sentence()


def test_offset_between_outputs_is_no_structure() -> None:
    rng = np.random.default_rng(3)
    found = structure(series(rng.normal(size=(5, 13)) + np.arange(5)[:, None]))
    assert found is not None
    assert not found.flagged


def test_same_seed_gives_the_same_answer() -> None:
    result = make_field(2)
    assert structure(result, seed=1) == structure(result, seed=1)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_fields_of_any_dimension_are_tested(dims: int) -> None:
    found = structure(make_field(dims, wave=0.0))
    assert isinstance(found, Structure)
    assert not found.flagged
    assert found.in_space


def test_points_at_one_place_and_time_are_neighbours_of_each_other_and_not_of_themselves() -> None:
    result = make_field(truth=False)
    once = structure(result)
    assert once is not None
    assert result.instance.positions is not None
    instance = replace(
        result.instance,
        times=np.repeat(result.instance.times, 2),
        positions=np.repeat(result.instance.positions, 2, axis=0),
        values=np.repeat(result.instance.values, 2, axis=1),
        mask=np.repeat(result.instance.mask, 2, axis=1),
    )
    doubled = Prediction(instance.times, result.at_data.force, _doubled(result.at_data.outputs), instance.positions)
    posterior = type(result.posterior)(result.posterior.model, instance, *_mesh(result))  # type: ignore[call-arg]
    found = structure(replace(result, instance=instance, at_data=doubled, posterior=posterior))
    assert found is not None
    assert once.statistic < 0.15 < found.statistic < 0.5


def _doubled(one: object) -> object:
    return type(one)(*(np.repeat(getattr(one, name), 2, axis=1) for name in one.__dataclass_fields__))  # type: ignore[attr-defined]


def test_nothing_is_said_of_failed_fits_few_values_and_counts() -> None:
    assert structure(make_field(status="diverged")) is None
    result = make_field(truth=False)
    few = np.zeros_like(result.instance.mask)
    few[:, -20:-12] = True
    instance = replace(result.instance, mask=few)
    posterior = type(result.posterior)(result.posterior.model, instance, *_mesh(result))  # type: ignore[call-arg]
    assert structure(replace(result, instance=instance, posterior=posterior)) is None
