"""Spectra: the sum of cosines is the kernel, within the stated error, and differentiable."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, RQKernel
from torch import Tensor

from distlfm.gp.kernels import FunctionalKernel, KernelConfig
from distlfm.gp.spectral import Spectrum, spectrum

RBF, PERIODIC = KernelConfig(kind="rbf"), KernelConfig(kind="periodic")
MATERN12, MATERN32, MATERN52 = (KernelConfig(kind=kind) for kind in ("matern12", "matern32", "matern52"))
PRODUCT = KernelConfig(kind="product", parts=(RBF, PERIODIC))
SPACE_TIME = KernelConfig(
    kind="product", parts=(KernelConfig(kind="rbf", dims=(0,)), KernelConfig(kind="periodic", dims=(1,)))
)


def values(kernel: FunctionalKernel, lengthscale: float, *batch: int) -> dict[str, Tensor]:
    """Inputs lie in the unit cube; a periodic part has period 0.4 and lengthscale 1."""
    periodic = [name.rpartition(".")[0] for name in kernel.parameter_names if name.endswith("period_length")]
    result = {}
    for name, shape in kernel.shapes.items():
        value = lengthscale
        if name == "variance":
            value = 1.0
        elif name.endswith("period_length"):
            value = 0.4
        elif periodic and name in ("1.lengthscale", "lengthscale"):
            value = 1.0
        result[name] = torch.full((*batch, *shape), value, dtype=torch.float64)
    return result


def unit_cube(num: int, num_dims: int) -> Tensor:
    points = torch.rand(num, num_dims, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points[0], points[1] = 0.0, 1.0
    return points


def covariance_of(found: Spectrum, x: Tensor) -> Tensor:
    """Σ_r a_r² cos(ω_r · (x − x')) [..., n, n], the covariance that draws from these features really have."""
    phase, amplitudes = x @ found.frequencies.mT, found.amplitudes[..., None, :]
    cosines, sines = amplitudes * phase.cos(), amplitudes * phase.sin()
    return cosines @ cosines.mT + sines @ sines.mT


@pytest.mark.parametrize(
    ("config", "num_dims", "num_features", "lengthscale", "error"),
    [
        (RBF, 1, 64, 0.05, 1e-10),
        (RBF, 1, 64, 0.3, 1e-10),
        (RBF, 1, 64, 3.0, 1e-10),
        (MATERN12, 1, 256, 0.1, 2e-2),
        (MATERN12, 1, 256, 1.0, 1e-2),
        (MATERN32, 1, 128, 0.1, 1e-4),
        (MATERN52, 1, 128, 0.1, 1e-5),
        (MATERN52, 1, 128, 1.0, 1e-5),
        (PERIODIC, 1, 64, 1.0, 1e-12),
        (PRODUCT, 1, 256, 0.3, 1e-3),
        (PRODUCT, 1, 512, 0.1, 1e-3),
        (KernelConfig(kind="sum", parts=(RBF, PERIODIC)), 1, 128, 0.1, 1e-10),
        (RBF, 2, 512, 0.1, 1e-6),
        (RBF, 2, 256, 0.3, 1e-6),
        (MATERN12, 2, 1024, 0.3, 1e-1),
        (MATERN32, 2, 512, 0.3, 1e-2),
        (MATERN52, 2, 512, 0.3, 3e-3),
        (PERIODIC, 2, 512, 1.0, 1e-3),
        (SPACE_TIME, 2, 512, 0.3, 1e-3),
        (RBF, 3, 1024, 0.5, 5e-2),
        (MATERN52, 3, 1024, 0.5, 1e-1),
    ],
)
def test_the_cosines_add_up_to_the_kernel(
    config: KernelConfig, num_dims: int, num_features: int, lengthscale: float, error: float
) -> None:
    kernel = FunctionalKernel(config, num_dims)
    hyper = values(kernel, lengthscale)
    found = spectrum(kernel, hyper, torch.ones(num_dims, dtype=torch.float64), num_features)
    assert found is not None
    assert found.amplitudes.shape[-1] <= num_features
    x = unit_cube(200, num_dims)
    exact = kernel.covariance(hyper, x, x)
    assert (covariance_of(found, x) - exact).abs().max() < error * exact.max()
    torch.testing.assert_close(found.amplitudes.square().sum(), exact[0, 0], rtol=1e-6, atol=0)


def test_several_lengthscales_scale_each_dimension() -> None:
    kernel = FunctionalKernel(RBF, 2)
    hyper = {"variance": torch.tensor(2.0).double(), "lengthscale": torch.tensor([0.2, 1.5]).double()}
    x = unit_cube(100, 2)
    found = spectrum(kernel, hyper, torch.ones(2, dtype=torch.float64), 512)
    assert found is not None
    torch.testing.assert_close(covariance_of(found, x), kernel.covariance(hyper, x, x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("user", [RQKernel(), LinearKernel(), RQKernel() * LinearKernel()])
def test_other_kernels_have_no_spectrum(user: Kernel) -> None:
    kernel = FunctionalKernel(user)
    assert spectrum(kernel, kernel.initial(), torch.ones(1, dtype=torch.float64), 16) is None


@pytest.mark.parametrize("config", [RBF, MATERN12, MATERN52, PERIODIC, PRODUCT], ids=lambda config: config.kind)
@pytest.mark.parametrize("num_dims", [1, 2])
def test_batch_equals_loop_and_gradients_match_finite_differences(config: KernelConfig, num_dims: int) -> None:
    kernel = FunctionalKernel(config, num_dims)
    span = torch.tensor([[1.0] * num_dims, [2.5] * num_dims]).double()
    hyper = values(kernel, 0.4, 2)
    for index, value in enumerate(hyper.values()):
        value[1] *= 1.3 + 0.1 * index
    batch = spectrum(kernel, hyper, span, 32)
    assert batch is not None
    for b in range(2):
        one = spectrum(kernel, {name: value[b] for name, value in hyper.items()}, span[b], 32)
        assert one is not None
        torch.testing.assert_close(batch.amplitudes.expand(2, -1)[b], one.amplitudes, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(batch.frequencies.expand(2, -1, -1)[b], one.frequencies, rtol=1e-12, atol=1e-12)

    x = unit_cube(3, num_dims)

    def covariance(*tensors: Tensor) -> Tensor:
        found = spectrum(kernel, dict(zip(kernel.parameter_names, tensors, strict=True)), span, 32)
        assert found is not None
        return covariance_of(found, x)

    assert torch.autograd.gradcheck(covariance, [hyper[name].requires_grad_() for name in kernel.parameter_names])
