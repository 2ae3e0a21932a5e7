"""Many trials by Ray Tune: Optuna says what is tried next, and ASHA ends early what does worse than others did by then.

The ranges at the top are what a sweep may choose from, as a config says it. Nothing of Ray Tune's own state is kept:
whoever calls keeps what trials have reported. To go on, the known trials are tried again first, and report their past
at once; so the search and the scheduler learn all that they knew.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from distlfm.cluster.ray.session import RaySession
from distlfm.config import Config
from distlfm.errors import WorkError
from distlfm.optional import require
from distlfm.runtime.process import Stop

Values = Mapping[str, Any]


class _Between(Config):
    """Numbers from low to high."""

    kind: str
    low: float
    high: float

    def edges(self) -> tuple[Any, ...]:
        """Values that must be possible."""
        return (self.low, self.high)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        return self


class Uniform(_Between):
    """Any number from low to high."""

    kind: Literal["uniform"]

    def distribution(self, optuna: Any) -> Any:
        """As Optuna's module of distributions has it."""
        return optuna.FloatDistribution(self.low, self.high)


class LogUniform(_Between):
    """Any number from low to high, each order of magnitude as likely as another."""

    kind: Literal["loguniform"]
    low: PositiveFloat
    high: PositiveFloat

    def distribution(self, optuna: Any) -> Any:
        return optuna.FloatDistribution(self.low, self.high, log=True)


class Int(_Between):
    """A whole number from low to high, in steps."""

    kind: Literal["int"]
    low: int
    high: int
    step: int = Field(default=1, ge=1)

    def distribution(self, optuna: Any) -> Any:
        return optuna.IntDistribution(self.low, self.high - (self.high - self.low) % self.step, step=self.step)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.high:
            raise ValueError(f"low ({self.low}) must not be above high ({self.high})")
        return self


class Choice(Config):
    """One of these values, of whatever type the key takes."""

    kind: Literal["choice"]
    values: tuple[Any, ...] = Field(min_length=1)

    def distribution(self, optuna: Any) -> Any:
        return optuna.CategoricalDistribution([json.dumps(value) for value in self.values])

    def edges(self) -> tuple[Any, ...]:
        return self.values


Range = Annotated[Uniform | LogUniform | Int | Choice, Field(discriminator="kind")]


class SearchConfig(Config):
    """trials: how many. metric: a figure of an epoch's report, such as `validation_q2` or `train_total`; by default the
    one by which a training chooses its weights.

    sampler: `tpe` learns from what was tried (Optuna).
    """

    trials: int = Field(default=16, ge=1)
    metric: str = "validation_calibrated"
    mode: Literal["min", "max"] = "min"
    sampler: Literal["tpe", "random"] = "tpe"
    seed: int = Field(default=0, ge=0)


class AshaConfig(Config):
    """Asynchronous successive halving: at `grace` epochs, and at each `reduction` times as many, a trial is compared
    with those that came so far before, and one in `reduction` goes on (Li et al. 2020).
    """

    grace: int = Field(default=5, ge=1)
    reduction: float = Field(default=3.0, gt=1.0)


Report = Callable[[Mapping[str, Any]], None]

SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_RESULT_DELIM": "/",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Ray Tune without its own log files and handlers."""

RETRIES = 2
"""A trial whose process dies is tried again so often."""

TIME = "time_units"
"""What ASHA counts: reports carry it."""


class SweepTask(ABC):
    """One trial; it can be pickled."""

    @abstractmethod
    def __call__(self, values: Values, report: Report, shared: Any) -> None:
        """Try these values. `report` takes the metric and `TIME`, and does not return if the trial is to end.

        shared: what all trials read; one copy per node, in Ray's object store.
        """


