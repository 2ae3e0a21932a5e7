"""Kernels as functions of their hyperparameters: described by a config, or any gpytorch kernel object.

`separate` finds, by probing, kernels over (t, x) that are products of one over time and one over space; they are used
as factors.

Shapes: `A` rows of hyperparameters, `d` space dimensions.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import pad

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.gp.expression import Node, Opaque, Parameter, Periodic, Product, Scaled, Stationary, StationaryShape, Sum

VARIANCE = "variance"
"""Name of the hyperparameter that every kernel has: the force's variance."""

Hyper = Mapping[str, Tensor]
"""Natural values by name: scalars [...], parameters of several numbers [..., d]."""

_MATERN_SHAPES: dict[float, StationaryShape] = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}
_BUILDERS: dict[str, Callable[..., Kernel]] = {
    "rbf": RBFKernel,
    "periodic": PeriodicKernel,
    "sum": AdditiveKernel,
    "product": ProductKernel,
    **{shape: partial(MaternKernel, nu=nu) for nu, shape in _MATERN_SHAPES.items()},
}
_COMPOSITES: dict[type[Kernel], type[Sum] | type[Product]] = {AdditiveKernel: Sum, ProductKernel: Product}


class KernelConfig(Config):
    """A kernel in words. The force's variance is not part of it; every force has one."""

    kind: Literal["rbf", "matern12", "matern32", "matern52", "periodic", "sum", "product"] = "rbf"
    parts: tuple[KernelConfig, ...] = ()
    ard: bool = True
    """One lengthscale per dimension; without it one for all."""
    dims: tuple[int, ...] | None = None
    """The input dimensions that the kernel sees; all of them if left out."""

    @model_validator(mode="after")
    def _parts_fit_the_kind(self) -> KernelConfig:
        if self.kind in ("sum", "product"):
            if len(self.parts) < 2:
                raise ValueError(f"a {self.kind} kernel needs two parts or more; give them in 'parts'")
            if self.dims is not None:
                raise ValueError(f"a {self.kind} kernel has no 'dims' of its own; give them to its parts")
        elif self.parts:
            raise ValueError(f"a {self.kind} kernel has no 'parts'; use kind 'sum' or 'product'")
        return self


def build_kernel(config: KernelConfig | Kernel, num_dims: int = 1) -> Kernel:
    """The gpytorch kernel that `config` describes, over inputs of `num_dims` dimensions; a kernel object is kept."""
    if isinstance(config, Kernel):
        return config
    if config.parts:
        return _BUILDERS[config.kind](*(build_kernel(part, num_dims) for part in config.parts))
    if config.dims is not None and not all(0 <= dim < num_dims for dim in config.dims):
        raise UsageError(f"A kernel has dims {list(config.dims)}, and inputs have {num_dims}.", "Count from zero.")
    seen = num_dims if config.dims is None else len(config.dims)
    options: dict[str, Any] = {"active_dims": config.dims}
    if config.ard and seen > 1:
        options["ard_num_dims"] = seen
    return _BUILDERS[config.kind](**options)


@dataclass(frozen=True)
class _Found:
    """A trainable or fixed parameter of the template."""

    name: str
    shape: tuple[int, ...]
    parameter: torch.nn.Parameter
    constraint: Any

    @property
    def natural(self) -> Tensor:
        raw = self.parameter.detach()
        value: Tensor = raw if self.constraint is None else self.constraint.transform(raw)
        return value.reshape(self.shape)


class FunctionalKernel:
    """A gpytorch kernel as a function of hyperparameter values and inputs; it holds no state of its own.

    Hyperparameters are dicts of *natural* values. One number has shape [...]; a parameter of several numbers has
    gpytorch's shape without its ones, after the batch: an ARD lengthscale is [..., d]. Batch dimensions of values
    broadcast with those of inputs.

    The kernel is multiplied by `variance`, unless it is a `ScaleKernel` already: then its outputscale is called so (and
    a `LinearKernel`'s own variance serves). Names are gpytorch's without `raw_`; where two parts have the same one, the
    part's place comes first: "0.lengthscale". Parameters with `requires_grad=False` stay as they are and have no name.
    """

    def __init__(self, kernel: Kernel | KernelConfig, num_dims: int = 1) -> None:
        template = copy.deepcopy(build_kernel(kernel, num_dims))
        if len(template.batch_shape) > 0:
            raise UsageError(
                f"The kernel has batch shape {tuple(template.batch_shape)}.",
                "Build it without batch_shape; values with batch dimensions are given at each call.",
            )
        self.num_dims = num_dims
        self.template: Kernel = template if isinstance(template, ScaleKernel | LinearKernel) else ScaleKernel(template)
        parameters = _find_parameters(self.template)
        free = [item for item in parameters if item.parameter.requires_grad]
        self._fixed = {item.name: item.natural for item in parameters if not item.parameter.requires_grad}
        self._initial = {item.name: item.natural for item in free}
        self.parameter_names: tuple[str, ...] = tuple(item.name for item in free)
        self.shapes: dict[str, tuple[int, ...]] = {item.name: item.shape for item in free}
        self.expression: Node = _take_apart(self.template, {id(item.parameter): item for item in parameters})

    def initial(self) -> dict[str, Tensor]:
        """The template's own values, without batch dimensions."""
        return {name: value.double() for name, value in self._initial.items()}

    def values(self, hyper: Hyper, like: Tensor) -> dict[str, Tensor]:
        """`hyper` with the fixed parameters added, in the dtype and on the device of `like`."""
        missing = [name for name in self.parameter_names if name not in hyper]
        if missing:
            raise UsageError(
                f"No value was given for {', '.join(missing)}.", f"The kernel needs {', '.join(self.parameter_names)}."
            )
        return {**{name: value.to(like) for name, value in self._fixed.items()}, **hyper}

    def covariance(self, hyper: Hyper, x1: Tensor, x2: Tensor) -> Tensor:
        """Dense covariance [..., n, m] of `x1` [..., n, d] and `x2` [..., m, d]; differentiable in all three."""
        return self.expression.covariance(self.values(hyper, x1), x1, x2)

    def diagonal(self, hyper: Hyper, x: Tensor) -> Tensor:
        """Variance [..., n] at `x` [..., n, d]."""
        return self.expression.diagonal(self.values(hyper, x), x)


