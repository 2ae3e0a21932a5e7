"""What every mechanism keeps to. `--plugin FILE` puts your own through the same tests."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import Tensor

import distlfm as lfm
from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.mechanisms import REGISTRY, Mechanism, MechanismConfig, ParameterSpace, Values, build_mechanism
from distlfm.mechanisms.priors import Uniform
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.solvers.base import SolverConfig
from distlfm.solvers.linear import probe
from distlfm.solvers.ode import solve

KINDS = sorted(kind for kind, made in REGISTRY.items() if issubclass(made, Mechanism))
OUTPUTS = (("a", "b"), ("a",), ("a", "b", "c"), ("a", "b", "c", "d"), ())
"""Names that are tried in turn: some equations have a number of outputs of their own."""

MORE: dict[str, list[dict[str, Any]]] = {
    "transcription": [{"forces": ("f", "g")}, {"forces": ("f", "g"), "response": {"kind": "hill"}}],
    "linear_ode": [{"order": 1}, {"order": 4, "free_start": True}],
    "nonparametric": [{"outputs": ("a",)}],
}
"""Options that are no choice between names."""


def choices(options: type[BaseModel], known: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Options that differ from the defaults in one key, for every name that a key may have; `known` keys stay."""
    for name, field in options.model_fields.items():
        if name in known:
            continue
        if typing.get_origin(field.annotation) is Literal:
            yield from ({name: one} for one in typing.get_args(field.annotation) if one != field.default)
        elif field.annotation is bool:
            yield {name: not field.default}
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ({name: inner} for inner in choices(field.annotation))


VARIANTS = [
    (kind, one)
    for kind in KINDS
    for one in [{}, *choices(REGISTRY[kind].Options, MechanismConfig.model_fields), *MORE.get(kind, [])]
]


def made(kind: str, options: dict[str, Any]) -> Mechanism:
    """The equation with as many outputs as it takes."""
    refusals = []
    for outputs in OUTPUTS:
        try:
            return build_mechanism({"kind": kind, **options}, outputs)
        except UsageError as error:
            refusals.append(error)
    raise refusals[0]


class Case:
    """A mechanism with points at which it is tried."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self.kind, self.given = kind, options
        self.mechanism = made(kind, options)

    @cached_property
    def space(self) -> ParameterSpace:
        return ParameterSpace(self.mechanism.settled())

    def normal(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)

    def values(self, *leading: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        return self.space.unpack(0.5 * self.normal(*leading, self.space.num_free, seed=1, dtype=dtype))

    def point(self, *leading: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
        """t, y, f."""
        t = 0.5 + self.normal(*leading, seed=2, dtype=dtype).abs()
        y = 0.5 + self.normal(*leading, self.mechanism.num_states, seed=3, dtype=dtype).abs()
        return t, y, self.normal(*leading, len(self.mechanism.force_names), seed=4, dtype=dtype)

    def everything(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> dict[str, Tensor]:
        """What each method gives, by the method's name."""
        one = self.mechanism
        return {
            "vector_field": one.vector_field(t, y, f, values),
            "initial_state": one.initial_state(values),
            "observe": one.observe(y, values),
            "act": one.act(f, values),
            "force_input": one.force_input(t, y),
        }

    def widths(self) -> dict[str, int]:
        one, states = self.mechanism, self.mechanism.num_states
        last = {"vector_field": states, "initial_state": states, "observe": len(one.outputs)}
        return {**last, "act": len(one.force_names), "force_input": one.force_dims}

    def solved(self, first: list[float], second: list[float], shift: float = 0.0) -> Tensor:
        """Outputs [S, B, T, P] under S sums of two forces with these weights; all clocks set forward by `shift`."""
        values, count = self.values(2), len(self.mechanism.force_names)
        weights = [
            torch.tensor(one, dtype=torch.float64)[:, None, None].expand(-1, 2, count) for one in (first, second)
        ]

        def force(x: Tensor) -> Tensor:
            at = (x[..., 0] - shift).unsqueeze(-2)
            return weights[0].unsqueeze(-1) * torch.sin(1.3 * at) + weights[1].unsqueeze(-1) * torch.cos(0.7 * at + 0.3)

        times = shift + torch.linspace(0, 2, 9, dtype=torch.float64).expand(2, -1)
        found = solve(self.mechanism, force, values, times, SolverConfig(steps=24))
        assert found.ok.all(), "a trajectory has diverged"
        return self.mechanism.observe(found.states, {name: value.unsqueeze(-2) for name, value in values.items()})