class SweepWatch(ABC):
    """Who looks at the trials, in the driver. Values tell which trial it is."""

    @abstractmethod
    def began(self, values: Values) -> None: ...

    @abstractmethod
    def reported(self, values: Values, report: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def ended(self, values: Values, failure: str) -> None:
        """failure: empty if it came to its end, or was ended by the scheduler."""


@dataclass(frozen=True)
class SweepPlan:
    """What is searched, and for how long.

    longest: of a trial, in units of `TIME`. known: values that were tried before, and come first.
    """

    space: Mapping[str, Range]
    search: SearchConfig
    asha: AshaConfig
    longest: int
    known: Sequence[Values]


class Halted(Exception):
    """A stop was asked for."""


def sweep(
    session: RaySession,
    task: SweepTask,
    plan: SweepPlan,
    watch: SweepWatch,
    stop: Stop,
    *,
    concurrent: int,
    cpus: int,
    scratch: Path,
    shared: Any = None,
) -> None:
    """Run the trials; returns when all are done, or a stop was asked for.

    scratch: a folder that all nodes see, for what Ray Tune writes; removed at the end.
    """
    os.environ.update(SETTINGS)  # the session puts the environment back
    tune, schedulers = require("ray.tune", extra="ray"), require("ray.tune.schedulers", extra="ray")
    gpus = session.ray.cluster_resources().get("GPU", 0) >= concurrent
    trainable = tune.with_parameters(_trainable, task=task, shared=shared)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": cpus, "gpu": int(gpus)}),
        tune_config=tune.TuneConfig(
            search_alg=_search(plan),
            scheduler=schedulers.ASHAScheduler(
                time_attr=TIME,
                metric=plan.search.metric,
                mode=plan.search.mode,
                max_t=plan.longest,
                grace_period=min(plan.asha.grace, plan.longest),
                reduction_factor=plan.asha.reduction,
                stop_last_trials=False,  # at its end a trial has still to write what it found
            ),
            num_samples=plan.search.trials,
            max_concurrent_trials=concurrent,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(scratch),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            callbacks=[_callback(watch, stop)],
        ),
    )
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        tuner.fit()
    except Exception as error:
        if not stop.requested:
            why = " ".join(str(error).split())[-500:]
            raise WorkError(f"The sweep broke off: {why}", "The same command goes on with it.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _trainable(config: dict[str, Any], task: SweepTask, shared: Any) -> None:
    """What runs in Ray Tune's processes."""
    tune = require("ray.tune", extra="ray")
    task(decoded(config), lambda figures: tune.report(dict(figures)), shared)


def _search(plan: SweepPlan) -> Any:
    optuna = require("optuna", extra="ray")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.RandomSampler if plan.search.sampler == "random" else optuna.samplers.TPESampler
    return require("ray.tune.search.optuna", extra="ray").OptunaSearch(
        {key: one.distribution(optuna.distributions) for key, one in plan.space.items()},
        metric=plan.search.metric,
        mode=plan.search.mode,
        sampler=sampler(seed=plan.search.seed + len(plan.known)),
        points_to_evaluate=[encoded(values, plan.space) for values in plan.known] or None,
    )


def encoded(values: Values, space: Mapping[str, Range]) -> dict[str, Any]:
    """Values as Optuna takes them: those of a choice may be lists, which it does not know, and go as text."""
    return {key: json.dumps(value) if space[key].kind == "choice" else value for key, value in values.items()}


def decoded(config: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse."""
    return {key: json.loads(value) if isinstance(value, str) else value for key, value in config.items()}


def _callback(watch: SweepWatch, stop: Stop) -> Any:
    class Watcher(require("ray.tune", extra="ray").Callback):  # type: ignore[misc]
        """Passes on what Ray Tune sees."""

        def on_trial_start(self, *, trial: Any, **_: Any) -> None:
            watch.began(decoded(trial.config))

        def on_trial_result(self, *, trial: Any, result: Any, **_: Any) -> None:
            watch.reported(decoded(trial.config), result)

        def on_trial_complete(self, *, trial: Any, **_: Any) -> None:
            watch.ended(decoded(trial.config), "")

        def on_trial_error(self, *, trial: Any, **_: Any) -> None:
            text = str(trial.get_pickled_error() or trial.get_error() or "its process ended")
            watch.ended(decoded(trial.config), " ".join(text.split())[-300:])

        def on_step_end(self, **_: Any) -> None:
            if stop.requested:
                raise Halted

    return Watcher()
