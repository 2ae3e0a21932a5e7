"""Slips in a weak form of the user's own that are seen before FEniCS is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from distlfm.config import build
from distlfm.equations import EQUATIONS, Equation, positive, register_equation
from distlfm.errors import UsageError
from distlfm.mechanisms import REGISTRY, build_system, register
from distlfm.runs.settings import FitConfig


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    EQUATIONS.pop("rod_test", None)
    REGISTRY.pop("rod_test", None)


def refusal(**parts: object) -> str:
    register_equation("rod_test")(type("Rod", (Equation,), parts))
    with pytest.raises(UsageError) as caught:
        build(FitConfig, {"mechanism": {"kind": "rod_test"}})
    return str(caught.value)


def test_an_equation_without_its_form_is_told_to_write_it() -> None:
    assert "Rod, the equation 'rod_test', has no form. Write it." in refusal(coefficients={"loss": positive(0.02)})


def test_a_coefficient_that_is_a_number_is_told_how_a_prior_is_given_and_how_it_is_known() -> None:
    said = refusal(coefficients={"loss": 0.02}, form=lambda self, y, v, f, p: None)
    assert "The coefficient 'loss' of Rod is a float." in said
    assert "positive(median, spread) or real(mean, sd); mechanism.fixed.loss makes it known." in said


def test_an_equation_of_ones_own_has_the_name_and_the_module_that_it_was_written_in() -> None:
    @register_equation("rod_test")
    class Rod(Equation):
        def form(self, y: Any, v: Any, f: Any, p: Mapping[str, Any]) -> Any: ...

    rod = build_system({"kind": "rod_test", "outputs": ["heat"]})
    assert repr(rod) == "Rod(['heat'])"
    assert type(rod).__module__ == __name__


@pytest.mark.parametrize(("decorator", "base"), [(register, "Mechanism"), (register_equation, "Equation")])
def test_a_class_that_derives_from_nothing_is_told_from_what(decorator: object, base: str) -> None:
    with pytest.raises(UsageError, match=rf"Rod is registered as .* and is not one\. Write class Rod\({base}\)\."):
        decorator("rod_test")(type("Rod", (), {}))
