"""From a whitened vector of everything unknown to the force as a function and the outputs, through the solver.

The vector w = (z, v) holds the parameters z and the whitened inducing values v of the forces; a priori w ~ N(0, I). The
posterior of every fit whose answer goes through the solver is draws of both, each with its own force and trajectory,
and what there is to say of the solver's steps.

Shapes: `S` samples or draws, `B` instances, `A` of them, `n` parameters, `L` forces, `M` inducing points, `W = n + L·M`
unknowns, `P` outputs, `Q` query times.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distlfm.config import build
from distlfm.gp.inducing import default_num_inducing, place_on_points, place_on_times
from distlfm.gp.pathwise import Domain, Draw, ForcePrior, draw_posterior, make_base_noise
from distlfm.inference.base import Mixture, Posterior, Predicted, Unknowns
from distlfm.inference.collapsed import enumerate_chunks
from distlfm.inference.method import SeriesMethod
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.stiffness import stiff_words
from distlfm.mechanisms.priors import Values
from distlfm.runtime.reporting import stepped
from distlfm.solvers.base import SolverConfig
from distlfm.solvers.ode import RULES, check_step, choose_steps, solve

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

MAX_INDUCING = 48
STATE_INDUCING = 36
BOX_MARGIN = 0.25
"""A force that takes the state as input is modelled this much beyond the observed states, relative to their range."""


@dataclass(frozen=True)
class Outcome:
    """values: each [S, A, K]; outputs: [S, A, P, T]; force, as people are shown it: [S, A, L, T]; ok: [S, A]."""

    values: Values
    outputs: Tensor
    force: Tensor
    ok: Tensor


class Forward:
    """The forward model of B instances."""

    def __init__(
        self, model: Model, observations: Observations, solver: SolverConfig, num_inducing: int | None = None
    ) -> None:
        self.model, self.observations = model, observations
        self.prior = ForcePrior(model.kernels)
        self.state_driven = _takes_state(model)
        self.num_inducing = num_inducing or choose_num_inducing(model, observations)
        if self.state_driven:
            points, whole = observations.values.mT, observations.mask.all(-2)
            low = torch.where(whole.unsqueeze(-1), points, torch.inf).amin(-2)
            high = torch.where(whole.unsqueeze(-1), points, -torch.inf).amax(-2)
            margin = BOX_MARGIN * (high - low).clamp_min(1e-9)
            self.domain = Domain(low - margin, high + margin)
            self.inducing = place_on_points(points, whole, num_inducing=self.num_inducing)
        else:
            # Twice the span: a draw asked beyond the data must be the one that was fitted.
            times, seen = observations.times, observations.mask.any(-2)
            first, last = times[:, :1], times[:, -1:]
            self.domain = Domain(first, last + (last - first))
            self.inducing = place_on_times(times, seen, num_inducing=self.num_inducing)
        self.solver = solver
        if solver.steps is None:
            adaptive = solver.method not in RULES
            self.steps = choose_steps(observations.times, observations.mask, adaptive=adaptive)
        else:
            self.steps = torch.full((len(observations),), solver.steps)

    def with_steps(self, steps: Tensor) -> Forward:
        """The same with other numbers of solver steps, [B]."""
        other = copy.copy(self)
        other.steps = steps
        return other

    def with_points(self, num_inducing: int) -> Forward:
        """The same with another number of inducing points."""
        return Forward(self.model, self.observations, self.solver, num_inducing).with_steps(self.steps)

    def with_inducing(self, inducing: Tensor) -> Forward:
        """The same with inducing points at other places, [B, M, d]."""
        other = copy.copy(self)
        other.inducing = inducing
        return other

    def of(self, rows: Tensor) -> Forward:
        """That of the instances `rows` [A] alone."""
        other = copy.copy(self)
        other.observations, other.inducing = self.observations.rows(rows), self.inducing[rows]
        other.steps = self.steps[rows]
        other.domain = Domain(self.domain.lower[rows], self.domain.upper[rows])
        return other

    @torch.no_grad()
    def step_error(self, w: Tensor, rows: Tensor) -> Tensor:
        """How much halving the solver's steps changes the outputs at w [A, W], relative to their size, [A]."""
        found = w.new_empty(len(rows))
        for some, settings in self._alike(self.steps[rows]):
            values, draw = self.forces(w[some], rows[some])
            found[some] = check_step(self.model.mechanism, draw, values, self.observations.times[rows[some]], settings)
        return found

    def _alike(self, steps: Tensor) -> Iterator[tuple[Tensor, SolverConfig]]:
        """Which rows [A] take the same numbers of `steps` [A], with the solver's settings."""
        for count in steps.unique().tolist() or [1]:  # a model without unknowns asks for no rows
            some = torch.nonzero(steps == count).squeeze(-1)
            yield some, self.solver.model_copy(update={"steps": count})

    @property
    def size(self) -> int:
        """W."""
        return self.model.space.num_free + len(self.model.kernels) * self.num_inducing

    def split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w [..., W] → z [..., n] and v [..., L, M]."""
        num_free = self.model.space.num_free
        return w[..., :num_free], w[..., num_free:].unflatten(-1, (len(self.model.kernels), self.num_inducing))

    def forces(
        self, w: Tensor, rows: Tensor, noise: Tensor | None = None, last: Tensor | None = None
    ) -> tuple[Values, Draw]:
        """Parameters and forces of w [A, W], one draw for each row; noise: [A, L, 2, R] of what the inducing values

        leave open, or None for its mean. last: [A, 1], up to which time a force of time is asked for.
        """
        z, v = self.split(w)
        return self._drawn(z, v[None], rows, None if noise is None else noise[None], last)

    def _drawn(
        self, z: Tensor, v: Tensor, rows: Tensor, noise: Tensor | None = None, last: Tensor | None = None
    ) -> tuple[Values, Draw]:
        """Parameters of z [A, n], and forces of v [S, A, L, M] with its noise [S, A, L, 2, R]."""
        values = self.model.space.unpack(z)
        if noise is None:
            noise = z.new_zeros(1, len(z), len(self.model.kernels), 2, 4)
        lower, upper = self.domain.lower[rows], self.domain.upper[rows]
        domain = Domain(lower, upper if last is None else torch.maximum(upper, last))
        return values, draw_posterior(self.prior, self.model.hyper(values), domain, noise, self.inducing[rows], v)

    def run(self, w: Tensor, rows: Tensor, noise: Tensor | None = None, times: Tensor | None = None) -> Outcome:
        """Solve forward from w [S, A, W] for the instances `rows` [A]; noise: [S, A, L, 2, R].

        Outputs are at the observed times, or at `times` [A, T].
        """
        observed, steps = self.observations.times[rows], self.steps[rows]
        if times is None:
            times = observed
        else:
            span = (times[:, -1] - times[:, 0]) / (observed[:, -1] - observed[:, 0]).clamp_min(1e-300)
            steps = (steps * span.clamp_min(1.0) + 0.999).long()
        parts = [
            (some, self._run(w[:, some], rows[some], None if noise is None else noise[:, some], times[some], settings))
            for some, settings in self._alike(steps)
        ]
        return _together(parts)

    def _run(self, w: Tensor, rows: Tensor, noise: Tensor | None, times: Tensor, settings: SolverConfig) -> Outcome:
        num_samples, num_rows = w.shape[:2]
        at = times.repeat(num_samples, 1)
        last = None if self.state_driven else at[:, -1:]
        whole = None if noise is None else noise.flatten(0, 1)
        values, draw = self.forces(w.flatten(0, 1), rows.repeat(num_samples), whole, last)
        mechanism, shape = self.model.mechanism, (num_samples, num_rows)
        found = solve(mechanism, draw, values, at, settings)
        states = found.states[0]
        rows_of = {name: value.unsqueeze(-2) for name, value in values.items()}
        force = draw(mechanism.force_input(at, states)[None])[0]
        return Outcome(
            {name: value.unflatten(0, shape) for name, value in values.items()},
            mechanism.observe(states, rows_of).mT.unflatten(0, shape),
            mechanism.act(force.mT, rows_of).mT.unflatten(0, shape),
            (found.ok[0] & draw.ok).unflatten(0, shape),
        )

    def respond(self, z: Tensor, v: Tensor, rows: Tensor) -> tuple[Values, Tensor, Tensor]:
        """Parameters of z [A, n], outputs [S, A, P, T] at the observed times, and [S, A] whether the solve went well.

        v: [S, A, L, M], several forces for the same z, whose kernel is evaluated once for all of them.
        """
        found = []
        for some, settings in self._alike(self.steps[rows]):
            values, draw = self._drawn(z[some], v[:, some], rows[some])
            states = solve(self.model.mechanism, draw, values, self.observations.times[rows[some]], settings)
            by_time = {name: value.unsqueeze(-2) for name, value in values.items()}
            found.append((some, self.model.mechanism.observe(states.states, by_time).mT, states.ok & draw.ok))
        _, outputs, ok = found[0]
        if len(found) > 1:
            back = torch.argsort(torch.cat([some for some, _, _ in found]))
            outputs, ok = (torch.cat([one[i] for one in found], 1)[:, back] for i in (1, 2))
        return self.model.space.unpack(z), outputs, ok

    def log_likelihood(self, w: Tensor, rows: Tensor, noise: Tensor | None = None) -> Tensor:
        """log p(y | w) [S, A] of the instances `rows` at w [S, A, W]; −∞ where the solve failed."""
        outcome = self.run(w, rows, noise)
        data = self.observations.rows(rows)
        density = self.model.likelihood.log_prob(outcome.values, outcome.outputs, data)
        return torch.where(outcome.ok & torch.isfinite(density), density, -torch.inf)


def _together(parts: list[tuple[Tensor, Outcome]]) -> Outcome:
    """One outcome of several, each with its rows among all."""
    if len(parts) == 1:
        return parts[0][1]
    back = torch.argsort(torch.cat([some for some, _ in parts]))
    found = [one for _, one in parts]
    values = {name: torch.cat([one.values[name] for one in found], 1)[:, back] for name in found[0].values}
    whole = (torch.cat([getattr(one, name) for one in found], 1)[:, back] for name in ("outputs", "force", "ok"))
    return Outcome(values, *whole)


def choose_num_inducing(model: Model, observations: Observations) -> int:
    """Twice as many points as times: what they leave open must be smaller than what the data can tell."""
    if _takes_state(model):
        return STATE_INDUCING
    return min(MAX_INDUCING, 2 * default_num_inducing(observations.times, observations.mask.any(-2)))


def _takes_state(model: Model) -> bool:
    t = torch.zeros(())
    y = torch.arange(1.0, 1.0 + model.mechanism.num_states)
    return not torch.equal(model.mechanism.force_input(t, y), t.unsqueeze(-1))


STEP_TOLERANCE = 1e-3
"""Largest change of an output, relative to its size, that halving the solver's steps may bring at the mode."""

