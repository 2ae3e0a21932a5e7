"""The configs of fits, simulations, queries, evaluations and the page, made of the components' own option models."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, SerializeAsAny, field_validator, model_validator

from distlfm.config import Config, build
from distlfm.data import ColumnMap
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig, check_inference
from distlfm.inference.model import ForceConfig, Model
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system, find_system
from distlfm.mechanisms.build import WithPlugins, check_parameters, located, plugin_name


class WorkConfig(Config):
    """Where blocks are worked on, which changes no number.

    threads: of the tensor operations of a worker; the matrices of a fit are small, and more than one seldom help.
    executor: `ray` starts its own Ray on this machine, or joins that at `address` (`auto`, or host:port); `serial`
    needs none; `auto` is `ray` for more than one block of work where it is installed. workers: how many at most.
    """

    threads: int = Field(default=1, ge=1)
    executor: Literal["auto", "serial", "ray"] = "auto"
    workers: int | None = Field(default=None, ge=1)
    address: str | None = None


class RunConfig(WorkConfig):
    """dir: where results go. seed: everything random follows from it.

    batch: instances fitted at once, which are a block of the store; settled when a run begins, and kept in it.
    keep: whole posteriors as files, of `all` instances, of a `few` a block (the worst, the best, the slowest), or of
    `none`; `auto` keeps all of a fleet up to 256. draws: curves of each force's posterior kept in the store.
    """

    dir: Path | None = None
    seed: int = 0
    batch: int | None = Field(default=None, ge=1)
    keep: Literal["auto", "all", "few", "none"] = "auto"
    draws: int = Field(default=0, ge=0)


class UnitsConfig(Config):
    """What the data are measured in, for the axes of plots and the store: of times, of values, and of positions.

    It names units and converts nothing.
    """

    time: str | None = None
    value: str | None = None
    position: str | None = None

    def as_metadata(self) -> dict[str, str]:
        """As an instance's metadata name them."""
        return {f"{name}_unit": unit for name, unit in self.model_dump(exclude_none=True).items()}


class DataConfig(Config):
    """What is fitted: `path` to a file or folder, or the name of a reference `dataset`.

    With both, the file at `path` is read as that set would be.

    stride: keep every n-th observation for fitting. fraction: a random share of them, drawn with
    `split_seed`, is, and outputs are scored at the others. only: ids of the instances to take.
    window: instances are cut into pieces of this length in time. scale: `output` measures each output in units of its
    own root mean square. units: of times, values and positions, where the file does not tell them.
    """

    path: Path | None = None
    dataset: str | None = None
    columns: ColumnMap | None = None
    units: UnitsConfig = UnitsConfig()
    stride: int = Field(default=1, ge=1)
    fraction: float = Field(default=1.0, gt=0.0, le=1.0)
    split_seed: int = 0
    only: tuple[str, ...] = ()
    window: float | None = Field(default=None, gt=0)
    scale: Literal["none", "output"] = "none"


class ModelConfig(WithPlugins):
    """Mechanism, prior of the forces, likelihood.

    plugins: modules to import first, which register mechanisms, likelihoods, methods, schemes and readers: installed
    ones, NAME.py in the current folder, or the path of such a file.
    """

    mechanism: dict[str, Any]
    force: ForceConfig = ForceConfig()
    likelihood: SerializeAsAny[LikelihoodConfig] = LikelihoodConfig()

    @field_validator("mechanism")
    @classmethod
    def _known_mechanism(cls, options: dict[str, Any]) -> dict[str, Any]:
        system = find_system(str(options.get("kind", "")))
        built = build(system.Options, options, source="mechanism", within="mechanism")
        if built.outputs:
            check_parameters(build_system(options))
        else:
            # The data will name the outputs; names of parameters do not wait for them.
            unnamed = {"outputs": ("output",), "fixed": {name: {} for name in built.fixed}}
            try:
                example = system(built.model_copy(update=unnamed))
            except UsageError:  # it wants a certain number of outputs
                return options
            check_parameters(example)
        return options

    def located(self) -> Self:
        """The same with absolute paths: its files are found from any working directory, and by workers elsewhere."""
        mesh, mechanism = self.mechanism.get("mesh"), self.mechanism
        if isinstance(mesh, dict) and mesh.get("path") is not None:
            mechanism = {**mechanism, "mesh": {**mesh, "path": str(Path(mesh["path"]).absolute())}}
        return self.model_copy(update={"plugins": located(self.plugins), "mechanism": mechanism})

    def named_plugins(self) -> tuple[str, ...]:
        """The plugins by the names of their modules, wherever these lie."""
        return tuple(map(plugin_name, self.plugins))


