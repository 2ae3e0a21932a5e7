"""The configs of `distlfm train` and `distlfm tune`.

A training has what an operator learns from, how, and who computes; a sweep has a training, what of it is searched, and
how.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from distlfm.cluster.ray.sweep import AshaConfig, Range, SearchConfig, Values
from distlfm.config import Config, apply_overrides, build, nearest
from distlfm.errors import UsageError
from distlfm.lfo import OperatorConfig, TrainSettings, load_checkpoint
from distlfm.mechanisms.build import WithPlugins
from distlfm.queries.asking import find_checkpoint, mark
from distlfm.runs.settings import DataConfig


class TrainDataConfig(Config):
    """stores: of fitted or generated instances, or runs that have one; several are mixed, instance by instance.

    observations: data of which nobody knows the force, read as `distlfm query` reads them; what they teach is
    `loss.reconstruction`. They need a `start`, and may be mixed with stores. outputs: names of outputs in the
    observations, and what the operator calls them, where that differs.
    """

    stores: tuple[Path, ...] = ()
    observations: DataConfig | None = None
    outputs: Mapping[str, str] = {}


class TrainRunConfig(Config):
    """Where results go and who computes, which changes no number but for rounding.

    launcher: `inline` is this process; `ddp` the ranks of torchrun, srun or mpirun, or, without these, `workers`
    processes on this machine; `ray` are `workers` of Ray Train, on this machine or on the cluster at `address`. `auto`
    is what the environment tells, then `ray` if there is an address, `ddp` if there are several workers, else `inline`.
    threads: of each worker; by default the machine's cores are divided among them.
    checkpoint_every: seconds between checkpoints; 0 writes one after each step. log_every: steps between two lines of
    metrics.jsonl. tensorboard: whether its events are written; null is if tensorboardX is installed.
    """

    dir: Path | None = None
    launcher: Literal["auto", "inline", "ddp", "ray"] = "auto"
    workers: int | None = Field(default=None, ge=1)
    address: str | None = None
    threads: int | None = Field(default=None, ge=1)
    checkpoint_every: NonNegativeFloat = 30.0
    log_every: int = Field(default=10, ge=1)
    tensorboard: bool | None = None


class TrainConfig(TrainSettings, WithPlugins):
    """`distlfm train`. plugins: modules to import first, which register mechanisms.

    start: a trained operator, or the folder of its run, whose weights and normalisation the training begins with; the
    section `operator` is then that one's, and is left out.
    """

    verb: Literal["train"] = "train"
    title: str = ""
    start: Path | None = None
    data: TrainDataConfig = TrainDataConfig()
    run: TrainRunConfig = TrainRunConfig()

    @property
    def settings(self) -> TrainSettings:
        """What the training loop asks for."""
        return TrainSettings(**{name: getattr(self, name) for name in TrainSettings.model_fields})

    def work(self) -> dict[str, Any]:
        """What the weights follow from, besides the data: the same without where things are and who computes."""
        content = self.model_dump(mode="json", exclude={"run", "data", "title", "start"})
        return content if self.start is None else content | {"start": mark(find_checkpoint(self.start))}

    def resolved(self) -> TrainConfig:
        """The same with absolute paths: other processes may have another working directory. With a `start`, the network
        is that one's.
        """
        changed: dict[str, Any] = {"stores": tuple(path.resolve() for path in self.data.stores)}
        observed = self.data.observations
        if observed is not None and observed.path is not None:
            changed["observations"] = observed.model_copy(update={"path": observed.path.resolve()})
        data = self.data.model_copy(update=changed)
        run = self.run if self.run.dir is None else self.run.model_copy(update={"dir": self.run.dir.resolve()})
        config = self.model_copy(update={"data": data, "run": run})
        return config if self.start is None else config._from_start(find_checkpoint(self.start).resolve())

    def _from_start(self, start: Path) -> TrainConfig:
        if self.run.dir is not None and start.parent == self.run.dir:
            raise UsageError(
                f"{start} is in the folder that this run writes to, and would be lost.", "Choose another --out."
            )
        there = OperatorConfig.model_validate(load_checkpoint(start)["operator"])
        given = {name: getattr(self.operator, name) for name in self.operator.model_fields_set}
        for name, value in given.items():
            if value != getattr(there, name):
                raise UsageError(
                    f"operator.{name} is {value} in the config, and {getattr(there, name)} in {start}.",
                    "Leave the section `operator` out: with a start, its network is gone on with.",
                )
        return self.model_copy(update={"start": start, "operator": there})


SEARCHED = ("operator", "loss", "optimiser", "augment", "loop")
"""Sections whose keys may be searched; with another split or other data, trials could not be compared."""


VALIDATION = "validation_"
FIGURES = (
    *(f"train_{name}" for name in ("total", "force", "parameters", "reconstruction")),
    *(f"{VALIDATION}{name}" for name in ("calibrated", "loss", "force", "parameters", "q2", "parameter_mae")),
)
"""What an epoch's report has, and a search can go by."""


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
        return build(TrainConfig, apply_overrides(content, values))

    def work(self) -> dict[str, Any]:
        """What is searched, without where and by whom; more trials may be asked for later."""
        content = self.model_dump(mode="json", exclude={"run", "title"})
        content["train"] = self.train.work()
        del content["search"]["trials"]
        return content
