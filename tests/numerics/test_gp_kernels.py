"""Covariances: ours are gpytorch's, with exact derivatives, for one instance as for a batch."""

from __future__ import annotations

import copy
import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.kernels import FunctionalKernel, KernelConfig, build_kernel

LEAVES = [KernelConfig(kind=kind) for kind in ("rbf", "matern12", "matern32", "matern52", "periodic")]
RBF, PERIODIC = LEAVES[0], LEAVES[-1]
KERNELS: dict[str, KernelConfig | Kernel] = {
    **{leaf.kind: leaf for leaf in LEAVES},
    "sum": KernelConfig(kind="sum", parts=(RBF, PERIODIC)),
    "product": KernelConfig(kind="product", parts=(LEAVES[2], PERIODIC)),
    "nested": KernelConfig(kind="sum", parts=(RBF, KernelConfig(kind="product", parts=(RBF, PERIODIC)))),
    "shared_lengthscale": KernelConfig(kind="matern52", ard=False),
    "user_rq": RQKernel(),
    "user_linear": LinearKernel(),
    "user_scaled_sum": ScaleKernel(ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=1.5))),
    "user_mixed": RBFKernel() * RQKernel() + LinearKernel(),
}


def random_hyper(kernel: FunctionalKernel, *batch: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.5 + torch.rand((*batch, *shape), generator=generator, dtype=torch.float64)
        for name, shape in kernel.shapes.items()
    }


