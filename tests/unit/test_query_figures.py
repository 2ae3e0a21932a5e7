"""Figures of answers: intervals that are honest are found to be, and known elements of parameters count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from distlfm.answer.parameters import Estimated
from distlfm.instance import Truth
from distlfm.queries.figures import LEVELS, CoverageCounts, at_truth, parameter_errors, true_elements
from distlfm.store import Store
from tests.support.query_factories import fresh_genes, genes, operator_of

WIDTHS = {68: 0.994458, 95: 1.959964}


def test_honest_intervals_are_on_the_diagonal_and_narrow_ones_below() -> None:
    operator = operator_of(genes()[0])
    (instance,) = Store.open(fresh_genes()).instances(0, 1)
    answer = operator(instance.blind())
    assert instance.truth is not None
    random = np.random.default_rng(0)
    honest, narrow = CoverageCounts(), CoverageCounts()
    for _ in range(300):
        truth = replace(instance.truth, force=answer.mean + answer.sd * random.standard_normal(answer.mean.shape))
        drawn = replace(instance, truth=replace(truth, parameters={}))
        for found, factor in ((honest, 1.0), (narrow, 0.5)):
            bands = {
                f"{side}{level}": answer.mean + sign * factor * width * answer.sd
                for level, width in WIDTHS.items()
                for side, sign in (("lower", -1), ("upper", 1))
            }
            found.add(operator, replace(answer, **bands), drawn)
    np.testing.assert_allclose(honest.curve()["force"], LEVELS, atol=0.02)
    assert (np.array(narrow.curve()["force"]) < np.array(LEVELS) - 0.04).all()
    assert honest.curve()["parameters"] is None


def test_parameters_intervals_are_judged_where_they_are_learned() -> None:
    operator = operator_of(genes()[0])
    normal, names = operator.model.normal, operator.schema.parameters
    (instance,) = Store.open(fresh_genes()).instances(0, 1)
    answer = operator(instance.blind())
    random = np.random.default_rng(1)
    found = CoverageCounts()
    z, sd = torch.zeros(1, len(names)), 0.3
    sides = {"mean": 0.0} | {
        f"{side}{k}": s * w * sd for k, w in WIDTHS.items() for side, s in (("lower", -1), ("upper", 1))
    }
    told = {side: normal.physical(z + shift)[0].tolist() for side, shift in sides.items()}
    given = [
        Estimated(name=name, kind="mechanism", sd=1.0, **{side: values[k] for side, values in told.items()})
        for k, name in enumerate(names)
    ]
    for _ in range(400):
        drawn = normal.physical(torch.from_numpy(sd * random.standard_normal((1, len(names)))).float())[0].tolist()
        values = dict(zip(names, drawn, strict=True)) | dict(operator.schema.fixed)
        by_name: dict[str, list[float]] = {}
        for name in sorted(values, key=lambda name: name):
            by_name.setdefault(name.partition("[")[0], []).append(values[name])
        truth = Truth(np.zeros(1), parameters={name: np.array(one) for name, one in by_name.items()})
        found.add(operator, replace(answer, estimates=tuple(given)), replace(instance, truth=truth))
    np.testing.assert_allclose(found.curve()["parameters"], LEVELS, atol=0.03)


def test_known_elements_count_as_they_are() -> None:
    operator = operator_of(genes()[0])
    (instance,) = Store.open(fresh_genes()).instances(0, 1)
    answer = operator(instance.blind())
    assert operator.schema.fixed == {"sensitivity[output_0]": 1.0}
    true = true_elements(instance, operator.schema)
    assert true["sensitivity[output_0]"] == 1.0
    learned = next(one for one in answer.estimates if one.name == "sensitivity[output_1]")
    error = abs(learned.mean - true["sensitivity[output_1]"])
    assert parameter_errors(answer, instance, operator.schema)["sensitivity"] == pytest.approx(error / 2)


def test_truth_of_the_learned_elements_alone_is_understood() -> None:
    operator = operator_of(genes()[0])
    (instance,) = Store.open(fresh_genes()).instances(0, 1)
    truth = Truth(np.zeros(1), parameters={"sensitivity": np.array([2.5]), "unheard": np.array([1.0])})
    assert true_elements(replace(instance, truth=truth), operator.schema) == {"sensitivity[output_1]": 2.5}


def test_no_truth_gives_nothing_to_compare() -> None:
    operator = operator_of(genes()[0])
    (instance,) = Store.open(fresh_genes()).instances(0, 1)
    answer = operator(instance.blind())
    assert at_truth(answer, None) is None
    assert at_truth(answer, Truth(np.array([99.0]), force=np.zeros((1, 1)))) is None
    assert at_truth(answer, Truth(np.array([1.0]), force=np.zeros((2, 1)))) is None
