"""The probe: which mechanisms are linear with constant coefficients is found by trial, not declared."""

from __future__ import annotations

import numpy as np
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
TIMED = Linearity(affine=False, diagonal=False, timed=True, changing=True)


def probed(mechanism: Mechanism) -> Linearity:
    return probe(mechanism, ParameterSpace(mechanism.settled()))


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


@pytest.mark.parametrize("mechanism", [Bent(), Logged()], ids=lambda one: type(one).__name__)
def test_a_users_mechanism_that_is_not_linear_is_not_called_so(mechanism: Mechanism) -> None:
    assert probed(mechanism) == NEITHER


class Pulse(User):
    """A known input that is zero at nearly all times."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f + torch.where((t - 100.0).abs() < 0.25, 3.0, 0.0).unsqueeze(-1) - values["rate"] * y


class Recorded(User):
    """A known input from a table, through NumPy."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        pump = np.interp(t.numpy(), [0.0, 1e3, 1e3 + 1], [0.0, 0.0, 1.0])
        return f + torch.as_tensor(pump).unsqueeze(-1) - values["rate"] * y


class Shaped(User):
    """Takes no more than a shape from its time."""

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f - values["rate"] * y + torch.zeros_like(t).unsqueeze(-1) + y.new_zeros(*t.shape, 1)


@pytest.mark.parametrize("mechanism", [Seasonal(), Rhythm(), Pulse(), Recorded()], ids=lambda one: type(one).__name__)
def test_an_equation_that_reads_its_time_is_never_taken_as_time_invariant(mechanism: Mechanism) -> None:
    assert probed(mechanism) == TIMED


def test_the_shape_of_a_time_is_not_its_value() -> None:
    assert probed(Shaped()) == AFFINE_DIAGONAL


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
