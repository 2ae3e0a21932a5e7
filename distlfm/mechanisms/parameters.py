"""Named unknowns of a model and the flat whitened vector that inference works on.

Shapes: `n` free unknowns, `K` elements of one parameter; leading dimensions are free (`[B]`, `[S, B]`, …).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from distlfm.config import nearest
from distlfm.dimension import Dimension
from distlfm.errors import UsageError
from distlfm.mechanisms.priors import Prior

Values = Mapping[str, Tensor]
"""Natural values by parameter name, each [..., K]."""


@dataclass(frozen=True)
class Parameter:
    """An unknown with `K = len(labels)` elements that share one prior. `fixed` holds elements that are known.

    own: priors of elements, by their labels, that have another than the shared one.
    dimension: what it is measured in, for all elements or by their labels; None where that is not known.
    meaning: what it is, in a few words, for those who choose its prior.
    """

    name: str
    labels: tuple[str, ...]
    prior: Prior
    kind: str = "mechanism"
    positive: bool = False
    fixed: Mapping[str, float] = field(default_factory=dict)
    dimension: Dimension | Mapping[str, Dimension] | None = None
    meaning: str = ""
    own: Mapping[str, Prior] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            raise UsageError(f"The labels of {self.name!r} are a text.", f"Give a tuple: ({self.labels!r},).")
        for prior in (self.prior, *self.own.values()):
            if self.positive and not prior.positive:
                raise UsageError(
                    f"{self.name!r} is positive, and its prior ({prior.kind}) allows negative values.",
                    "Use lognormal, halfnormal, or uniform with low ≥ 0.",
                )
        for label, value in self.fixed.items():
            if label not in self.labels:
                raise UsageError(f"{self.name!r} has no element {label!r}.", nearest(label, self.labels))
            if self.positive and value < 0:
                raise UsageError(f"{self.name}[{label}] is fixed to {value:g}.", "It must not be negative.")

    def dimension_of(self, label: str) -> Dimension | None:
        """What one element is measured in."""
        return self.dimension.get(label) if isinstance(self.dimension, Mapping) else self.dimension

    def prior_of(self, label: str) -> Prior:
        return self.own.get(label, self.prior)

    def natural(self, z: Tensor) -> Tensor:
        """Natural values of the free elements [..., n] from standard normal numbers."""
        if not self.own:
            return self.prior.natural(z)
        return torch.stack([self._free_prior(i).natural(one) for i, one in enumerate(z.unbind(-1))], -1)

    def whiten(self, value: Tensor) -> Tensor:
        """The inverse of `natural`."""
        if not self.own:
            return self.prior.whiten(value)
        return torch.stack([self._free_prior(i).whiten(one) for i, one in enumerate(value.unbind(-1))], -1)

    def _free_prior(self, i: int) -> Prior:
        return self.prior_of(self.labels[self.free[i]])

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(i for i, label in enumerate(self.labels) if label not in self.fixed)


class ParameterSpace:
    """The free elements of a list of parameters, as one vector `z` that is standard normal a priori."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        names = [parameter.name for parameter in parameters]
        assert len(set(names)) == len(names), f"parameter names repeat: {names}"
        self.parameters = tuple(parameters)
        self._slices: dict[str, slice] = {}
        start = 0
        for parameter in parameters:
            self._slices[parameter.name] = slice(start, start + len(parameter.free))
            start += len(parameter.free)
        self.num_free = start

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def slice_of(self, name: str) -> slice:
        """Where the free elements of a parameter stand in `z`."""
        return self._slices[name]

    @property
    def free_names(self) -> tuple[str, ...]:
        """A name for each of the n coordinates, such as `decay[p21]`."""
        return tuple(
            f"{parameter.name}[{parameter.labels[i]}]" if len(parameter.labels) > 1 else parameter.name
            for parameter in self.parameters
            for i in parameter.free
        )

    def unpack(self, z: Tensor) -> dict[str, Tensor]:
        """z [..., n] → natural values, each [..., K], fixed elements filled in."""
        values = {}
        for parameter in self.parameters:
            free = parameter.natural(z[..., self._slices[parameter.name]])
            if parameter.fixed:
                columns = list(free.unbind(-1))
                for i, label in enumerate(parameter.labels):
                    if label in parameter.fixed:
                        columns.insert(i, torch.full(z.shape[:-1], parameter.fixed[label], dtype=z.dtype))
                free = torch.stack(columns, -1)
            values[parameter.name] = free
        return values

    def pack(self, values: Values, like: Tensor) -> Tensor:
        """Natural values → z [..., n]; a parameter that is not given stays at its prior's middle, `like`'s zeros.

        like: [..., n] gives shape and type.
        """
        z = torch.zeros_like(like)
        for name, value in values.items():
            parameter = self[name]
            free = parameter.whiten(value[..., list(parameter.free)])
            z[..., self._slices[name]] = free
        return z