LIKELIHOOD_TOLERANCE = 0.2
"""Largest change of the log-likelihood at the mode that halving the solver's steps may bring."""

MAX_DOUBLINGS = 3

FAILED_SHARE = 0.05
"""Share of draws whose solve may fail without a word."""

CHUNK_ROWS = 4096
"""Trajectories solved at once when predicting."""


class SolvedPosterior(Posterior):
    """Draws of equal weight. features: of what the inducing values leave open of each."""

    def __init__(self, method: str, forward: Forward, w: Tensor, noise_seeds: Sequence[int], features: int) -> None:
        """w: [S, B, W]."""
        self.method, self.forward, self.w = method, forward, w
        self.noise_seeds, self.features = tuple(noise_seeds), features
        self.model, self.observations = forward.model, forward.observations

    def unknowns(self) -> Unknowns:
        z, _ = self.forward.split(self.w)
        return Unknowns(z, torch.full(z.shape[:2], 1 / len(z), dtype=z.dtype))

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        force, outputs, sound = self._solve(rows, times)
        z, _ = self.forward.split(_pick(self.w[:, rows], sound))
        order = torch.randperm(len(self.w), generator=torch.Generator().manual_seed(seed))
        chosen = order[torch.arange(count) % len(order)]
        return force[chosen], outputs[chosen], z[chosen]

    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        shown, seen, _ = self._solve(rows, times)
        return Predicted(Mixture(shown, torch.zeros_like(shown)), Mixture(seen, torch.zeros_like(seen)))

    def _solve(self, rows: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Forces [S, A, L, Q] and outputs [S, A, P, Q] of all draws, and the draw [S, A] that stands in for each."""
        num_forces = len(self.model.kernels)
        chunk = max(1, CHUNK_ROWS // len(self.w))
        force, outputs, stand_ins = [], [], []
        for start, some in enumerate_chunks(rows, chunk):
            stepped("prediction", start, len(rows))
            seeds = [self.noise_seeds[int(i)] for i in some]
            noise = make_base_noise(seeds, len(self.w), num_forces, self.features)
            at = times[start : start + chunk]
            first = self.observations.times[some, :1]
            outcome = self.forward.run(self.w[:, some], some, noise, torch.cat([first, at], -1))
            sound = _sound(outcome.ok)
            outputs.append(_pick(outcome.outputs[..., 1:], sound))
            force.append(_pick(outcome.force[..., 1:], sound))
            stand_ins.append(sound)
        return torch.cat(force, 1), torch.cat(outputs, 1), torch.cat(stand_ins, 1)

    def solved(self) -> Tensor:
        """Which draws of which instances can be solved up to the last observation, [S, B]."""
        every = torch.arange(len(self.observations))
        chunk = max(1, CHUNK_ROWS // len(self.w))
        parts = [self.forward.run(self.w[:, some], some).ok for _, some in enumerate_chunks(every, chunk)]
        return torch.cat(parts, 1)

    def state(self) -> dict[str, Tensor]:
        return {
            "w": self.w.movedim(0, 1),
            "seeds": torch.tensor(self.noise_seeds),
            "steps": self.forward.steps,
            "inducing": self.forward.inducing,
        }


def _sound(ok: Tensor) -> Tensor:
    """Draws [S, A] to take in place of each: itself where its solve went well, else one of those that did."""
    order = torch.argsort(~ok, dim=0, stable=True)
    count = ok.sum(0).clamp_min(1)
    return order.gather(0, torch.arange(len(ok)).unsqueeze(-1) % count)


def _pick(values: Tensor, draws: Tensor) -> Tensor:
    """values [S, A, ...] at the draws [S, A]."""
    return values[draws, torch.arange(draws.shape[1])]


@torch.no_grad()
def too_coarse(forward: Forward, w: Tensor) -> Tensor:
    """Whether [B] the solver's steps are too long at the modes w [B, W]; shorter ones do not help what diverges."""
    rows = torch.arange(len(w))
    error = forward.step_error(w, rows)
    finer = forward.with_steps(2 * forward.steps)
    change = (finer.log_likelihood(w[None], rows) - forward.log_likelihood(w[None], rows))[0].abs()
    long = (error > STEP_TOLERANCE) | (change > LIKELIHOOD_TOLERANCE)
    return long & torch.isfinite(error) & torch.isfinite(change)


@torch.no_grad()
def doubts_of(posterior: SolvedPosterior, mode: Tensor) -> tuple[str, ...]:
    """What there is to say of each instance whose mode is [B, W]: steps that stayed too long, draws that failed."""
    forward = posterior.forward
    coarse, failed = too_coarse(forward, mode), 1 - posterior.solved().to(mode).mean(0)
    stiff = stiff_words(forward, mode, torch.arange(len(mode)))
    found = []
    for b in range(len(mode)):
        words = []
        if stiff[b] and (bool(coarse[b]) or float(failed[b]) > FAILED_SHARE):
            found.append(stiff[b])
            continue
        if bool(coarse[b]):
            words.append(
                f"{int(forward.steps[b])} solver steps are too few, and no more were tried: the answer is off by more "
                "than the tolerance. Set inference.variational.solver.steps, or solver.method=dopri5."
            )
        if float(failed[b]) > FAILED_SHARE:
            words.append(
                f"{100 * float(failed[b]):.0f} % of the posterior's draws could not be solved, and others stand in for "
                "them: bands are too narrow. Narrow the priors."
            )
        found.append(" ".join(words))
    return tuple(found)


class SolvedMethod(SeriesMethod):
    """A method whose draws go through the solver."""

    @classmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        steps = max(32, 4 * num_times)
        return 8 * 40 * steps * options.variational.samples * (model.mechanism.num_states + 40) * options.restarts

    @staticmethod
    def forward(model: Model, observations: Observations, options: InferenceConfig) -> Forward:
        """The way from unknowns to outputs, by the solver and the inducing points of `options.variational`."""
        return Forward(model, observations, options.variational.solver, options.variational.num_inducing)

    @classmethod
    def settings(cls, posterior: Posterior) -> dict[str, Any]:
        assert isinstance(posterior, SolvedPosterior)
        forward = posterior.forward
        solver = forward.solver.model_dump(mode="json")
        return {"solver": solver, "num_inducing": forward.num_inducing, "features": posterior.features}

    @classmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        forward = Forward(model, observations, build(SolverConfig, settings["solver"]), settings["num_inducing"])
        forward = forward.with_inducing(state["inducing"]).with_steps(state.get("steps", forward.steps))
        seeds = [int(seed) for seed in state["seeds"]]
        return SolvedPosterior(cls.name, forward, state["w"].movedim(1, 0), seeds, settings["features"])