class FitConfig(ModelConfig):
    """`distlfm fit`."""

    verb: Literal["fit"] = "fit"
    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    inference: InferenceConfig = InferenceConfig()

    @model_validator(mode="after")
    def _suits(self) -> FitConfig:
        """Refuse what the method cannot do before anything is written; where only the data tell, they are read."""
        built = build(find_system(self.mechanism["kind"]).Options, self.mechanism, source="mechanism")
        # Outputs that the data will name may have known elements, by which they are called here.
        known = dict.fromkeys(label for one in built.fixed.values() if isinstance(one, Mapping) for label in one)
        try:
            example = build_system(self.mechanism, () if built.outputs else tuple(known) or ("output",))
            model = Model(example, self.force, self.likelihood)
        except UsageError:  # names or numbers of outputs matter to it
            if built.outputs:
                raise
            return self
        check_inference(model, self.inference)
        return self

    def work(self) -> FitConfig:
        """The same without what changes no number: where results go, who computes, and what is kept of them."""
        run = RunConfig(seed=self.run.seed, draws=self.run.draws)
        data = self.data.model_copy(update={"path": None})
        return self.model_copy(update={"run": run, "data": data, "plugins": self.named_plugins()})

    def located(self) -> Self:
        config, path = super().located(), self.data.path
        return config if path is None else config.changed("data", path=path.absolute())


