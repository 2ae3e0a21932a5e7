"""What every method of inference keeps to. `--plugin FILE` puts your own through the same tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.fit import InferenceConfig, fit_instances, instance_bytes, method_of
from distlfm.inference.method import FIELDS, SERIES
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.result import FitResult
from distlfm.inference.survey import settle_fleet
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.store.layout import FAILED

KNOWN = {name: {"a": value, "b": value} for name, value in (("basal", 0.2), ("sensitivity", 1.0))}
GENES: dict[str, Any] = {"kind": "transcription", "outputs": ("a", "b"), "fixed": KNOWN}
FIELD: dict[str, Any] = {
    "kind": "reaction_diffusion",
    "fixed": {"sensitivity": 1.0, "decay": 0.4, "diffusion": 0.05},
    "mesh": {"lower": [0.0], "upper": [1.0], "size": 0.2},
    "start": 0.0,
    "step": 0.1,
}
NOISY: dict[str, Any] = {"shared": True, "prior": {"kind": "lognormal", "median": 0.05, "spread": 0.3}}
SMALL = {
    "optimiser": {"rounds": 0, "iterations": 8},
    "variational": {"iterations": 3, "draws": 8, "num_inducing": 5, "samples": 2, "features": 16},
    "preestimate": {"draws": 8},
    "reference": {"chains": 2, "warmup": 20, "draws": 8, "depth": 3},
    "joint": {"chains": 4, "warm": [2], "kept": 2, "extensions": 0},
}


def model_of(mechanism: dict[str, Any], kernel: str = "rbf", likelihood: str = "gaussian") -> Model:
    force = build(ForceConfig, {"kernel": {"kind": kernel}})
    return Model(build_system(mechanism), force, build(LikelihoodConfig, {"kind": likelihood, **NOISY}))


MODELS: list[Callable[[], Model]] = [
    lambda: model_of(GENES),
    lambda: model_of(GENES, "matern52"),
    lambda: model_of({"kind": "lotka_volterra"}),
    lambda: model_of(GENES, likelihood="poisson"),
    lambda: model_of(FIELD),
    lambda: model_of(FIELD, likelihood="poisson"),
]


def series(name: str, count: int, seed: int) -> Instance:
    times = np.linspace(0, 4, count)
    values = 1.5 + 0.5 * np.sin(np.stack([times, times - 0.4]) + seed)
    values += 0.05 * np.random.default_rng(seed).standard_normal(values.shape)
    return Instance(name, ("a", "b"), times, values, np.ones(values.shape, dtype=bool))


def field(name: str, seed: int) -> Instance:
    times, places = (one.ravel() for one in np.meshgrid(np.linspace(0, 1, 5), np.linspace(0, 1, 6), indexing="ij"))
    values = np.sin(np.pi * places + 0.2 * seed) * times
    values = values + 0.05 * np.random.default_rng(seed).standard_normal(len(times))
    whole = np.ones((1, len(times)), dtype=bool)
    return Instance(name, ("output",), times, values[None], whole, positions=places[:, None])


class Case:
    """A method with a model that it takes, three instances and options under which it is quick."""

    def __init__(self, name: str, fields: bool) -> None:
        self.name, self.fields = name, fields
        small = {key: value for key, value in SMALL.items() if not fields or key == "optimiser"}
        if name not in ("variational", "reference") and not (fields and name == "preestimate"):
            small["posterior"] = {"stages": [6, 8], "draws": 6}
        if fields:
            small["field"] = {"num_times": 4, "num_places": 4, "refinements": 0, "shown_times": 3, "shown_places": 4}
        else:
            small["grid_points"] = 7
        options = build(InferenceConfig, {"method": name, **small})
        self.model = next(one for one in (make() for make in MODELS) if self.taken(one, options))
        if fields:
            self.instances = [field("first", 0), field("second", 1), field("third", 2)]
        else:
            self.instances = [series("first", 6, 0), series("second", 6, 1), series("third", 9, 2)]
        self.options = settle_fleet(self.model, self.instances, options)

    def taken(self, model: Model, options: InferenceConfig) -> bool:
        try:
            method_of(model, self.name).check(model, options)
        except UsageError:
            return False
        return model.is_field == self.fields

    def fit(self, *instances: Instance, seed: int = 0) -> list[FitResult]:
        return fit_instances(self.model, instances, self.options, seed)

    @cached_property
    def together(self) -> list[FitResult]:
        return self.fit(*self.instances)


@cache
def case_of(name: str, fields: bool) -> Case:
    return Case(name, fields)


ALL = [
    *(pytest.param((name, False), id=name) for name in sorted(SERIES)),
    *(pytest.param((name, True), id=f"{name} of fields", marks=pytest.mark.slow) for name in sorted(FIELDS)),
]


@pytest.fixture(params=[one for one in ALL if one.values[0][0] != "auto"])
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(*request.param)


def numbers(result: FitResult) -> np.ndarray[Any, Any]:
    bands = (result.grid.force, result.grid.outputs)
    return np.concatenate([np.ravel(one) for band in bands for one in (band.mean, band.sd, band.upper95)])


def close(one: FitResult, other: FitResult, tolerance: float) -> bool:
    mine, theirs = numbers(one), numbers(other)
    return one.status == other.status and bool(np.abs(mine - theirs).max() <= tolerance * np.abs(theirs).max())


def test_each_instance_has_an_answer_of_its_own(case: Case) -> None:
    for instance, result in zip(case.instances, case.together, strict=True):
        assert result.id == instance.id
        assert result.method == case.name
        assert result.status not in FAILED
        assert np.isfinite(numbers(result)).all()
        assert [one.name for one in result.estimates] == list(case.model.space.free_names)


def test_a_batch_is_its_instances_one_by_one(case: Case) -> None:
    """Few iterations: rounding differs with the size of a batch, and the path of an optimiser makes it grow."""
    for result in case.together[1:]:
        assert close(case.fit(result.instance)[0], result, 1e-3)


def test_a_neighbour_without_an_answer_changes_none(case: Case) -> None:
    first = case.instances[0]
    spoilt = replace(first, id="spoilt", values=np.full(first.values.shape, 1e200))
    found, _ = case.fit(first, spoilt)
    assert close(found, case.together[0], 1e-3)


def test_a_seed_repeats_an_answer(case: Case) -> None:
    first = case.instances[0]
    one, other = (case.fit(first, seed=7)[0] for _ in range(2))
    np.testing.assert_array_equal(numbers(one), numbers(other))


def test_a_saved_fit_predicts_as_the_original(case: Case, tmp_path: Path) -> None:
    result = case.together[1]
    save_fit(result, tmp_path / "one.npz")
    again = load_fit(tmp_path / "one.npz")
    assert (again.method, again.status, again.bound) == (result.method, result.status, result.bound)
    times = np.array([0.15, 0.5, 0.9])
    where = np.array([[0.2], [0.5], [0.7]]) if case.fields else None
    found, kept = result.predict(times, where), again.predict(times, where)
    for name in ("force", "outputs"):
        for column in ("mean", "sd"):
            mine, theirs = getattr(getattr(kept, name), column), getattr(getattr(found, name), column)
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)


def test_memory_grows_with_the_data(case: Case) -> None:
    small, large = (instance_bytes(case.model, count, case.options) for count in (10, 200))
    assert 0 < small < large


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_what_it_cannot_fit_is_refused_with_what_to_do(case: Case, number: int) -> None:
    model, options = MODELS[number](), case.options.model_copy(update={"settled": None})
    if model.is_field != case.fields and case.name not in (FIELDS if model.is_field else SERIES):
        with pytest.raises(UsageError, match=r"not fitted by the method .* Use one of"):
            method_of(model, case.name)
        return
    method = method_of(model, case.name)
    with suppress(UsageError):
        method.check(model, options)
        return
    with pytest.raises(UsageError) as refused:
        method.check(model, options)
    assert refused.value.fix
