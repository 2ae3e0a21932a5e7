"""Pre-estimation of fields: slopes of a surface through the data are matched with the weak form; nothing is solved.

A surface gives states Y and slopes Ẏ at the nodes, with their joint uncertainty. Then `Ẏ = M⁻¹ F(Y, f; θ)` is linear
in the force, so the force is integrated out as in a linear field, and the match is weighted by what the surface's
uncertainty makes of it: errors of slope and second derivative go together, and are far from independent between nodes.

Shapes: `n` matching times, `J` nodes, `F` free ones, `K` independent combinations of slopes, `k` coefficients.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.inference.collapsed import Starts, best_of_starts, fit_at
from distlfm.inference.curvature import find_modes
from distlfm.inference.field.linear import Linearisation, force_on, linear_columns
from distlfm.inference.field.linearised import Point
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.marginal import draw_remainder, reaching
from distlfm.inference.field.method import FieldMethod
from distlfm.inference.field.settings import build_map, shown_points
from distlfm.inference.field.surface import Surface
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import OptimiserConfig, Optimum
from distlfm.inference.posterior import PosteriorConfig
from distlfm.inference.result import FitResult, results_of
from distlfm.inference.whitened import Compared, QueryMap, WhitenedMarginal
from distlfm.instance import FloatArray, Instance
from distlfm.mechanisms.priors import Values
from distlfm.runtime.reporting import during
from distlfm.solvers.field.meshed import Meshed
from distlfm.solvers.field.tangent import form_at

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

MATCHES = 18
"""Times at which slopes are matched."""

ACCURACY = 0.01
"""Error of slopes that the surface's uncertainty does not explain, as a part of their size."""

KNOWN = 1e-5
"""Combinations of slopes whose deviation is below this part of the largest carry rounding alone."""

ROUNDS, STILL = 4, 0.02
"""How often the form is linearised in its coefficients, at most, and the change of z that ends it."""


LAPLACE = PosteriorConfig(method="laplace", draws=20)
"""A quick answer takes few draws."""


ExpansionPoint = tuple[Tensor, Tensor]
"""Where the form is linearised: coefficients theta [k] and force [n, J] at the matching times."""


