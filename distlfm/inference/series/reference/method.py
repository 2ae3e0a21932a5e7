"""The answer that others are compared with: long chains of a sampler that is kept by others, on the same density.

Linear mechanisms have the force integrated out by dense matrices or the filter, and chains are of the parameters alone.
Others are sampled together with their force, through the solver: its steps are halved, inducing points doubled and
chains begun anew until neither changes anything that the data can tell.

Shapes: `S` draws of all chains, one of each in turn; `n` parameters, `W` unknowns. A batch is one instance.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from distlfm.gp.pathwise import make_base_noise
from distlfm.inference.base import Fit, Posterior, Unknowns
from distlfm.inference.collapsed import CollapsedPosterior
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import SeriesMethod, register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import Objective, Status
from distlfm.inference.result import FitResult
from distlfm.inference.series.collapsed import Collapsed, LinearMethod
from distlfm.inference.series.forward import (
    MAX_DOUBLINGS,
    Forward,
    SolvedMethod,
    SolvedPosterior,
    doubts_of,
    too_coarse,
)
from distlfm.inference.series.linear import LinearGaussian
from distlfm.inference.series.reference.nuts import EXTRA, Chains, sample
from distlfm.inference.series.statespace import LONG, Filter, supports
from distlfm.instance import Instance
from distlfm.optional import require
from distlfm.runtime.reporting import during
from distlfm.solvers.ode import RULES

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

AGREED = 1.01
"""R-hat up to which chains are taken to have met (Vehtari et al. 2021)."""

LEAST = 400.0
"""Independent draws that the worst unknown must be worth."""

ASTRAY = 0.01
"""Share of draws at which the integrator may lose its energy without a word."""

COARSE = (
    "Shorter steps of the solver or more inducing points would still change the likelihood, and no more were tried. "
    "Set inference.variational.solver.steps and num_inducing."
)

TRIED = 64
"""Draws at which steps and inducing points are checked."""

NOTICED = 0.05
"""Root mean square change of the log-likelihood over these draws that finer ones may bring."""


def _thinned(total: int, chains: int, count: int) -> Tensor:
    """Places [count] of draws among `total`, spread evenly over each of the chains, whose draws take turns."""
    each, wanted = total // chains, -(-count // chains)
    steps = torch.arange(wanted) * each // wanted if wanted <= each else torch.arange(wanted) % each
    return (steps.unsqueeze(-1) * chains + torch.arange(chains)).flatten()[:count]


class SolvedChains(SolvedPosterior):
    """Draws of chains, each of which was solved with its force."""

    def __init__(self, forward: Forward, w: Tensor, noise_seeds: Sequence[int], features: int, chains: int) -> None:
        super().__init__(Reference.name, forward, w, noise_seeds, features)
        self.chains = chains

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        del seed
        force, outputs, sound = self._solve(rows, times)
        z, _ = self.forward.split(self.w[sound, rows])
        chosen = _thinned(len(self.w), self.chains, count)
        return force[chosen], outputs[chosen], z[chosen]


class CollapsedChains(CollapsedPosterior):
    """Draws of chains, given each of which the force is Gaussian."""

    def __init__(self, marginal: Marginal, draws: Tensor, chains: int) -> None:
        """draws: [S, 1, n]."""
        weights = torch.full(draws.shape[:2], 1 / len(draws), dtype=draws.dtype)
        super().__init__(Reference.name, marginal, draws, Unknowns(draws, weights))
        self.chains = chains

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        fewer = copy.copy(self)
        fewer.draws = self.draws[_thinned(len(self.draws), self.chains, count)]
        return CollapsedPosterior.draw(fewer, rows, times, count, seed)

    def state(self) -> dict[str, Tensor]:
        return {"draws": self.draws.movedim(0, 1)}


@register_method("reference")
@dataclass(frozen=True)
class Reference(SeriesMethod):
    """By long chains, minutes for an instance. closed: what integrates the force out, None for the solver."""

    together: ClassVar[int] = 1
    closed: LinearMethod | None = None

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        del model, options
        require("nutpie", EXTRA)

    @classmethod
    def suits(cls, model: Model, instance: Instance, options: InferenceConfig) -> Reference:
        del options
        if not model.integrable:
            return cls()
        return cls(Filter() if len(instance.times) >= LONG and supports(model) else Collapsed.dense(model, instance))

    @classmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        near = Collapsed if model.integrable else SolvedMethod
        return options.reference.chains * near.bytes(model, num_times, options)

    def fit(
        self, model: Model, instances: Sequence[Instance], options: InferenceConfig, seeds: Sequence[int]
    ) -> list[FitResult]:
        found = []
        for i, (instance, seed) in enumerate(zip(instances, seeds, strict=True)):
            with during("instance", i + 1, len(instances)):
                found += super().fit(model, [instance], options, [seed])
        return found

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        (seed,), lengths = seeds, options.reference
        if self.closed is not None:
            marginal = self.closed.marginal(model, observations)
            chains = sample(marginal.negative, model.space.num_free, lengths, seed)
            return _fit(CollapsedChains(marginal, chains.turns.unsqueeze(1), lengths.chains), chains)
        forward = SolvedMethod.forward(model, observations, options)
        if options.variational.solver.steps is None and forward.solver.method in RULES:
            # Half of what others begin with changes a likelihood by a hundredth, and what does not is found below.
            forward = forward.with_steps((forward.steps + 1) // 2)
        for number in range(MAX_DOUBLINGS + 1):
            with during("chains", number + 1, MAX_DOUBLINGS + 1):
                chains = sample(_joint(forward), forward.size, lengths, seed, _noise(model))
            finer = _finer(forward, chains, seed, options.variational.features)
            if finer is None or number == MAX_DOUBLINGS:
                break
            forward = finer
        w = chains.turns.unsqueeze(1)
        posterior = SolvedChains(forward, w, seeds, options.variational.features, lengths.chains)
        doubts = doubts_of(posterior, chains.best)
        return _fit(posterior, chains, *doubts, *(() if finer is None else (COARSE,)))

    @classmethod
    def settings(cls, posterior: Posterior) -> dict[str, Any]:
        assert isinstance(posterior, SolvedChains | CollapsedChains)
        if isinstance(posterior, SolvedChains):
            return {"chains": posterior.chains, **SolvedMethod.settings(posterior)}
        marginal = posterior.marginal
        rule = asdict(marginal.quadrature) if isinstance(marginal, LinearGaussian) else None
        return {"chains": posterior.chains, "rule": rule}

    @classmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        chains = settings["chains"]
        if "rule" in settings:
            closed = Filter() if settings["rule"] is None else Collapsed(**settings["rule"])
            return CollapsedChains(closed.marginal(model, observations), state["draws"].movedim(1, 0), chains)
        solved = SolvedMethod.restore(model, observations, settings, state)
        assert isinstance(solved, SolvedPosterior)
        return SolvedChains(solved.forward, solved.w, solved.noise_seeds, solved.features, chains)


def _joint(forward: Forward) -> Objective:
    """Minus the log joint density of data and w [A, W]."""
    return lambda w, rows: 0.5 * w.square().sum(-1) - forward.log_likelihood(w[None], rows)[0]


def _noise(model: Model) -> Sequence[int]:
    """Where the learned noise is in z: at the joint mode of force and noise there is none."""
    place = model.space.slice_of("noise") if model.likelihood.learns_noise else slice(0)
    return range(*place.indices(model.space.num_free))


@torch.no_grad()
def _finer(forward: Forward, chains: Chains, seed: int, features: int) -> Forward | None:
    """What solves with half the steps, or draws forces from twice the points, if the data can tell; None if not."""
    if not chains.begun:
        return None
    w = chains.turns[_thinned(len(chains.turns), len(chains.draws), TRIED)].unsqueeze(1)
    here = torch.zeros(1, dtype=torch.long)
    plain = forward.log_likelihood(w, here)

    def changed(other: Tensor) -> bool:
        found = other - plain
        return bool(found[torch.isfinite(found)].square().mean().sqrt() > NOTICED)

    shorter = forward.with_steps(2 * forward.steps)
    rough = changed(shorter.log_likelihood(w, here)) or bool(too_coarse(forward, chains.best))
    noise = make_base_noise([seed], TRIED, len(forward.model.kernels), features)
    if changed(forward.log_likelihood(w, here, noise)):
        return (shorter if rough else forward).with_points(2 * forward.num_inducing)
    return shorter if rough else None


def _fit(posterior: SolvedChains | CollapsedChains, chains: Chains, *doubts: str) -> Fit:
    """The fit of one instance, with what there is to doubt of its chains."""
    words = [*filter(None, doubts)]
    if not (chains.rhat <= AGREED and chains.effective >= LEAST):
        words.append(
            f"The chains have not met (R-hat {chains.rhat:.3f}, at most {AGREED} is wanted; the worst unknown is worth "
            f"{chains.effective:.0f} independent draws, {LEAST:.0f} are wanted): they are too short, or the posterior "
            "has several modes. Raise inference.reference.warmup and draws, or give narrower priors."
        )
    if chains.astray > ASTRAY:
        words.append(
            f"The integrator lost its energy at {100 * chains.astray:.0f} % of the draws: narrow places of the "
            "posterior may be left out. Raise inference.reference.acceptance to 0.95 or more."
        )
    status = Status.CONVERGED if chains.begun else Status.DIVERGED
    return Fit(
        posterior=posterior,
        bound=chains.log_density.max().reshape(1),
        status=torch.tensor([int(status)]),
        iterations=torch.tensor([chains.draws.shape[1]]),
        effective=torch.tensor([chains.effective], dtype=torch.float64),
        trace=chains.log_density.mean(0).unsqueeze(-1),
        doubts=(" ".join(words),),
        rhat=torch.tensor([chains.rhat], dtype=torch.float64),
    )
