"""A kernel taken apart: a small tree of closed forms, with any other gpytorch kernel as an opaque leaf.

Every node evaluates [..., n, m] covariances from *natural* hyperparameter values. Closed forms have second derivatives,
show their spectral density (`spectral.py`), and spare the overhead of gpytorch's general machinery: 3 to 10 times at
the few points that a solver's step asks for, nothing at [128, 220, 60], where arithmetic dominates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import gpytorch
import torch
from torch import Tensor

Values = Mapping[str, Tensor]
StationaryShape = Literal["rbf", "matern12", "matern32", "matern52"]


@dataclass(frozen=True)
class Parameter:
    """A hyperparameter's place: `name` in the dict of values; a scalar [...] or, with `is_vector`, [..., d]."""

    name: str
    is_vector: bool = False

    def against_rows(self, values: Values) -> Tensor:
        """Shaped to divide inputs [..., n, d]."""
        value = values[self.name]
        return value[..., None, :] if self.is_vector else value[..., None, None]


class Node(ABC):
    """One kernel of the tree."""

    @abstractmethod
    def covariance(self, values: Values, x1: Tensor, x2: Tensor) -> Tensor:
        """Covariance [..., n, m] of inputs [..., n, d] and [..., m, d]."""

    @abstractmethod
    def diagonal(self, values: Values, x: Tensor) -> Tensor:
        """Variance at each of the inputs [..., n, d]; broadcastable to [..., n]."""


@dataclass(frozen=True)
class Stationary(Node):
    """RBF or Matérn, a function of the scaled squared distance."""

    shape: StationaryShape
    lengthscale: Parameter
    dims: tuple[int, ...] | None = None

    def covariance(self, values: Values, x1: Tensor, x2: Tensor) -> Tensor:
        a, b = _select(x1, self.dims), _select(x2, self.dims)
        factor = -0.5 if self.shape == "rbf" else 2.0 * MATERN_ORDER[self.shape] + 1.0
        weight = factor / self.lengthscale.against_rows(values).square()
        # Differences by subtraction are exact near zero, where |a|² + |b|² − 2ab cancels. The lengthscale comes last:
        # inputs without gradient then leave nothing of size [n, m] but the product to differentiate.
        argument = _weighted_sum([_difference(a, b, dim).square() for dim in range(a.shape[-1])], weight)
        return torch.exp(argument) if self.shape == "rbf" else matern(argument, MATERN_ORDER[self.shape])

    def diagonal(self, values: Values, x: Tensor) -> Tensor:  # noqa: ARG002
        return torch.ones_like(x[..., 0])


@dataclass(frozen=True)
class Periodic(Node):
    """exp(−2 Σ_i sin²(π (x_i − x'_i)/p_i)/ℓ_i); gpytorch's ℓ stands where MacKay's ℓ² does."""

    lengthscale: Parameter
    period: Parameter
    dims: tuple[int, ...] | None = None

    def covariance(self, values: Values, x1: Tensor, x2: Tensor) -> Tensor:
        rate = math.pi / self.period.against_rows(values)
        a, b = _select(x1, self.dims) * rate, _select(x2, self.dims) * rate
        squares = [torch.sin(_difference(a, b, dim)).square() for dim in range(a.shape[-1])]
        return torch.exp(_weighted_sum(squares, -2.0 / self.lengthscale.against_rows(values)))

    def diagonal(self, values: Values, x: Tensor) -> Tensor:  # noqa: ARG002
        return torch.ones_like(x[..., 0])


@dataclass(frozen=True)
class Scaled(Node):
    """A variance times a kernel."""

    scale: Parameter
    part: Node

    def covariance(self, values: Values, x1: Tensor, x2: Tensor) -> Tensor:
        return values[self.scale.name][..., None, None] * self.part.covariance(values, x1, x2)

    def diagonal(self, values: Values, x: Tensor) -> Tensor:
        return values[self.scale.name][..., None] * self.part.diagonal(values, x)


@dataclass(frozen=True)
class Sum(Node):
    """Sum of kernels."""

    parts: tuple[Node, ...]

    def covariance(self, values: Values, x1: Tensor, x2: Tensor) -> Tensor:
        return reduce(torch.add, [part.covariance(values, x1, x2) for part in self.parts])

    def diagonal(self, values: Values, x: Tensor) -> Tensor:
        return reduce(torch.add, [part.diagonal(values, x) for part in self.parts])


@dataclass(frozen=True)
class Product(Node):
    """Product of kernels."""

    parts: tuple[Node, ...]

    def covariance(self, values: Values, x1: Tensor, x2: Tensor) -> Tensor:
        return reduce(torch.mul, [part.covariance(values, x1, x2) for part in self.parts])

    def diagonal(self, values: Values, x: Tensor) -> Tensor:
        return reduce(torch.mul, [part.diagonal(values, x) for part in self.parts])