def _find_parameters(template: Kernel) -> list[_Found]:
    entries = list(template.named_parameters_and_constraints())
    names = _shortest_names([path for path, _, _ in entries])
    return [
        _Found(name, tuple(size for size in parameter.shape if size != 1), parameter, constraint)
        for name, (_, parameter, constraint) in zip(names, entries, strict=True)
    ]


def _shortest_names(paths: list[str]) -> list[str]:
    """The parameter alone if no other has that name, else with its part's place, else with gpytorch's full path."""
    choices: list[tuple[str, str, str]] = []
    for path in paths:
        *modules, leaf = path.split(".")
        leaf = VARIANCE if path == "raw_outputscale" else leaf.removeprefix("raw_")
        places = [module for module in modules if module not in ("kernels", "base_kernel")]
        choices.append((leaf, ".".join([*places, leaf]), ".".join([*modules, leaf])))
    counts = Counter(name for choice in choices for name in set(choice))
    return [
        choice[0] if "." not in path else next((name for name in choice if counts[name] == 1), choice[-1])
        for path, choice in zip(paths, choices, strict=True)
    ]


def _take_apart(kernel: Kernel, found: Mapping[int, _Found]) -> Node:
    """The tree of closed forms; what has none, or slices its inputs in an unusual place, is kept whole."""

    def place(parameter: torch.nn.Parameter) -> Parameter:
        item = found[id(parameter)]
        return Parameter(item.name, is_vector=item.shape != ())

    dims = None if kernel.active_dims is None else tuple(int(dim) for dim in kernel.active_dims)
    kind = type(kernel)
    if kind is RBFKernel:
        return Stationary("rbf", place(kernel.raw_lengthscale), dims)
    if kind is MaternKernel:
        return Stationary(_MATERN_SHAPES[kernel.nu], place(kernel.raw_lengthscale), dims)
    if kind is PeriodicKernel:
        return Periodic(place(kernel.raw_lengthscale), place(kernel.raw_period_length), dims)
    if kind is ScaleKernel and (dims is None or kernel.base_kernel.active_dims is not None):
        return Scaled(place(kernel.raw_outputscale), _take_apart(kernel.base_kernel, found))
    if kind in _COMPOSITES and dims is None:
        return _COMPOSITES[kind](tuple(_take_apart(part, found) for part in kernel.kernels))
    own = {
        name: (found[id(parameter)].name, parameter.shape, found[id(parameter)].constraint)
        for name, parameter in kernel.named_parameters()
    }
    return Opaque(kernel, own)


PROBES = 24
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Separable:
    """k((t, x), (t', x')) = variance · time(t, t') · space(x, x'), for a kernel of constant variance."""

    kernel: FunctionalKernel

    def variance(self, hyper: Hyper) -> Tensor:
        """[A]."""
        like = next(iter(hyper.values()))
        return self.kernel.diagonal(hyper, like.new_zeros(1, self.kernel.num_dims)).squeeze(-1)

    def time(self, hyper: Hyper, first: Tensor, second: Tensor) -> Tensor:
        """Correlation [A, n, m] of times [n] and [m]."""
        return self._correlation(hyper, first.unsqueeze(-1), second.unsqueeze(-1), (0, self.kernel.num_dims - 1))

    def space(self, hyper: Hyper, first: Tensor, second: Tensor) -> Tensor:
        """Correlation [A, n, m] of places [n, d] and [m, d]."""
        return self._correlation(hyper, first, second, (1, 0))

    def _correlation(self, hyper: Hyper, first: Tensor, second: Tensor, others: tuple[int, int]) -> Tensor:
        """Correlation [A, n, m] of inputs whose other dimensions, before and after, are zero."""
        whole = self.kernel.covariance(hyper, pad(first, others), pad(second, others))
        return whole / self.variance(hyper)[..., None, None]


def separate(kernel: FunctionalKernel) -> Separable | None:
    """The two factors of a kernel, or None where it has no such factors."""
    stream = torch.Generator().manual_seed(0)
    hyper = {
        name: 0.5 + torch.rand(1, *kernel.shapes[name], generator=stream, dtype=torch.float64)
        for name in kernel.parameter_names
    }
    points = torch.rand(2, PROBES, kernel.num_dims, generator=stream, dtype=torch.float64)
    parts = Separable(kernel)
    variance = parts.variance(hyper)
    spread = kernel.diagonal(hyper, points[0])
    if not torch.allclose(spread, variance[..., None].expand_as(spread), rtol=TOLERANCE, atol=0.0):
        return None
    whole = kernel.covariance(hyper, points[0], points[1])
    time = parts.time(hyper, points[0, :, 0], points[1, :, 0])
    space = parts.space(hyper, points[0, :, 1:], points[1, :, 1:])
    product = variance[..., None, None] * time * space
    return parts if torch.allclose(whole, product, rtol=0.0, atol=TOLERANCE * float(variance.max())) else None