def named(variant: tuple[str, dict[str, Any]]) -> str:
    kind, options = variant
    words = [str(one) for key, value in options.items() for one in (key, *_leaves(value))]
    return "-".join([kind, *words])


def _leaves(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else [value]


@pytest.fixture(params=VARIANTS, ids=named)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


@pytest.fixture(params=KINDS)
def plain(request: pytest.FixtureRequest) -> Case:
    return Case(request.param, {})


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
def test_leading_dimensions_are_kept_whatever_they_are(case: Case, leading: tuple[int, ...]) -> None:
    for name, given in case.everything(*case.point(*leading), case.values(*leading)).items():
        assert given.shape == (*leading, case.widths()[name]), name


def test_a_batch_is_its_members_one_by_one(case: Case) -> None:
    point, values = case.point(2, 3), case.values(2, 3)
    together = case.everything(*point, values)
    for index in np.ndindex(2, 3):
        alone = case.everything(*(part[index] for part in point), {name: one[index] for name, one in values.items()})
        for name, given in alone.items():
            torch.testing.assert_close(given, together[name][index], rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.parametrize("shared", [(3,), (1, 3), (2, 1)], ids=str)
def test_values_may_be_those_of_all_samples_or_all_times(case: Case, shared: tuple[int, ...]) -> None:
    t, y, f = case.point(2, 3)
    t, values = case.point(*shared)[0], case.values(*shared)
    whole = {name: one.expand(2, 3, -1) for name, one in values.items()}
    for method in ("vector_field", "observe"):
        given, expected = (case.everything(at, y, f, one)[method] for at, one in ((t, values), (t.expand(2, 3), whole)))
        torch.testing.assert_close(given.expand_as(expected), expected, rtol=1e-12, atol=1e-14, msg=method)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_numbers_keep_their_precision(case: Case, dtype: torch.dtype) -> None:
    for name, given in case.everything(*case.point(3, dtype=dtype), case.values(3, dtype=dtype)).items():
        assert given.dtype == dtype, name


def test_gradients_are_those_of_differences(case: Case) -> None:
    names, (t, y, f) = list(case.values(2)), case.point(2)
    free = [one.clone().requires_grad_() for one in (y, f, *case.values(2).values())]

    def of(method: str) -> Callable[..., Tensor]:
        def call(y: Tensor, f: Tensor, *values: Tensor) -> Tensor:
            return case.everything(t, y, f, dict(zip(names, values, strict=True)))[method] + 0.0 * y.sum()

        return call

    for method in ("vector_field", "initial_state", "observe", "act"):
        assert torch.autograd.gradcheck(of(method), free), method


def test_parameters_have_names_labels_and_priors_that_keep_their_sign(case: Case) -> None:
    parameters = case.mechanism.parameters()
    assert parameters
    assert len({one.name for one in parameters}) == len(parameters)
    drawn = case.space.unpack(3.0 * case.normal(50, case.space.num_free))
    for one in parameters:
        assert one.name.isidentifier()
        assert one.kind in ("mechanism", "initial", "response")
        assert one.labels
        assert len(set(one.labels)) == len(one.labels)
        assert drawn[one.name].shape == (50, len(one.labels))
        assert not one.positive or bool((drawn[one.name] > 0).all())


def test_what_a_config_knows_is_no_unknown_and_its_priors_are_taken(case: Case) -> None:
    for one in case.space.parameters:
        label, middle = one.labels[-1], float(one.prior.natural(torch.zeros((), dtype=torch.float64)))
        known = made(case.kind, {**case.given, "fixed": {one.name: {label: middle}}})
        space = ParameterSpace(known.settled())
        assert space.num_free == case.space.num_free - 1
        assert float(space.unpack(torch.ones(space.num_free, dtype=torch.float64))[one.name][-1]) == middle
        prior = Uniform(low=0.2, high=0.7)
        other = made(case.kind, {**case.given, "priors": {one.name: prior}})
        assert ParameterSpace(other.settled())[one.name].prior == prior


def test_an_unknown_that_it_does_not_have_is_refused_with_those_it_has(plain: Case) -> None:
    name = plain.space.parameters[0].name
    for section in ({"fixed": {f"{name}s": 1.0}}, {"priors": {f"{name}s": {"kind": "lognormal", "median": 1.0}}}):
        with pytest.raises(UsageError, match=f"no parameter '{name}s'.*Did you mean '{name}'") as refused:
            build_mechanism({"kind": plain.kind, **section}, plain.mechanism.outputs)
        assert refused.value.fix


def test_the_probe_finds_it_linear_if_its_solutions_are(case: Case) -> None:
    """Answers to two forces add up, and an experiment that begins later is the same: only then is it linear."""
    nothing, one, other, both = case.solved([0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0])
    later = case.solved([0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0], shift=3.7)
    size = float(both.abs().max()) + 1.0
    adds_up = float((both - one - other + nothing).abs().max()) < 1e-9 * size
    same_later = float((later - torch.stack([nothing, one, other, both])).abs().max()) < 1e-9 * size
    t, y, f = case.point()
    slopes = torch.func.jacrev(lambda at: case.mechanism.vector_field(t, at, f, case.values()))(y)
    apart = not bool((slopes - torch.diag(torch.diagonal(slopes))).any())
    affine, found = adds_up and same_later, probe(case.mechanism, case.space)
    if found.timed:  # a known input may come later than these solutions end
        affine = False
    assert (found.affine, found.diagonal) == (affine, affine and apart)
    assert float((one - nothing).abs().max()) > 1e-6 * size, "a force changes nothing"


def test_it_is_written_down_and_read_again(case: Case) -> None:
    written = case.mechanism.options.model_dump(mode="json")
    assert written["kind"] == case.kind == type(case.mechanism).kind
    again = build_mechanism(written)
    assert type(again) is type(case.mechanism)
    assert again.options == case.mechanism.options
    assert type(case.mechanism)(case.mechanism.outputs, **case.given).options == case.mechanism.options
    model = lfm.Model(case.mechanism)
    assert lfm.Model.from_config(model.to_config()) == model


def test_it_simulates_from_its_defaults_and_a_seed_repeats(plain: Case) -> None:
    section = {"kind": plain.kind, "outputs": plain.mechanism.outputs}
    config = build(SimulateConfig, {"mechanism": section, "instances": 2, "stop": 0.5, "points": 6})
    first, second = simulate_from(config)
    assert first.outputs == plain.mechanism.outputs
    assert np.isfinite(first.values).all()
    assert not np.array_equal(first.values, second.values)
    assert first.truth is not None
    assert first.truth.force is not None
    assert first.truth.force.shape == (len(plain.mechanism.force_names), config.truth_points)
    assert np.isfinite(first.truth.force).all()
    assert {one.name for one in plain.space.parameters} <= set(first.truth.parameters)
    np.testing.assert_array_equal(simulate_from(config)[1].values, second.values)


def test_outputs_are_named_by_the_data_where_a_config_leaves_them_out(plain: Case) -> None:
    names = [f"measured {i}" for i in range(len(plain.mechanism.outputs))]
    assert build_mechanism({"kind": plain.kind}, names).outputs == tuple(names)
    assert build_mechanism({"kind": plain.kind, "outputs": []}, names).outputs == tuple(names)
    own = [f"own {i}" for i in range(len(names))]
    assert build_mechanism({"kind": plain.kind, "outputs": own}, names).outputs == tuple(own)