class DrawnConfig(ModelConfig):
    """What is drawn: over which time, how many outputs of a mechanism that leaves it open, and what is left out."""

    start: float = 0.0
    stop: float = 11.0
    num_outputs: int = Field(default=5, ge=1)
    missing: float = Field(default=0.0, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.stop <= self.start:
            raise ValueError(f"stop ({self.stop:g}) must be after start ({self.start:g})")
        return self


class SimulateConfig(DrawnConfig):
    """`distlfm simulate`: how many instances, observed when.

    Observations are at `points` even times from `start` to `stop`; the truth is kept at `truth_points`.
    num_outputs: how many outputs a mechanism that leaves it open has; `missing`: the share of values left out.
    places: of a field, how many positions per dimension it is observed at.
    """

    verb: Literal["simulate"] = "simulate"
    instances: int = Field(default=8, ge=1)
    seed: int = 0
    points: int = Field(default=12, ge=2)
    truth_points: int = Field(default=111, ge=2)
    places: int = Field(default=21, ge=2)


class SamplingConfig(Config):
    """Which points of the grid are observed: those of each `every`-th time, or `count` of these, drawn anew each time.

    The points of a field are those of its whole lattice, in time and space. The first time of an ODE is always drawn.
    """

    every: int = Field(default=1, ge=1)
    count: int | None = Field(default=None, ge=2)


class GapsConfig(Config):
    """Stretches of time without any observation: how many an instance has, and how long they are, both on average."""

    number: PositiveFloat
    length: PositiveFloat


class GenerateRunConfig(WorkConfig):
    """dir: the store. block: instances that are drawn together, and make one shard of it."""

    dir: Path | None = None
    block: int = Field(default=256, ge=1)


class GenerateConfig(DrawnConfig):
    """`distlfm generate`: parameters and forces from the priors, solved forward, into a store.

    Solution and force are kept at `points` even times from `start` to `stop`, and those of a field at `places`
    positions per dimension. num_outputs: how many outputs a mechanism that leaves it open has.
    noise: a standard deviation (0 is none) in place of the likelihood's prior. missing: the share of values left out.
    units: of `time`, of `value` (all outputs) and `position` (all axes), as `data.units` has them; or of `x`, `y`, `z`,
    outputs, forces and parameters by their names, such as `decay` for all of its elements or `decay[p21]` for one.
    """

    verb: Literal["generate"] = "generate"
    title: str = ""
    instances: int = Field(default=1000, ge=1)
    seed: int = Field(default=0, ge=0)
    points: int = Field(default=111, ge=2)
    places: int = Field(default=41, ge=2)
    sampling: SamplingConfig = SamplingConfig()
    noise: NonNegativeFloat | None = None
    gaps: GapsConfig | None = None
    units: Mapping[str, str] = {}
    run: GenerateRunConfig = GenerateRunConfig()

    @model_validator(mode="after")
    def _possible(self) -> GenerateConfig:
        if len(range(0, self.points, self.sampling.every)) < 2:
            raise ValueError(f"sampling.every ({self.sampling.every}) leaves one of {self.points} times; leave two")
        return self

    def work(self) -> GenerateConfig:
        """The same without what changes no number: where the store is, how it is cut, and who computes."""
        return self.model_copy(update={"run": GenerateRunConfig(), "plugins": self.named_plugins()})


class AskConfig(Config):
    """dir: where answers go. batch: instances answered at once. threads: of the tensor operations."""

    dir: Path | None = None
    batch: int = Field(default=256, ge=1)
    threads: int = Field(default=1, ge=1)


class QueryConfig(WithPlugins):
    """`distlfm query`.

    checkpoint: of a trained operator, or the folder of its training run. outputs: names of outputs in the data, and
    what the operator calls them, where that differs. plot: pictures and a report too. plugins: modules to import
    first, which register the equation that the operator learned, where that is your own.
    """

    verb: Literal["query"] = "query"
    checkpoint: Path
    data: DataConfig = DataConfig()
    outputs: Mapping[str, str] = {}
    plot: bool = False
    run: AskConfig = AskConfig()

    def work(self) -> QueryConfig:
        """The same without what changes no number: places, batches and pictures."""
        data = self.data.model_copy(update={"path": None})
        return QueryConfig(checkpoint=Path(self.checkpoint.name), data=data, outputs=self.outputs)


class EvaluateConfig(WithPlugins):
    """`distlfm evaluate`.

    store: generated or fitted instances. part: `held_out` leaves out what the operator learned from, where the store is
    one of those it was trained on; `all` takes everything. limit: most instances, evenly spaced; none is all.
    plugins: as of a query.
    """

    verb: Literal["evaluate"] = "evaluate"
    checkpoint: Path
    store: Path
    part: Literal["held_out", "all"] = "held_out"
    limit: int | None = Field(default=None, ge=1)
    run: AskConfig = AskConfig()

    def work(self) -> EvaluateConfig:
        """The same without what changes no number."""
        places = {"checkpoint": Path(self.checkpoint.name), "store": Path(self.store.name), "run": AskConfig()}
        return self.model_copy(update=places)


class ServeConfig(WithPlugins):
    """`distlfm serve`.

    data: what the page lists; its columns hold for files that are dropped on the page too. outputs: names of outputs
    in the data, and what the operator calls them. fit: a config of `distlfm fit` for the comparison; without one, the
    operator's equation with the priors of what it learned from, as far as its checkpoint has them. token_file: of the
    token that opens the page; a new one each time if null. no_token: opens it to every account of this machine. names:
    by which, besides addresses, a browser may call this machine. max_megabytes: of a dropped file, also once it is
    unpacked. threads: of the tensor operations. plugins: modules to import first, which register the operator's
    equation.
    """

    verb: Literal["serve"] = "serve"
    checkpoint: Path
    data: DataConfig = DataConfig()
    outputs: Mapping[str, str] = {}
    fit: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    token_file: Path | None = None
    no_token: bool = False
    expose_unencrypted: bool = False
    names: tuple[str, ...] = ()
    max_megabytes: float = Field(default=50.0, gt=0)
    threads: int = Field(default=1, ge=1)

    @property
    def address(self) -> str:
        """The host as an address."""
        return {"localhost": "127.0.0.1"}.get(self.host, self.host)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the page."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            cause = f"{self.address!r} is not an address."
            raise UsageError(cause, "Give one of this machine, such as 127.0.0.1.") from None
