"""The config of `distlfm train`: what an operator learns from, how, and who computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from distlfm.config import Config
from distlfm.lfo import TrainSettings
from distlfm.pipeline.plugins import import_plugins


class TrainDataConfig(Config):
    """stores: of fitted or generated instances, or runs that have one; several are mixed, instance by instance."""

    stores: tuple[Path, ...] = ()


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


class TrainConfig(TrainSettings):
    """`distlfm train`. plugins: modules to import first, which register mechanisms."""

    verb: Literal["train"] = "train"
    title: str = ""
    plugins: tuple[str, ...] = ()
    data: TrainDataConfig = TrainDataConfig()
    run: TrainRunConfig = TrainRunConfig()

    @model_validator(mode="before")
    @classmethod
    def _with_plugins(cls, content: Any) -> Any:
        if isinstance(content, dict) and isinstance(content.get("plugins"), list | tuple):
            import_plugins([str(name) for name in content["plugins"]])
        return content

    @property
    def settings(self) -> TrainSettings:
        """What the training loop asks for."""
        return TrainSettings(**{name: getattr(self, name) for name in TrainSettings.model_fields})

    def work(self) -> dict[str, Any]:
        """What the weights follow from, besides the data: the same without where things are and who computes."""
        return self.model_dump(mode="json", exclude={"run", "data", "title"})

    def resolved(self) -> TrainConfig:
        """The same with absolute paths: other processes may have another working directory."""
        data = self.data.model_copy(update={"stores": tuple(path.resolve() for path in self.data.stores)})
        run = self.run if self.run.dir is None else self.run.model_copy(update={"dir": self.run.dir.resolve()})
        return self.model_copy(update={"data": data, "run": run})
