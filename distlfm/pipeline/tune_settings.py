"""The config of `distlfm tune`: a training, what of it is searched, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from distlfm.cluster.sweep_space import Range, Values
from distlfm.config import Config, apply_overrides, build, nearest
from distlfm.errors import UsageError
from distlfm.pipeline.train_settings import TrainConfig

SEARCHED = ("operator", "loss", "optimiser", "augment", "loop")
"""Sections whose keys may be searched; with another split or other data, trials could not be compared."""


VALIDATION = "validation_"
FIGURES = (
    *(f"train_{name}" for name in ("total", "force", "parameters", "reconstruction")),
    *(f"{VALIDATION}{name}" for name in ("calibrated", "loss", "force", "parameters", "q2", "parameter_mae")),
)
"""What an epoch's report has, and a search can go by."""


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


class TuneRunConfig(Config):
    """dir: where everything goes. workers: trials at a time; by default as many as there is room for.

    threads: CPUs of a trial. address: of a Ray cluster to join. checkpoint_every: seconds, of each trial.
    """

    dir: Path | None = None
    workers: int | None = Field(default=None, ge=1)
    threads: int = Field(default=1, ge=1)
    address: str | None = None
    checkpoint_every: float = Field(default=30.0, ge=0.0)


class TuneConfig(Config):
    """`distlfm tune`. train: a config of `distlfm train`; space: ranges for some of its keys, such as optimiser.lr.

    `data` may be written beside them, and is then the training's.
    """

    verb: Literal["tune"] = "tune"
    title: str = ""
    train: TrainConfig
    space: Mapping[str, Range] = Field(min_length=1)
    search: SearchConfig = SearchConfig()
    asha: AshaConfig = AshaConfig()
    run: TuneRunConfig = TuneRunConfig()

    @model_validator(mode="before")
    @classmethod
    def _data_of_the_training(cls, content: Any) -> Any:
        if isinstance(content, dict) and "data" in content and isinstance(content.get("train"), dict):
            rest = {key: value for key, value in content.items() if key != "data"}
            return rest | {"train": {**content["train"], "data": content["data"]}}
        return content

    @model_validator(mode="after")
    def _possible(self) -> TuneConfig:
        if self.search.metric not in FIGURES:
            hint = nearest(self.search.metric, FIGURES)
            raise ValueError(f"search.metric: an epoch has no figure {self.search.metric!r}. {hint}")
        if self.search.metric.startswith(VALIDATION) and not self.train.split.validation:
            raise ValueError(f"search.metric: {self.search.metric} needs a validation split, and split.validation is 0")
        for key, values in self.space.items():
            if key.split(".")[0] not in SEARCHED:
                raise ValueError(f"{key!r} cannot be searched; a key of {', '.join(SEARCHED)} can")
            for value in values.edges():
                try:
                    self.trial({key: value})
                except UsageError as error:
                    raise ValueError(f"{error.cause.removeprefix('config: ')}") from None
        return self

    def trial(self, values: Values, run: Mapping[str, Any] | None = None) -> TrainConfig:
        """The training with these values. run: its section `run`, otherwise the default one."""
        content = self.train.model_dump(mode="json") | {"run": dict(run or {})}
        for key, value in values.items():
            *parents, last = key.split(".")
            target = content
            for parent in parents:
                target = target.setdefault(parent, {})
            target[last] = value
        return build(TrainConfig, apply_overrides(content, ()))

    def work(self) -> dict[str, Any]:
        """What is searched, without where and by whom; more trials may be asked for later."""
        told = self.model_dump(mode="json", exclude={"run", "title"})
        told["train"] = self.train.work()
        del told["search"]["trials"]
        return told
