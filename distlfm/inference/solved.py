"""Draws of parameters and inducing values, each with its own force and trajectory.

The posterior of every fit whose answer goes through the solver, and what there is to say of the solver's steps.
Shapes: `S` draws, `B` instances, `A` of them, `W` unknowns, `L` forces, `P` outputs, `Q` query times.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distlfm.gp.pathwise import make_base_noise
from distlfm.inference.base import Posterior, Predicted, Unknowns
from distlfm.inference.collapsed import enumerate_chunks
from distlfm.inference.forward import Forward
from distlfm.inference.mixture import Mixture
from distlfm.runtime.watching import stepped

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

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        found = self.predict(rows, times)
        order = torch.randperm(len(self.w), generator=torch.Generator().manual_seed(seed))
        chosen = order[torch.arange(count) % len(order)]
        return found.force.means[chosen], found.outputs.means[chosen]

    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        num_forces = len(self.model.kernels)
        chunk = max(1, CHUNK_ROWS // len(self.w))
        force, outputs = [], []
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
        shown, seen = torch.cat(force, 1), torch.cat(outputs, 1)
        return Predicted(Mixture(shown, torch.zeros_like(shown)), Mixture(seen, torch.zeros_like(seen)))

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
    assert forward.solver.steps is not None
    finer = forward.with_steps(2 * forward.solver.steps)
    change = (finer.log_likelihood(w[None], rows) - forward.log_likelihood(w[None], rows))[0].abs()
    long = (error > STEP_TOLERANCE) | (change > LIKELIHOOD_TOLERANCE)
    return long & torch.isfinite(error) & torch.isfinite(change)


@torch.no_grad()
def notices_of(posterior: SolvedPosterior, mode: Tensor) -> tuple[str, ...]:
    """What there is to say of each instance whose mode is [B, W]: steps that stayed too long, draws that failed."""
    forward = posterior.forward
    coarse, failed = too_coarse(forward, mode), 1 - posterior.solved().to(mode).mean(0)
    found = []
    for b in range(len(mode)):
        words = []
        if bool(coarse[b]):
            words.append(
                f"{forward.solver.steps} solver steps are too few, and no more were tried: the answer is off by more "
                "than the tolerance. Set inference.variational.solver.steps, or solver.method=dopri5."
            )
        if float(failed[b]) > FAILED_SHARE:
            words.append(
                f"{100 * float(failed[b]):.0f} % of the posterior's draws could not be solved, and others stand in for "
                "them: bands are too narrow. Narrow the priors."
            )
        found.append(" ".join(words))
    return tuple(found)
