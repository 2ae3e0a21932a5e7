"""The config of `distlfm train`: what an operator learns from, how, and who computes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.lfo import OperatorConfig, TrainSettings, load_checkpoint
from distlfm.pipeline.plugins import WithPlugins
from distlfm.pipeline.query_ask import find_checkpoint, mark
from distlfm.pipeline.settings import DataConfig


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
        found = self.model_dump(mode="json", exclude={"run", "data", "title", "start"})
        return found if self.start is None else found | {"start": mark(find_checkpoint(self.start))}

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
        found = self.model_copy(update={"data": data, "run": run})
        return found if self.start is None else found._from_start(find_checkpoint(self.start).resolve())

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