class FieldSlopes(WhitenedMarginal):
    """Slopes of one instance, in combinations whose errors are independent, as linear functions of the force."""

    def __init__(
        self, observations: Observations, field_map: FieldMap, surface: Surface, around: ExpansionPoint | None = None
    ) -> None:
        """around: by default the prior's middle."""
        assert len(observations) == 1
        super().__init__(field_map.model, observations)
        self.map, self.surface = field_map, surface
        self.times = matching_times(field_map, observations)
        if around is None:
            space = field_map.model.space
            middle = space.unpack(torch.zeros(1, space.num_free, dtype=torch.float64))
            none = torch.zeros(len(self.times), len(field_map.nodes), dtype=torch.float64)
            around = field_map.theta(middle)[0], none
        self.theta, self.force = around
        self._match()

    def state(self) -> dict[str, Tensor]:
        theta, force = self.theta.unsqueeze(0), self.force.unsqueeze(0)
        return {"surface": self.surface.hyper, "around_theta": theta, "around_force": force}

    def row_bytes(self, num_query: int) -> int:
        times, places = self.map.inducing.counts
        return 8 * 3 * num_query * times * places

    def compared(self, values: Values, rows: Tensor) -> Compared:
        linear = linear_columns(self.map, self._linear, values, rows)
        ratio, apart = torch.ones(len(rows), 1, dtype=torch.float64), None
        belief = self.surface.belief
        if self.model.likelihood.learns_noise:
            data = self.observations.rows(rows)
            seen = data.mask[:, 0]
            noise = self.model.noise_variance(values, data)[:, 0]
            noise = (noise * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
            ratio = noise / belief.noise**2
            apart = -0.5 * belief.freedom * (1 / ratio + noise.log()).squeeze(-1)
        spread = ratio * self._variance + self._floor
        mask = torch.ones_like(spread, dtype=torch.bool)
        return Compared(self._slopes - linear.offset, linear.columns, linear.slack, spread, mask, apart)

    def query_map(self, values: Values, rows: Tensor, query: Tensor) -> QueryMap:
        """The force as matched; outputs are the surface's own."""
        del rows
        # Draws of one instance are asked at the same points, and the surface does not depend on them.
        distinct = query[:1] if bool((query == query[:1]).all()) else query
        # A surface has values anywhere: points outside the domain or before its start are refused by the map.
        self.map.with_grid(reaching(self.map.grid, float(query[..., 0].max()))).places(distinct)
        force, left = self.map.force_columns(values, query)
        mean, variance = self.surface.at(distinct.flatten(0, 1))
        shape = query.shape[:2]
        outputs, spread = (part.reshape(-1, shape[1]).expand(shape) for part in (mean, variance))
        return QueryMap(outputs, None, spread, force, left)

    def left_over(
        self, values: Values, rows: Tensor, query: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """What a draw of the surface adds to the mean of the outputs."""
        del rows
        drawn = draw_remainder(self.map, values, query, generator)
        return drawn.at_points, self.surface.deviation(query, generator)

    def _match(self) -> None:
        field = self.map.discretised
        assert isinstance(field, Meshed)
        free = np.setdiff1d(np.arange(len(field.nodes)), field.fixed)
        value, slope = (part.numpy() for part in self.surface.columns_on(self.times, self.map.nodes))
        value[:, field.fixed], slope[:, field.fixed] = 0.0, 0.0
        mean, root = self.surface.belief.mean.numpy(), self.surface.belief.root.numpy()
        states = float(self.surface.centre) + value @ mean
        states[:, field.fixed] = field.fixed_values
        form = form_at(field, self.theta, states, self.force.numpy())
        factor: Any = splu(csc_array(form.mass[free][:, free]))

        def rate(right: Any) -> FloatArray:
            return np.asarray(factor.solve(np.ascontiguousarray(right)))

        parts = zip(slope, form.by_state, value, strict=True)
        errors = np.stack([s[free] - rate(k[free] @ v) for s, k, v in parts])
        combined, deviation, _ = np.linalg.svd(errors.reshape(-1, len(mean)) @ root, full_matrices=False)
        kept = deviation > KNOWN * deviation[0]
        turn = combined[:, kept].reshape(len(self.times), len(free), -1)
        pairs = zip(form.by_force, turn, strict=True)
        by_force = np.stack([b[free].T @ factor.solve(np.ascontiguousarray(t), trans="T") for b, t in pairs])
        by_theta = np.stack([rate(g[:, free].T) for g in form.by_theta])
        reached = np.einsum("nf,nfc->c", np.stack([rate(one[free]) for one in form.value]), turn)
        gradient = torch.from_numpy(by_force.transpose(2, 0, 1).copy())
        constant = torch.from_numpy(reached) - torch.einsum("cnj,nj->c", gradient, self.force)
        slopes = (slope @ mean)[:, free]
        self._slopes = torch.from_numpy(np.einsum("nf,nfc->c", slopes, turn))
        self._variance = torch.from_numpy(deviation[kept] ** 2)
        self._floor = ACCURACY**2 * float(np.mean(slopes**2)) * slopes.size / int(kept.sum())
        self._linear = Linearisation(
            self.times,
            constant.unsqueeze(0),
            gradient.unsqueeze(0),
            torch.zeros(1, len(constant), len(self.map.nodes), dtype=torch.float64),
            torch.from_numpy(np.einsum("nfk,nfc->ck", by_theta, turn)).unsqueeze(0),
            self.theta.unsqueeze(0),
        )


def matching_times(field_map: FieldMap, data: Observations) -> Tensor:
    """Even times from the first that is known to the last observed one, [n]."""
    seen = data.times[0][data.mask[0, 0]]
    pinned = field_map.initial.kind in ("zero", "given")
    first = field_map.grid.start if pinned else float(seen.min())
    return torch.linspace(first, float(seen.max()), MATCHES, dtype=torch.float64)


@dataclass(frozen=True)
class Matched:
    """The match around its last coefficients, and the mode of its unknowns."""

    marginal: FieldSlopes
    best: Optimum

    @torch.no_grad()
    def point(self) -> Point:
        """Where a search through the solver may begin."""
        return Point(self.best.z, self.marginal.whitened(self.best.z, torch.arange(1)).mean)


def match_slopes(
    data: Observations, field_map: FieldMap, seed: int, optimiser: OptimiserConfig, starts: Starts
) -> Matched:
    """Match one instance, linearised again until its coefficients stay."""
    space = field_map.model.space
    with during("surface"):
        surface = Surface(field_map, data, known_noise(field_map.model, data))
    own = FieldSlopes(data, field_map, surface)
    best = best_of_starts(own.negative, [seed], space.num_free, optimiser, starts)
    for _ in range(ROUNDS - 1):
        with torch.no_grad():
            values = space.unpack(best.z)
            w = own.whitened(best.z, torch.arange(1)).mean
            around = field_map.theta(values)[0], force_on(field_map, values, w, own.times)[0]
        if torch.allclose(around[0], own.theta, rtol=STILL, atol=1e-12):
            break
        own = FieldSlopes(data, field_map, surface, around)
        best = find_modes(own.negative, best.z, optimiser)
    return Matched(own, best)


def known_noise(model: Model, data: Observations) -> Tensor | None:
    """Noise variances [T] that come with the data, if nothing else counts."""
    return data.variance[0, 0] if model.likelihood.knows_noise and data.variance is not None else None


@register_method("preestimate")
class FieldPreestimate(FieldMethod):
    """Quick fits, one instance after the other. The bound is that of the slopes: not one of the data."""

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        super().check(model, options)
        if options.posterior != PosteriorConfig():
            raise UsageError(
                "inference.posterior has no effect on a field's matched slopes, whose draws are always Laplace's.",
                "Leave it out, or use inference.method=auto.",
            )

    def fit(
        self, model: Model, instances: Sequence[Instance], options: InferenceConfig, seeds: Sequence[int]
    ) -> list[FitResult]:
        settings, starts = options.settled, Starts(options.restarts, options.random_start)
        assert settings is not None
        field_map = build_map(model, settings)
        results = []
        for instance, seed in zip(instances, seeds, strict=True):
            began = time.perf_counter()
            data = collate([instance.blind()], model.system.outputs)
            matched = match_slopes(data, field_map, seed, options.optimiser, starts)
            fit = fit_at(self.name, matched.marginal, matched.best, [seed], LAPLACE)
            results += results_of(fit, [instance], shown_points(field_map, settings, 1), time.perf_counter() - began)
        return results

    @classmethod
    def marginal(cls, observations: Observations, field_map: FieldMap, state: dict[str, Tensor]) -> Marginal:
        surface = Surface(field_map, observations, known_noise(field_map.model, observations), state["surface"])
        around = state["around_theta"][0], state["around_force"][0]
        return FieldSlopes(observations, field_map, surface, around)
