"""Responses: how forces act, in the form the literature gives and in the form that is computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from distlfm.errors import UsageError
from distlfm.mechanisms import build_mechanism
from distlfm.mechanisms.priors import ParameterSpace
from distlfm.mechanisms.responses import Composed, Exp, Hill, Identity, Response, ResponseConfig, build_response

FORCES, OUTPUTS = ("f", "g"), ("a", "b", "c")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn_values(response: Response, *batch: int, forces: tuple[str, ...] = FORCES) -> dict[str, Tensor]:
    space = ParameterSpace(response.parameters(forces, OUTPUTS))
    return space.unpack(normal(*batch, space.num_free, seed=7))


def test_elementwise_responses_are_their_formulas() -> None:
    f = normal(4, 2)
    assert torch.equal(build_response(ResponseConfig())(f, {}), f)
    torch.testing.assert_close(build_response(ResponseConfig(kind="exp"))(f, {}), f.exp())
    torch.testing.assert_close(build_response(ResponseConfig(kind="softplus"))(f, {}), (1 + f.exp()).log())


def test_hill_is_the_ratio_of_products() -> None:
    """∏ g^w / (∏ g^w + e^{−w0}) with one weight for each output and force."""
    hill = build_response(ResponseConfig(kind="hill"))
    f, values = normal(5, 2), drawn_values(hill, 5)
    weight, bias = values["hill_weight"].reshape(5, 3, 2), values["hill_bias"]
    product = (softplus(f).unsqueeze(-2) ** weight).prod(-1)
    torch.testing.assert_close(hill(f, values), product / (product + torch.exp(-bias)), rtol=1e-9, atol=0)


def test_hill_of_one_force_has_a_weight_an_output() -> None:
    hill = build_response(ResponseConfig(kind="hill"))
    weight, bias = hill.parameters(("f",), OUTPUTS)
    assert weight.labels == bias.labels == OUTPUTS
    assert hill(normal(5, 1), drawn_values(hill, 5, forces=("f",))).shape == (5, 3)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (-1.0, -1.0), (1.5, -1.5)], ids=["cooperate", "repress", "compete"])
def test_the_sign_of_a_hill_weight_is_the_direction_in_which_its_force_acts(weights: tuple[float, float]) -> None:
    values = {
        "hill_weight": torch.tensor(weights, dtype=torch.float64),
        "hill_bias": torch.zeros(1, dtype=torch.float64),
    }
    f = normal(2).requires_grad_(True)
    (slope,) = torch.autograd.grad(Hill()(f, values).sum(), f)
    assert torch.equal(slope.sign(), torch.tensor(weights, dtype=torch.float64).sign())


def test_forces_that_compete_with_equal_weights_cancel_where_they_are_equal() -> None:
    values = {"hill_weight": torch.tensor([2.0, -2.0]), "hill_bias": torch.tensor([0.3])}
    found = Hill()(torch.tensor([[-1.0, -1.0], [4.0, 4.0]]), values)
    torch.testing.assert_close(found, torch.sigmoid(torch.tensor(0.3)).expand(2, 1))


def test_hill_stays_between_zero_and_one_with_a_finite_slope_at_any_force() -> None:
    hill = Hill()
    f = torch.tensor([[-800.0], [-30.0], [0.0], [30.0], [800.0]], dtype=torch.float64, requires_grad=True)
    values = {"hill_weight": torch.full((1,), 3.0).double(), "hill_bias": torch.zeros(1).double()}
    found = hill(f, values)
    assert ((found >= 0) & (found <= 1)).all()
    (slope,) = torch.autograd.grad(found.sum(), f)
    assert slope.isfinite().all()


def test_composed_responses_act_in_the_order_given() -> None:
    response = build_response(ResponseConfig(kind="hill", compose=("exp",)))
    f, values = normal(5, 2), drawn_values(response, 5)
    assert response.per_output
    torch.testing.assert_close(response(f, values), Hill()(f.exp(), values))
    twice = build_response(ResponseConfig(kind="softplus", compose=("exp", "identity")))
    torch.testing.assert_close(twice(f, {}), softplus(f.exp()))


def test_a_response_that_mixes_forces_may_only_come_last() -> None:
    with pytest.raises(UsageError, match="Only the last of composed responses may mix the forces"):
        Composed([Hill()], Identity())


@pytest.mark.parametrize("hidden", [1, 4])
def test_mlp_gives_one_value_an_output_for_any_leading_shape(hidden: int) -> None:
    response = build_response(ResponseConfig(kind="mlp", hidden=hidden))
    values = drawn_values(response, 6, 5)
    found = response(normal(6, 5, 2), values)
    assert found.shape == (6, 5, 3)
    # By hand, for one row.
    inner, outer = values["mlp_in"][1, 2].reshape(hidden, 2), values["mlp_out"][1, 2].reshape(3, hidden)
    layer = torch.tanh(inner @ normal(6, 5, 2)[1, 2] + values["mlp_bias"][1, 2])
    torch.testing.assert_close(found[1, 2], outer @ layer)


@pytest.mark.parametrize("kind", ["identity", "softplus", "exp", "hill", "mlp"])
def test_gradients_agree_with_differences(kind: str) -> None:
    response = build_response(ResponseConfig(kind=kind))
    values = drawn_values(response, 3)
    names = sorted(values)

    def call(f: Tensor, *given: Tensor) -> Tensor:
        return response(f, dict(zip(names, given, strict=True)))

    inputs = [normal(3, 2, seed=2), *(values[name] for name in names)]
    assert torch.autograd.gradcheck(call, [one.clone().requires_grad_(True) for one in inputs])


@pytest.mark.parametrize("kind", ["identity", "exp", "hill", "mlp"])
def test_every_response_fits_into_a_mechanism_with_two_forces(kind: str) -> None:
    mechanism = build_mechanism(
        {"kind": "transcription", "outputs": OUTPUTS, "forces": FORCES, "response": {"kind": kind}}
    )
    space = ParameterSpace(mechanism.settled())
    values = space.unpack(normal(4, space.num_free))
    rate = mechanism.vector_field(torch.zeros(4), normal(4, 3), normal(4, 2), values)
    assert rate.shape == (4, 3)
    assert rate.isfinite().all()


def test_transcription_adds_up_the_pushes_of_its_factors() -> None:
    mechanism = build_mechanism(
        {"kind": "transcription", "outputs": ("a",), "forces": FORCES, "response": {"kind": "exp"}}
    )
    values = {
        "basal": torch.tensor([0.5]).double(),
        "decay": torch.tensor([2.0]).double(),
        "sensitivity": torch.tensor([3.0, 0.1]).double(),
    }
    f, y = normal(2), torch.tensor([0.7]).double()
    expected = 0.5 + 3.0 * f[0].exp() + 0.1 * f[1].exp() - 2.0 * 0.7
    assert isinstance(mechanism.response, Exp)  # type: ignore[attr-defined]
    torch.testing.assert_close(mechanism.vector_field(torch.zeros(()), y, f, values)[0], expected)
