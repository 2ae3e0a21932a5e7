"""The probe: which mechanisms are linear with constant coefficients is found by trial, not declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import Mechanism, MechanismConfig, Parameter, Values, build_mechanism
from distlfm.mechanisms.priors import LogNormal, ParameterSpace
from distlfm.simulation.instances import simulate
from distlfm.solvers.linear import Linearity, extract, probe

AFFINE_DIAGONAL = Linearity(affine=True, diagonal=True)
AFFINE = Linearity(affine=True, diagonal=False)
NEITHER = Linearity(affine=False, diagonal=False)
GENES = ("a", "b")


def probed(mechanism: Mechanism) -> Linearity:
    return probe(mechanism, ParameterSpace(mechanism.settled()))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "transcription", "outputs": GENES}, AFFINE_DIAGONAL),
        ({"kind": "transcription", "outputs": GENES, "forces": ("f", "g")}, AFFINE_DIAGONAL),
        ({"kind": "transcription", "outputs": GENES, "initial": "free"}, AFFINE_DIAGONAL),
        ({"kind": "glucose"}, AFFINE_DIAGONAL),
        ({"kind": "linear_ode", "order": 1}, AFFINE_DIAGONAL),
        ({"kind": "linear_ode", "order": 2}, AFFINE),
        ({"kind": "linear_ode", "order": 4, "free_start": True}, AFFINE),
        ({"kind": "cascade", "outputs": GENES}, AFFINE),
        ({"kind": "transcription", "outputs": GENES, "response": {"kind": "softplus"}}, NEITHER),
        ({"kind": "transcription", "outputs": GENES, "response": {"kind": "hill"}}, NEITHER),
        ({"kind": "transcription", "outputs": GENES, "response": {"kind": "mlp"}}, NEITHER),
        ({"kind": "cascade", "outputs": GENES, "response": {"kind": "exp"}}, NEITHER),
        ({"kind": "lotka_volterra"}, NEITHER),
        ({"kind": "lotka_volterra", "response": {"kind": "identity"}}, NEITHER),
        ({"kind": "nonparametric", "outputs": GENES}, NEITHER),
        ({"kind": "nonparametric", "outputs": ("a",)}, NEITHER),
    ],
    ids=lambda value: "-".join(map(str, value.values()))[:40] if isinstance(value, Mapping) else "",
)
def test_a_mechanism_is_found_to_be_what_it_is(options: dict[str, Any], expected: Linearity) -> None:
    assert probed(build_mechanism(options)) == expected


class User(Mechanism):
    """A mechanism of one's own, of one state unless a test says otherwise."""

    def __init__(self, num_states: int = 1) -> None:
        super().__init__(MechanismConfig(kind="user", outputs=tuple("xyz"[:num_states])))

    def parameters(self) -> list[Parameter]:
        return [Parameter("rate", ("r",), LogNormal(median=0.5, spread=0.5), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f - values["rate"] * y

    def initial_state(self, values: Values) -> Tensor:
        return torch.zeros_like(values["rate"]).expand(*values["rate"].shape[:-1], self.num_states)


class Seasonal(User):
    """Linear in y and f, and its rate changes with time: no matrix exponential solves it."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f - values["rate"] * (1 + 0.5 * torch.sin(t)).unsqueeze(-1) * y


class Rhythm(User):
    """A push that follows the clock."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f + 0.01 * torch.cos(t).unsqueeze(-1) - values["rate"] * y


class Bent(User):
    """Nearly linear: far out it saturates."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f - values["rate"] * y / (1 + 1e-6 * y.square())


class Logged(User):
    """A linear state seen through a logarithm."""

    def observe(self, y: Tensor, values: Values) -> Tensor:
        return torch.log1p(y.square())


class Crossed(User):
    """Each state feeds on the next."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f + values["rate"] * y.roll(1, -1) - y


@pytest.mark.parametrize("mechanism", [Seasonal(), Rhythm(), Bent(), Logged()], ids=lambda one: type(one).__name__)
def test_a_users_mechanism_that_is_not_linear_is_not_called_so(mechanism: Mechanism) -> None:
    assert probed(mechanism) == NEITHER


def test_a_users_linear_mechanism_is_found_with_its_matrices() -> None:
    assert probed(User()) == AFFINE_DIAGONAL
    assert probed(Crossed(3)) == AFFINE
    system = extract(Crossed(3), {"rate": torch.tensor([[0.5], [2.0]], dtype=torch.float64)})
    expected = torch.tensor([[-1.0, 0.0, 2.0], [2.0, -1.0, 0.0], [0.0, 2.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(system.A[1], expected)
    torch.testing.assert_close(system.B, torch.ones(2, 3, 1, dtype=torch.float64))
    assert not system.c.any()


def test_the_method_follows_from_the_probe() -> None:
    quick = InferenceConfig.model_validate(
        {
            "optimiser": {"iterations": 3, "rounds": 0},
            "posterior": {"method": "point"},
            "preestimate": {"enabled": False},
            "variational": {"iterations": 0, "draws": 4, "num_inducing": 6},
            "grid_points": 5,
        }
    )
    found = {}
    for response in ("identity", "softplus"):
        mechanism = build_mechanism({"kind": "transcription", "outputs": ("a",), "response": {"kind": response}})
        model = Model(mechanism, ForceConfig(), LikelihoodConfig())
        instances = simulate(model, num_instances=1, times=[0, 1, 2, 3], truth_times=[0], seed=0)
        found[response] = fit_instances(model, instances, quick)[0].method
    assert found == {"identity": "collapsed", "softplus": "nested"}
