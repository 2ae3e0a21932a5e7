"""The known equation, solved forward on the operator's grid: what a force and parameters would have been observed as.

It serves the reconstruction loss (a prediction must explain the observed series, no label needed) and the augmentation
that gives one instance's force another's parameters. Ordinary differential equations only.

Shapes: `B` instances, `L` forces, `P` outputs, `K` learned parameters, `T` times of the grid, `G` quadrature nodes.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.instance import FloatArray
from distlfm.lfo.schema import OperatorSchema, element_names
from distlfm.lfo.spectral import table
from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.build import build_system
from distlfm.mechanisms.priors import ParameterSpace
from distlfm.solvers.linear import Panels, extract, panels, probe, propagate
from distlfm.solvers.ode import CLASSICAL, march

ORDER = 2
"""Gauss–Legendre nodes between two times of the grid: fourth order."""


def solves(schema: OperatorSchema) -> bool:
    """Whether the mechanism can be solved here: an ODE whose force is a function of time, all parameters known."""
    if not schema.mechanism or len(schema.dims) != 1:
        return False
    system = build_system(schema.mechanism, schema.outputs)
    if not isinstance(system, Mechanism) or type(system).act is not Mechanism.act or system.force_dims != 1:
        return False
    known = {*schema.parameters, *schema.fixed}
    return all(name in known for names in element_names(system).values() for name in names)


class GridSolver:
    """The mechanism of a schema as a differentiable map from force and parameters to outputs."""

    def __init__(self, schema: OperatorSchema) -> None:
        if not solves(schema):
            raise UsageError(
                f"{schema.mechanism.get('kind', 'The mechanism')} cannot be solved on the operator's grid.",
                "That is for ordinary differential equations with all parameters in the stores: set loss.reconstruction"
                " and augment.recombine to 0.",
            )
        system = build_system(schema.mechanism, schema.outputs)
        assert isinstance(system, Mechanism)
        self.mechanism, self.schema = system, schema
        self.linearity = probe(system, ParameterSpace(system.settled()))
        names = element_names(system)
        index = {name: i for i, name in enumerate([*schema.parameters, *schema.fixed])}
        self._fixed = torch.tensor(list(schema.fixed.values()), dtype=torch.float64)
        self._order = torch.tensor([index[name] for several in names.values() for name in several], dtype=torch.long)
        self._sizes = {one: len(several) for one, several in names.items()}

    @cached_property
    def _panels(self) -> Panels:
        times = torch.from_numpy(self.schema.dims[0].points())
        placed = panels(times, 1, ORDER)
        return Panels(placed.nodes.float(), placed.weights.float(), placed.breaks.float())

    @cached_property
    def _to_nodes(self) -> Tensor:
        """Matrix [T, G] of the cubic spline through a force on the grid, at the nodes."""
        return self._interpolation(self._panels.nodes.double().numpy())

    @cached_property
    def _to_halves(self) -> Tensor:
        """The same at the times and the middles between them, [T, 2 T − 1]."""
        dim = self.schema.dims[0]
        return self._interpolation(dim.points(2 * dim.size - 1))

    def _interpolation(self, wanted: FloatArray) -> Tensor:
        times = self.schema.dims[0].points()
        return torch.from_numpy(CubicSpline(times, np.eye(len(times)))(wanted).T.copy()).float()

    def values(self, params: Tensor) -> dict[str, Tensor]:
        """The mechanism's parameters, each [B, K'], from the learned ones [B, K] and the fixed ones."""
        every = torch.cat([params, self._fixed.to(params).expand(params.shape[0], -1)], -1)
        ordered = every.index_select(-1, self._order.to(params.device))
        return dict(zip(self._sizes, ordered.split(list(self._sizes.values()), -1), strict=True))

    def __call__(self, force: Tensor, params: Tensor) -> Tensor:
        """Outputs [B, P, T] of a force [B, L, T] and natural parameters [B, K]."""
        values = self.values(params)
        if self.linearity.affine:
            system = extract(self.mechanism, values)
            panes = self._panels
            here = Panels(panes.nodes.to(force), panes.weights.to(force), panes.breaks.to(force))
            return propagate(system, here, force @ self._to_nodes.to(force), diagonal=self.linearity.diagonal)
        return self._runge_kutta(force, values)

    @cached_property
    def learned(self) -> tuple[int, ...]:
        """Which of the schema's parameters are the mechanism's own."""
        own = {name for names in element_names(self.mechanism).values() for name in names}
        return tuple(i for i, name in enumerate(self.schema.parameters) if name in own)

    @property
    def reads_states(self) -> bool:
        """Whether the outputs are the states themselves, so that `residual` can be taken."""
        return type(self.mechanism).observe is Mechanism.observe

    def residual(self, outputs: Tensor, force: Tensor, params: Tensor) -> Tensor:
        """Outputs [B, P, T] minus the start and the integral of their rates: what the equation leaves unexplained.

        No solve: the rates are taken at the given outputs, at any number of even times.
        """
        start, rates = self.start_and_rates(outputs, force, params)
        inner = (rates[..., 1:] + rates[..., :-1]).cumsum(-1) * (self.step(outputs.shape[-1]) / 2)
        integral = torch.cat([torch.zeros_like(inner[..., :1]), inner], -1)
        return outputs - start.unsqueeze(-1) - integral

    def start_and_rates(self, outputs: Tensor, force: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
        """The start [B, P], and how fast the given outputs [B, P, T] would change at each of their even times."""
        values, dim = self.values(params), self.schema.dims[0]
        times = _even(dim.start, dim.stop, outputs.shape[-1], outputs.dtype, outputs.device)
        rows = {name: value.unsqueeze(1) for name, value in values.items()}
        rates = self.mechanism.vector_field(times, outputs.mT, force.mT, rows).mT
        return self.mechanism.initial_state(values), rates

    def step(self, size: int) -> float:
        """The time between two of `size` even times."""
        return (self.schema.dims[0].stop - self.schema.dims[0].start) / (size - 1)

    def _runge_kutta(self, force: Tensor, values: dict[str, Tensor]) -> Tensor:
        """The classical rule of order 4, a step between two times of the grid."""
        dim, parts = self.schema.dims[0], 2 * (force.shape[-1] - 1)
        times = _even(dim.start, dim.stop, parts + 1, force.dtype, force.device)
        here = (force @ self._to_halves.to(force)).unbind(-1)

        def rate(tau: float, y: Tensor) -> Tensor:
            at = round(tau * parts)
            return (dim.stop - dim.start) * self.mechanism.vector_field(times[at], y, here[at], values)

        start = self.mechanism.initial_state(values).expand(len(force), -1)
        states = march(rate, start, parts // 2, CLASSICAL)
        rows = {name: value.unsqueeze(1) for name, value in values.items()}
        return self.mechanism.observe(states, rows).mT


@table
def _even(start: float, stop: float, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.linspace(start, stop, size, dtype=torch.float64).to(device, dtype)
