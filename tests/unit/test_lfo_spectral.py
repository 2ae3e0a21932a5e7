"""Fourier layers are what they say: truncated series with complex weights, on functions and not on arrays."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from distlfm.lfo import spectral
from distlfm.lfo.spectral import SpectralConv, analysis, quadrature, synthesis


def complex_reference(layer: SpectralConv, u: torch.Tensor) -> torch.Tensor:
    """The same by torch.fft, with complex weights, for a period of exactly n steps and equal quadrature weights."""
    dims = tuple(range(1, u.dim() - 1))
    grid, modes = u.shape[1:-1], layer.modes
    c = torch.fft.rfftn(u.double(), dim=dims, norm="forward")
    real, imaginary = layer.weight.detach().double().unbind(1)
    signed = [torch.arange(1 - m, m) % n for m, n in zip(modes[:-1], grid[:-1], strict=True)]
    places = torch.meshgrid(*signed, torch.arange(modes[-1]), indexing="ij")
    weight = torch.complex(real, imaginary).reshape(*places[0].shape, layer.width, layer.width)
    index = (slice(None), *places)
    out = torch.zeros_like(c)
    out[index] = torch.einsum("b...i,...io->b...o", c[index], weight)
    return torch.fft.irfftn(out, s=tuple(grid), dim=dims, norm="forward")


@pytest.mark.parametrize(("grid", "modes"), [((24,), (5,)), ((12, 16), (3, 4)), ((8, 10, 12), (2, 3, 4))])
def test_real_pairs_are_complex_weights(
    grid: tuple[int, ...], modes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)

    def even(size: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> torch.Tensor:
        return torch.full((size,), 1 / (size - 1), dtype=dtype, device=device)

    def periodic(table: Any) -> Any:
        """With a period of n steps and equal weights, the tables are those of the discrete Fourier transform."""
        return lambda size, m, padding, signed, *where: table.__wrapped__(size, m, 1 / (size - 1), signed, *where)

    monkeypatch.setattr(spectral, "quadrature", even)
    monkeypatch.setattr(spectral, "analysis", periodic(analysis))
    monkeypatch.setattr(spectral, "synthesis", periodic(synthesis))
    layer = SpectralConv(3, modes, 0.0).double()
    u = torch.randn(2, *grid, 3, dtype=torch.float64)
    assert torch.allclose(layer(u), complex_reference(layer, u), atol=1e-10)


def test_quadrature_is_of_fourth_order() -> None:
    def error(n: int) -> float:
        x = torch.linspace(0, 1, n, dtype=torch.float64)
        return abs(float((quadrature(n) * x.exp()).sum()) - (math.e - 1))

    assert error(21) / error(41) > 12


def test_a_layer_maps_functions_not_arrays() -> None:
    torch.manual_seed(0)
    layer = SpectralConv(2, (4, 4), 0.25).double()

    def sampled(n: int) -> torch.Tensor:
        x = torch.linspace(0, 1, n, dtype=torch.float64)
        t, y = torch.meshgrid(x, x, indexing="ij")
        return torch.stack([torch.sin(3 * t + y), t * torch.exp(-y)], -1).unsqueeze(0)

    coarse, fine = layer(sampled(41)), layer(sampled(81))
    assert (coarse - fine[:, ::2, ::2]).abs().max() < 5e-4 * coarse.abs().max()