def random_inputs(*shape: int, seed: int = 1) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gpytorch_covariance(kernel: FunctionalKernel, hyper: dict[str, Tensor], x1: Tensor, x2: Tensor) -> Tensor:
    """The template with its parameters set in gpytorch's own way, one instance."""
    template = copy.deepcopy(kernel.template).double()
    entries = list(template.named_parameters_and_constraints())
    assert len(entries) == len(kernel.parameter_names)
    for (_, parameter, constraint), name in zip(entries, kernel.parameter_names, strict=True):
        parameter.data = constraint.inverse_transform(hyper[name].reshape(parameter.shape))
    dense: Tensor = template(x1, x2).to_dense().detach()
    return dense


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("num_dims", [1, 2])
def test_covariance_and_diagonal_equal_gpytorchs(name: str, num_dims: int) -> None:
    kernel = FunctionalKernel(KERNELS[name], num_dims)
    hyper = random_hyper(kernel, 3)
    x1, x2 = random_inputs(3, 7, num_dims), random_inputs(3, 5, num_dims, seed=2)
    x2[:, 0] = x1[:, 0]
    ours, own, diagonal = kernel.covariance(hyper, x1, x2), kernel.covariance(hyper, x1, x1), kernel.diagonal(hyper, x1)
    assert ours.shape == (3, 7, 5)
    for b in range(3):
        one = {key: value[b] for key, value in hyper.items()}
        # gpytorch computes distances by |a|² + |b|² − 2ab and a square root: that costs it half the digits near zero.
        torch.testing.assert_close(ours[b], gpytorch_covariance(kernel, one, x1[b], x2[b]), rtol=0, atol=2e-7)
        torch.testing.assert_close(diagonal[b].expand(7), own[b].diagonal(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_batch_equals_loop(name: str) -> None:
    kernel = FunctionalKernel(KERNELS[name])
    hyper, x1, x2 = random_hyper(kernel, 4), random_inputs(4, 6, 1), random_inputs(4, 3, 1, seed=5)
    batch = kernel.covariance(hyper, x1, x2)
    for b in range(4):
        one = kernel.covariance({key: value[b] for key, value in hyper.items()}, x1[b], x2[b])
        torch.testing.assert_close(batch[b], one, rtol=1e-12, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(list(KERNELS)),
    samples=st.integers(1, 2),
    batch=st.integers(1, 3),
    n=st.integers(1, 4),
    m=st.integers(1, 4),
    num_dims=st.integers(1, 3),
)
def test_batch_dimensions_of_values_and_inputs_broadcast(
    name: str, samples: int, batch: int, n: int, m: int, num_dims: int
) -> None:
    kernel = FunctionalKernel(KERNELS[name], num_dims)
    hyper = random_hyper(kernel, samples, 1)
    x1, x2 = random_inputs(batch, n, num_dims), random_inputs(1, m, num_dims)
    result = kernel.covariance(hyper, x1, x2)
    assert result.shape == (samples, batch, n, m)
    assert kernel.diagonal(hyper, x1).expand(samples, batch, n).isfinite().all()


@pytest.mark.parametrize("name", [*KERNELS])
def test_gradients_in_values_and_inputs_match_finite_differences(name: str) -> None:
    kernel = FunctionalKernel(KERNELS[name])
    hyper = random_hyper(kernel, 2)
    x1, x2 = random_inputs(2, 3, 1), random_inputs(2, 2, 1, seed=7)

    def covariance(a: Tensor, b: Tensor, *values: Tensor) -> Tensor:
        return kernel.covariance(dict(zip(kernel.parameter_names, values, strict=True)), a, b)

    inputs = [tensor.requires_grad_() for tensor in (x1, x2, *(hyper[key] for key in kernel.parameter_names))]
    assert torch.autograd.gradcheck(covariance, inputs)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.kind)
def test_second_derivatives_match_finite_differences(leaf: KernelConfig) -> None:
    kernel = FunctionalKernel(leaf, 2)
    hyper = random_hyper(kernel)
    inputs = [random_inputs(3, 2), *(hyper[key] for key in kernel.parameter_names)]

    def covariance(a: Tensor, *values: Tensor) -> Tensor:
        return kernel.covariance(dict(zip(kernel.parameter_names, values, strict=True)), a, random_inputs(2, 2, seed=3))

    assert torch.autograd.gradgradcheck(covariance, [tensor.requires_grad_() for tensor in inputs])


@pytest.mark.parametrize(("kind", "curvature"), [("rbf", -1.0), ("matern32", -3.0), ("matern52", -5 / 3)])
def test_curvature_at_zero_distance_is_exact(kind: str, curvature: float) -> None:
    kernel = FunctionalKernel(KernelConfig(kind=kind))  # type: ignore[arg-type]
    hyper = {"variance": torch.tensor(2.0).double(), "lengthscale": torch.tensor(0.7, dtype=torch.float64)}

    def at(x: Tensor) -> Tensor:
        return kernel.covariance(hyper, x.reshape(1, 1), torch.zeros(1, 1).double()).squeeze()

    second = torch.autograd.functional.hessian(at, torch.zeros(1).double())
    assert second.item() == pytest.approx(2.0 * curvature / 0.7**2, rel=1e-12)  # type: ignore[union-attr]


@pytest.mark.parametrize("num_dims", [1, 2])
@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.kind)
def test_derivatives_at_zero_distance_are_finite(leaf: KernelConfig, num_dims: int) -> None:
    kernel = FunctionalKernel(leaf, num_dims)
    hyper = {key: value.requires_grad_() for key, value in random_hyper(kernel).items()}
    x = random_inputs(4, num_dims).requires_grad_()
    inputs = [x, *hyper.values()]
    first = torch.autograd.grad(kernel.covariance(hyper, x, x).square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
    assert all(g.isfinite().all() for g in (*first, *second))


def test_functional_transforms_agree_with_the_batch() -> None:
    kernel = FunctionalKernel(KernelConfig(kind="matern52"))
    hyper, x = random_hyper(kernel, 3), random_inputs(3, 4, 1)
    mapped = torch.func.vmap(lambda h, a: kernel.covariance(h, a, a))(hyper, x)
    torch.testing.assert_close(mapped, kernel.covariance(hyper, x, x))

    def total(lengthscale: Tensor) -> Tensor:
        return kernel.covariance({**hyper, "lengthscale": lengthscale}, x, x).sum()

    reverse = torch.func.grad(total)(hyper["lengthscale"])
    forward = torch.func.jacfwd(total)(hyper["lengthscale"])
    torch.testing.assert_close(reverse, forward)


def test_names_are_short_where_they_can_be() -> None:
    assert FunctionalKernel(RBF).parameter_names == ("variance", "lengthscale")
    assert FunctionalKernel(KERNELS["sum"]).parameter_names == (
        "variance", "0.lengthscale", "1.lengthscale", "period_length",
    )  # fmt: skip
    assert FunctionalKernel(LinearKernel()).parameter_names == ("variance",)
    assert FunctionalKernel(RBF, 3).shapes == {"variance": (), "lengthscale": (3,)}


def test_an_initial_value_is_the_templates() -> None:
    kernel = RBFKernel()
    kernel.lengthscale = 1.75
    initial = FunctionalKernel(kernel).initial()
    assert initial["lengthscale"].item() == pytest.approx(1.75, rel=1e-6)
    assert initial["lengthscale"].dtype == torch.float64


def test_a_frozen_parameter_keeps_its_value_and_has_no_name() -> None:
    user = PeriodicKernel()
    user.period_length = 1.5
    user.raw_period_length.requires_grad_(False)
    kernel = FunctionalKernel(user)
    assert "period_length" not in kernel.parameter_names
    hyper = random_hyper(kernel)
    x = torch.tensor([[0.0], [1.5]]).double()
    result = kernel.covariance(hyper, x, x)
    assert result[0, 1].item() == pytest.approx(hyper["variance"].item(), rel=1e-6)


def test_the_template_given_is_never_changed_or_followed() -> None:
    user = RBFKernel()
    kernel = FunctionalKernel(user)
    hyper, x = random_hyper(kernel), random_inputs(3, 1)
    before = kernel.covariance(hyper, x, x)
    user.lengthscale = 100.0
    assert torch.equal(kernel.covariance(hyper, x, x), before)


def test_a_kernel_of_some_dimensions_ignores_the_others() -> None:
    parts = (KernelConfig(kind="rbf", dims=(0,)), KernelConfig(kind="periodic", dims=(1,)))
    kernel = FunctionalKernel(KernelConfig(kind="product", parts=parts), 2)
    hyper = random_hyper(kernel)
    x = random_inputs(5, 2)
    torch.testing.assert_close(kernel.covariance(hyper, x, x), gpytorch_covariance(kernel, hyper, x, x))


def test_float32_stays_float32() -> None:
    for config in (RBF, RQKernel()):
        kernel = FunctionalKernel(config)
        hyper = {key: value.float() for key, value in random_hyper(kernel).items()}
        x = random_inputs(4, 1).float()
        assert kernel.covariance(hyper, x, x).dtype == torch.float32


def test_wrong_use_is_refused_with_advice() -> None:
    with pytest.raises(ValidationError, match="two parts"):
        KernelConfig(kind="sum", parts=(RBF,))
    with pytest.raises(ValidationError, match="no 'parts'"):
        KernelConfig(kind="rbf", parts=(RBF, RBF))
    with pytest.raises(ValidationError, match="lenghtscale"):
        KernelConfig.model_validate({"kind": "rbf", "lenghtscale": 1.0})
    with pytest.raises(UsageError, match="Count from zero"):
        build_kernel(KernelConfig(dims=(2,)), 2)
    with pytest.raises(UsageError, match="batch_shape"):
        FunctionalKernel(gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])))
    with pytest.raises(UsageError, match="lengthscale"):
        FunctionalKernel(RBF).covariance({"variance": torch.tensor(1.0)}, random_inputs(2, 1), random_inputs(2, 1))


def test_periodic_covariance_returns_after_one_period() -> None:
    kernel = FunctionalKernel(PERIODIC)
    hyper = random_hyper(kernel)
    x = torch.linspace(0, 1, 5).double()[:, None]
    shifted = x + hyper["period_length"]
    torch.testing.assert_close(kernel.covariance(hyper, x, x), kernel.covariance(hyper, x, shifted))
    half = kernel.covariance(hyper, x[:1], x[:1] + hyper["period_length"] / 2).item()
    assert half == pytest.approx(hyper["variance"].item() * math.exp(-2 / hyper["lengthscale"].item()))
