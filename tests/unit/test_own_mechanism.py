"""Slips in an equation of the user's own are answered with its file, its line and what is wanted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.mechanisms import (
    REGISTRY,
    Mechanism,
    Parameter,
    ParameterSpace,
    Values,
    build_mechanism,
    join_states,
    register,
    zero_state,
)
from distlfm.mechanisms.priors import LogNormal
from distlfm.runs.settings import FitConfig
from distlfm.solvers.linear import probe

RATE = LogNormal(median=0.4, spread=0.5)
OPTIONS = {"kind": "tissue_test", "outputs": ["plasma"]}


class Tissue(Mechanism):
    """A drug in plasma, which is measured, and in tissue, which is not."""

    @property
    def num_states(self) -> int:
        return 2

    def parameters(self) -> list[Parameter]:
        return [Parameter("leave", ("k",), RATE, positive=True), Parameter("pass", ("k12",), RATE, positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        plasma, tissue = y[..., :1], y[..., 1:]
        passed = values["pass"] * (plasma - tissue)
        return torch.cat([f - values["leave"] * plasma - passed, passed], -1)

    def initial_state(self, values: Values) -> Tensor:
        return zero_state(values, 2)

    def observe(self, y: Tensor, values: Values) -> Tensor:
        return y[..., :1]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    REGISTRY.pop("tissue_test", None)


def refusal(**changed: object) -> str:
    register("tissue_test")(type("Changed", (Tissue,), {"__module__": __name__, **changed}))
    with pytest.raises(UsageError) as caught:
        build_mechanism(OPTIONS)
    return str(caught.value)


def test_an_equation_with_a_hidden_state_is_taken() -> None:
    register("tissue_test")(Tissue)
    assert build_mechanism(OPTIONS).num_states == 2


def test_a_start_without_leading_dimensions_is_told_how_to_have_them() -> None:
    said = refusal(initial_state=lambda self, values: torch.zeros(2))
    assert said.startswith(
        "Changed.initial_state gives a tensor without the leading dimensions, and [..., 2] is needed"
    )
    assert "zero_state(values, 2) of distlfm.mechanisms" in said
    assert "gives a float, and a tensor [..., 2] is needed" in refusal(initial_state=lambda self, values: 0.0)


def test_a_missing_state_or_output_is_counted() -> None:
    said = refusal(initial_state=lambda self, values: 0.0 * values["leave"])
    assert "whose shape is [..., 1], and [..., 2] is needed: num_states is 2, for the outputs plasma." in said
    said = refusal(observe=lambda self, y, values: y)
    assert "Changed.observe gives a tensor whose shape is [..., 2], and [..., 1] is needed" in said


def test_states_along_a_wrong_dimension_and_single_precision_are_noticed() -> None:
    said = refusal(vector_field=lambda self, t, y, f, values: torch.stack([y[..., 0], y[..., 1]]))
    assert "whose shape is [2, 2, 3], for y of [2, 3, states]" in said
    said = refusal(vector_field=lambda self, t, y, f, values: y.float())
    assert "gives torch.float32, and float64 is needed." in said


def test_states_that_differ_in_leading_dimensions_are_joined() -> None:
    """One state that falls at a rate of its own, whatever the others and the force are."""

    def mixed(self: Mechanism, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return join_states(f[..., 0] - y[..., 0], -values["leave"][..., 0])

    def stacked(self: Mechanism, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return torch.stack([f[..., 0] - y[..., 0], -values["leave"][..., 0]], -1)

    said = refusal(vector_field=stacked)
    assert "stack expects each tensor to be equal size" in said
    assert "join_states(a, b, …) of distlfm.mechanisms" in said
    register("tissue_test")(type("Mixed", (Tissue,), {"vector_field": mixed}))
    mechanism = build_mechanism(OPTIONS)
    assert probe(mechanism, ParameterSpace(mechanism.settled())).affine


def test_a_nonlinear_equation_may_stack_states_that_depend_on_the_state() -> None:
    def epidemic(self: Mechanism, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        new = f[..., 0].exp() * y[..., 0] * y[..., 1]
        return torch.stack([-new, new - values["leave"][..., 0] * y[..., 1]], -1)

    register("tissue_test")(type("Epidemic", (Tissue,), {"vector_field": epidemic}))
    mechanism = build_mechanism(OPTIONS)
    assert not probe(mechanism, ParameterSpace(mechanism.settled())).affine


def test_what_the_equation_raises_is_told_with_its_line() -> None:
    def slip(self: Mechanism, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f - values["laeve"] * y

    said = refusal(vector_field=slip)
    assert "Changed.vector_field fails (" in said
    assert f"test_own_mechanism.py, line {slip.__code__.co_firstlineno + 1}): KeyError: 'laeve'." in said


def test_a_method_that_is_missing_is_named() -> None:
    half = type("Half", (Mechanism,), {"parameters": Tissue.parameters, "vector_field": Tissue.vector_field})
    register("tissue_test")(half)
    with pytest.raises(UsageError, match="Half, the mechanism 'tissue_test', has no initial_state"):
        build_mechanism(OPTIONS)


def test_a_config_that_names_its_outputs_is_refused_before_there_are_data() -> None:
    register("tissue_test")(type("Changed", (Tissue,), {"initial_state": lambda self, values: torch.zeros(2)}))
    with pytest.raises(UsageError, match="without the leading dimensions"):
        build(FitConfig, {"mechanism": OPTIONS})


def test_labels_are_a_tuple() -> None:
    with pytest.raises(UsageError, match=r"Give a tuple: \('k12',\)"):
        Parameter("pass", ("k12"), RATE)


def test_who_asks_for_an_unknown_mechanism_hears_of_plugins() -> None:
    with pytest.raises(UsageError, match=r"There is no mechanism 'tissue_test'.*plugins=\[MODULE\]"):
        build_mechanism(OPTIONS)


def unnamed(**changed: object) -> str:
    """What a config hears that leaves the outputs to the data."""
    register("tissue_test")(type("Changed", (Tissue,), {"__module__": __name__, **changed}))
    with pytest.raises(UsageError) as caught:
        build(FitConfig, {"mechanism": {"kind": "tissue_test"}})
    return str(caught.value)


def test_a_parameter_without_its_prior_is_told_with_its_line_and_how_one_looks() -> None:
    def without(self: Mechanism) -> list[Parameter]:
        return [Parameter("leave", ("k",), positive=True)]

    for said in (refusal(parameters=without), unnamed(parameters=without)):
        assert f"Changed.parameters fails ({__file__}, line {without.__code__.co_firstlineno + 1}): TypeError" in said
        assert "missing 1 required positional argument: 'prior'" in said
        assert 'Parameter("rate", ("k",), LogNormal(median=0.3, spread=0.5), positive=True)' in said


def test_names_and_labels_that_repeat_are_told() -> None:
    rate, labels = Parameter("leave", ("k",), RATE, positive=True), Parameter("leave", ("k", "k"), RATE, positive=True)
    assert "Changed.parameters gives 'leave' twice." in unnamed(parameters=lambda self: [rate, rate])
    assert "Changed.parameters gives 'leave[k]' twice." in unnamed(parameters=lambda self: [labels])


def test_an_equation_that_cannot_begin_is_told_so_before_the_fit() -> None:
    def logarithm(self: Mechanism, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f - (y - 1.0).log()

    said = refusal(vector_field=logarithm)
    assert "Changed.vector_field gives no finite number (nan or inf) with each parameter at its prior's middle" in said
    said = refusal(initial_state=lambda self, values: zero_state(values, 2) / 0.0)
    assert "Changed.initial_state gives no finite number" in said


def test_an_equation_that_divides_by_the_time_or_needs_a_force_is_taken() -> None:
    def early(self: Mechanism, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return join_states(f[..., 0].log() / t, -values["leave"][..., 0] * y[..., 1])

    register("tissue_test")(type("Early", (Tissue,), {"vector_field": early}))
    assert build_mechanism(OPTIONS).num_states == 2
