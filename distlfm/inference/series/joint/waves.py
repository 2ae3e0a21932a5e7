"""The fixed basis of a force: waves on a circle longer than the data, whose amplitudes are independent.

Only the amplitudes' deviations depend on the kernel's parameters, so one table of waves serves all samples of an
instance. A kernel that is not a smooth stationary one has the waves of `gp/spectral.py`, whose frequencies follow its
parameters. Shapes: `C` samples, `A` instances, `L` forces, `Q` times, `F` frequencies, `M = 2·F` amplitudes a force.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.expression import Node, Periodic, Scaled, Stationary
from distlfm.gp.spectral import spectrum
from distlfm.inference.model import Model
from distlfm.mechanisms.priors import Values

CUT = {"rbf": 4.0, "matern52": 7.0, "matern32": 11.0}
"""Highest frequency of a circle, in units of one over the shortest lengthscale."""

AROUND = {"rbf": 4.0, "matern52": 5.0, "matern32": 5.0}
"""Lengthscales from the end of the data to their image on the circle."""

FREE_FEATURES = 24
"""Frequencies of a kernel whose frequencies follow its parameters."""


class Waves(ABC):
    """Force = columns · amplitudes. active: [A, M] amplitudes that count; the others are zero."""

    active: Tensor

    @abstractmethod
    def force(self, values: Values, amplitudes: Tensor, times: Tensor) -> Tensor:
        """Forces [Q, C, A, L] at times [A, Q]; values: each [C, A, K], amplitudes: [C, A, L, M]."""

    @abstractmethod
    def columns(self, values: Values, times: Tensor) -> Tensor:
        """What unit amplitudes give, [Q, C, A, L, M]."""

    @abstractmethod
    def rows(self, index: Tensor) -> Waves:
        """Of the instances at `index`."""


@dataclass(frozen=True)
class Circle(Waves):
    """origin: [A], where time starts; length: [A], around; count: [A], frequencies."""

    model: Model
    origin: Tensor
    length: Tensor
    count: Tensor
    size: int

    @staticmethod
    def around(model: Model, first: Tensor, last: Tensor, shortest: Tensor, longest: Tensor, most: int) -> Circle:
        """For data from `first` to `last` [A] and lengthscales from `shortest` to `longest` [A]."""
        shapes = [shape_of(kernel.expression) for kernel in model.kernels]
        around, cut = max(AROUND[one] for one in shapes), max(CUT[one] for one in shapes)
        length = last - first + around * longest
        count = (1 + cut / shortest * length / (2 * math.pi)).ceil().clamp_max(most).long()
        return Circle(model, first, length, count, int(count.max()))

    @property
    def active(self) -> Tensor:  # type: ignore[override]
        number = torch.arange(self.size)
        cosines = number < self.count.unsqueeze(-1)
        return torch.cat([cosines, cosines & (number > 0)], -1)

    def rows(self, index: Tensor) -> Circle:
        return Circle(self.model, self.origin[index], self.length[index], self.count[index], self.size)

    def log_sizes(self, values: Values) -> Tensor:
        """`log_roots`, but zero for those that do not count."""
        return torch.where(self.active.unsqueeze(1), self.log_roots(values), 0.0)

    def roots(self, values: Values) -> Tensor:
        """Deviations [C, A, L, M] of amplitudes."""
        return self.log_roots(values).exp()

    def log_roots(self, values: Values) -> Tensor:
        """Their logarithms, −∞ of those that do not count."""
        frequency = 2 * math.pi * torch.arange(self.size, dtype=torch.float64) / self.length.unsqueeze(-1)
        within = torch.arange(self.size) < self.count.unsqueeze(-1)
        found = []
        for kernel, hyper in zip(self.model.kernels, self.model.hyper(values), strict=True):
            part = smooth_part(kernel.expression)
            assert part is not None
            scale = hyper[part.lengthscale.name]
            scale = scale.reshape(*scale.shape[:2], 1)
            squared = (scale * frequency).square()
            if part.shape == "rbf":
                log_density = -0.5 * squared
            else:
                twice = {"matern32": 3, "matern52": 5}[part.shape]
                log_density = -0.5 * (twice + 1) * torch.log1p(squared / twice)
            # The constant has one amplitude in place of two, of half the variance. Normalised: what is cut off is given
            # back in proportion.
            halved = log_density - math.log(2) * (torch.arange(self.size) == 0)
            log_share = torch.where(within, halved, -torch.inf).log_softmax(-1)
            variance = hyper["variance"].reshape(*scale.shape[:2], 1)
            found.append(0.5 * (log_share + variance.log()))
        each = torch.stack(found, 2)
        return torch.cat([each, each], -1)

    def table(self, times: Tensor) -> Tensor:
        """Cosines and sines [A, Q, M]."""
        frequency = 2 * math.pi * torch.arange(self.size, dtype=torch.float64) / self.length.unsqueeze(-1)
        phase = (times - self.origin.unsqueeze(-1)).unsqueeze(-1) * frequency.unsqueeze(1)
        return torch.cat([phase.cos(), phase.sin()], -1)

    def force(self, values: Values, amplitudes: Tensor, times: Tensor) -> Tensor:
        return tabulated(self.table(times), self.roots(values) * amplitudes)

    def columns(self, values: Values, times: Tensor) -> Tensor:
        return self.table(times).transpose(0, 1)[:, None, :, None, :] * self.roots(values)


def tabulated(table: Tensor, weighted: Tensor) -> Tensor:
    """[Q, C, A, L] of a table [A, Q, M] and weighted amplitudes [C, A, L, M]."""
    count, _, forces = weighted.shape[:3]
    flat = weighted.permute(1, 3, 0, 2).flatten(-2)  # [A, M, C·L]
    found: Tensor = (table @ flat).unflatten(-1, (count, forces)).permute(1, 2, 0, 3).contiguous()
    return found


@dataclass(frozen=True)
class FreeWaves(Waves):
    """Waves whose frequencies follow the kernel's parameters. origin, span: [A]."""

    model: Model
    origin: Tensor
    span: Tensor

    @property
    def active(self) -> Tensor:  # type: ignore[override]
        return torch.ones(len(self.origin), 2 * FREE_FEATURES, dtype=torch.bool)

    def rows(self, index: Tensor) -> FreeWaves:
        return FreeWaves(self.model, self.origin[index], self.span[index])

    def columns(self, values: Values, times: Tensor) -> Tensor:
        since = (times - self.origin.unsqueeze(-1)).T[:, None, :, None]  # [Q, 1, A, 1]
        found = []
        for kernel, hyper in zip(self.model.kernels, self.model.hyper(values), strict=True):
            waves = spectrum(kernel, hyper, self.span.unsqueeze(-1), FREE_FEATURES)
            assert waves is not None
            phase = since * waves.frequencies[..., 0]
            part = torch.stack([phase.cos(), phase.sin()], -2) * waves.amplitudes.unsqueeze(-2)
            missing = FREE_FEATURES - part.shape[-1]
            found.append(torch.nn.functional.pad(part, (0, missing)).flatten(-2))
        return torch.stack(found, -2)

    def force(self, values: Values, amplitudes: Tensor, times: Tensor) -> Tensor:
        return (self.columns(values, times) * amplitudes).sum(-1)