class _Evaluated(torch.nn.Module):
    """Makes the kernel's lazy answer dense *inside* the functional call, while the substituted values are in place."""

    def __init__(self, kernel: gpytorch.kernels.Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x1: Tensor, x2: Tensor, diagonal: bool) -> Tensor:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            result = self.kernel(x1, x2, diag=diagonal)
        dense: Tensor = result if isinstance(result, Tensor) else result.to_dense()
        return dense


@dataclass(frozen=True, eq=False)
class Opaque(Node):
    """Any other gpytorch kernel, evaluated by `torch.func.functional_call`.

    `parameters` maps the kernel's own parameter names to (our name, gpytorch's shape, its constraint or None).
    """

    kernel: gpytorch.kernels.Kernel
    parameters: Mapping[str, tuple[str, torch.Size, Any]]

    def covariance(self, values: Values, x1: Tensor, x2: Tensor) -> Tensor:
        return self._call(values, x1, x2, diagonal=False)

    def diagonal(self, values: Values, x: Tensor) -> Tensor:
        return self._call(values, x, x, diagonal=True)

    def _call(self, values: Values, x1: Tensor, x2: Tensor, *, diagonal: bool) -> Tensor:
        state = {f"kernel.{name}": buffer.to(x1.device) for name, buffer in self.kernel.named_buffers()}
        batches = [x1.shape[:-2], x2.shape[:-2]]
        for own_name, (name, shape, constraint) in self.parameters.items():
            value = values[name]
            batch = value.shape[: value.dim() - sum(size != 1 for size in shape)]
            raw = value.reshape(*batch, *shape)
            state[f"kernel.{own_name}"] = raw if constraint is None else constraint.inverse_transform(raw)
            batches.append(batch)
        # gpytorch's kernels expect inputs that have all batch dimensions already.
        batch = torch.broadcast_shapes(*batches)
        inputs = (x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:]), diagonal)
        result: Tensor = torch.func.functional_call(_Evaluated(self.kernel), state, inputs)
        return result.to(x1.dtype)


MATERN_ORDER = {"matern12": 0, "matern32": 1, "matern52": 2}


def matern(argument: Tensor, order: int) -> Tensor:
    """Matérn of ν = order + ½ as a function of 2ν · (distance/lengthscale)² [...]; value and slope finite at zero."""
    result: Tensor = _MaternFunction.apply(argument, order)  # type: ignore[no-untyped-call]
    return result


class _MaternFunction(torch.autograd.Function):
    """m_p(s) with a = √s: e^{−a}, (1 + a) e^{−a}, (1 + a + a²/3) e^{−a} for p = 0, 1, 2.

    Automatic differentiation through √s gives 0·∞ at s = 0. The slopes are known and closed under the family:
    m_1' = −½ m_0 and m_2' = −⅙ m_1, so first and second derivatives are exact there. m_0 has a kink at zero, where
    we take the slope to be zero, as that of |x| is taken.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(argument: Tensor, order: int) -> Tensor:
        root = argument.sqrt()
        decay = torch.exp(-root)
        if order == 0:
            return decay
        if order == 1:
            return (1 + root) * decay
        return (1 + root + argument / 3) * decay

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:  # noqa: ARG004
        argument, ctx.order = inputs
        ctx.save_for_backward(argument)
        ctx.save_for_forward(argument)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (argument,) = ctx.saved_tensors
        return grads[0] * _matern_slope(argument, ctx.order), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (argument,) = ctx.saved_tensors
        tangent: Tensor = tangents[0]
        return tangent * _matern_slope(argument, ctx.order)


def _matern_slope(argument: Tensor, order: int) -> Tensor:
    if order > 0:
        return matern(argument, order - 1) * (-0.5 if order == 1 else -1 / 6)
    apart = argument > 0
    root = torch.where(apart, argument, torch.ones_like(argument)).sqrt()
    return torch.where(apart, -torch.exp(-root) / (2 * root), torch.zeros_like(argument))


def _select(x: Tensor, dims: tuple[int, ...] | None) -> Tensor:
    return x if dims is None else x[..., list(dims)]


def _difference(a: Tensor, b: Tensor, dim: int) -> Tensor:
    return a[..., :, None, dim] - b[..., None, :, dim]


def _weighted_sum(terms: list[Tensor], weight: Tensor) -> Tensor:
    """Σ_i weight_i · terms_i of [..., n, m] matrices, with `weight` [..., 1, d] or, for all the same, [..., 1, 1]."""
    if weight.shape[-1] == 1:
        return reduce(torch.add, terms) * weight
    return reduce(torch.add, [term * weight[..., dim, None] for dim, term in enumerate(terms)])
