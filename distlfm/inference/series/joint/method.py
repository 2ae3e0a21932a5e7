"""The method `joint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, PositiveInt
from torch import Tensor

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.inference.base import Fit, Posterior
from distlfm.inference.method import SeriesMethod, register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.joint.density import Density
from distlfm.inference.series.joint.fit import fit_joint
from distlfm.inference.series.joint.grid import Grid
from distlfm.inference.series.joint.posterior import JointPosterior
from distlfm.inference.series.joint.sampler import SamplerConfig
from distlfm.inference.series.joint.waves import Circle, FreeWaves, Waves, with_waves
from distlfm.solvers.base import reads_state

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig


class JointConfig(Config):
    """chains: run side by side for each instance. warm: transitions of each round of warm-up, which are thrown away.
    kept: transitions that count, of each chain. extensions: how often chains that have not mixed run on, twice as long.
    effective: independent draws that are enough.
    """

    chains: int = Field(default=32, ge=4)
    warm: tuple[PositiveInt, ...] = (3, 3, 4, 5)
    kept: int = Field(default=16, ge=2)
    extensions: int = Field(default=3, ge=0)
    effective: float = Field(default=100.0, gt=0)


def misfit(model: Model, options: InferenceConfig) -> str | None:
    """Why the method does not suit a model with these options; None where it does."""
    solver = options.variational.solver
    if reads_state(model.mechanism):
        return "Its force depends on the state, and waves are functions of time."
    if not with_waves(model):
        return "Its kernel has no small basis of waves."
    if solver.method != "rk4" or solver.gradient != "backprop":
        return "It takes steps of rk4, and inference.variational.solver asks for others."
    if options.posterior.method != "importance":
        return f"It draws from the posterior itself, and inference.posterior.method is {options.posterior.method!r}."
    return None


@register_method("joint")
class Joint(SeriesMethod):
    """Through the solver, force and parameters sampled together."""

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        why = misfit(model, options)
        if why is not None:
            raise UsageError(f"The method 'joint' does not suit this model. {why}", "Use inference.method=auto.")

    @classmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        steps, states, chains = max(64, 4 * num_times), model.mechanism.num_states, options.joint.chains
        trajectories = steps * (60 * states * chains + 200 * (states + len(model.kernels)))
        return 8 * (trajectories + 6 * chains * (60 * len(model.kernels)) ** 2)

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Any) -> Fit:
        own = options.joint
        sampler = SamplerConfig(own.chains, own.warm, own.kept, own.extensions, own.effective)
        steps = options.variational.solver.steps
        return fit_joint(model, observations, seeds, sampler, options.restarts, options.random_start, steps)

    @classmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        del settings
        waves: Waves
        if "circle" in state:
            origin, length, count = state["circle"].unbind(-1)
            size = (state["w"].shape[-1] - model.space.num_free) // (2 * len(model.kernels))
            waves = Circle(model, origin, length, count.long(), size)
        else:
            first, last = observations.times[:, 0], observations.times[:, -1]
            waves = FreeWaves(model, first, last - first)
        grid = Grid(state["nodes"], state["place"].long(), state["steps"].long())
        density = Density.of(model, observations, grid, waves)
        seeds = tuple(int(seed) for seed in state["seeds"])
        return JointPosterior(density, state["w"].movedim(1, 0), seeds)