def smooth_part(expression: Node) -> Stationary | None:
    """The stationary kernel that a variance multiplies, if it is smooth enough for few waves."""
    if not isinstance(expression, Scaled) or not isinstance(expression.part, Stationary):
        return None
    return expression.part if expression.part.shape in CUT else None


def shape_of(expression: Node) -> str:
    part = smooth_part(expression)
    assert part is not None
    return part.shape


def on_circle(model: Model) -> bool:
    """Whether all forces have kernels that fixed waves suit."""
    return all(smooth_part(kernel.expression) is not None for kernel in model.kernels)


def with_waves(model: Model) -> bool:
    """Whether all forces have kernels that some waves suit: smooth stationary ones and periodic ones."""

    def periodic(node: Node) -> bool:
        return isinstance(node, Scaled) and isinstance(node.part, Periodic)

    return on_circle(model) or all(periodic(kernel.expression) for kernel in model.kernels)


def lengthscales(model: Model, z: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """The shortest and the longest [...] of all forces' lengthscales between z − around and z + around [..., n]."""
    found = []
    for place in (z - around, z + around):
        values = model.space.unpack(place)
        each = []
        for kernel, hyper in zip(model.kernels, model.hyper(values), strict=True):
            part = smooth_part(kernel.expression)
            assert part is not None
            each.append(hyper[part.lengthscale.name].reshape(z.shape[:-1]))
        found.append(torch.stack(each))
    return found[0].amin(0), found[1].amax(0)
