"""The configs of a federation: what a round asks, how rounds are joined, and what a site keeps to itself.

`FederatedConfig` is that of `distlfm federated simulate`: sites on one machine, and what is compared with what.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from distlfm.config import Config, load


class SharedNoise(Config):
    """Noise that the sites bring together, so that a round's sum has it once; all sites must mean the same.

    Each patient's own update is cut to `clip`; their sum over all sites has noise of `multiplier` times that.
    sample: probability with which a patient takes part in a round. lost: of how many sites the noise may be missing,
    because they drop out or help the server.
    """

    multiplier: PositiveFloat
    clip: PositiveFloat = 1.0
    sample: float = Field(default=1.0, gt=0.0, le=1.0)
    lost: int = Field(default=1, ge=0)


class RoundTask(Config):
    """What one round asks of a site. How much privacy that may cost is not part of it: that is the site's own.

    kind: `pairs` learns from the site's fits; `physics` needs none, as the prediction, solved forward, must give what
    was observed. steps: of `batch` windows each; batch 0 takes all of them. mu: weight of FedProx's proximal term.
    clip: the longest gradient of a step, for stability; it protects nobody.
    adapter: only few weights at the end of the network are tuned, which differential privacy can bear (`tuning.py`).
    shared: patterns of the weights that travel. local: of those that are tuned and stay at the site (its own heads);
    a site refuses what its policy does not name. noise: for sites whose mechanism of privacy is `shared`.
    decay: what `lr` and `noise.clip` of a round are in units of those of the round before.
    seed: of the batches of a simulation; a real site draws its own.
    """

    kind: Literal["pairs", "physics"] = "pairs"
    steps: int = Field(default=20, ge=1)
    batch: int = Field(default=32, ge=0)
    optimiser: Literal["sgd", "adam"] = "adam"
    lr: PositiveFloat = 5e-4
    decay: float = Field(default=1.0, gt=0.0, le=1.0)
    beta: float = Field(default=0.5, ge=0.0, le=1.0)
    mu: NonNegativeFloat = 0.0
    seed: int = Field(default=0, ge=0)
    adapter: Literal["none", "head", "shift"] = "none"
    clip: PositiveFloat | None = 1.0
    noise: SharedNoise | None = None
    shared: tuple[str, ...] = ("*",)
    local: tuple[str, ...] = ()


class FedAvgConfig(Config):
    """The weighted mean of the sites' models is the next one."""

    kind: Literal["fedavg"] = "fedavg"


class FedProxConfig(Config):
    """FedAvg, and sites pay mu / 2 · ‖w − w_global‖² for leaving the common model (Li et al. 2020)."""

    kind: Literal["fedprox"] = "fedprox"
    mu: PositiveFloat = 0.01


class FedAdamConfig(Config):
    """Adam at the server, on the mean update (Reddi et al. 2021)."""

    kind: Literal["fedadam"] = "fedadam"
    lr: PositiveFloat = 1e-3
    beta_1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta_2: float = Field(default=0.99, ge=0.0, lt=1.0)
    tau: PositiveFloat = 1e-3


StrategyConfig = Annotated[FedAvgConfig | FedProxConfig | FedAdamConfig, Field(discriminator="kind")]


class ProgrammeConfig(Config):
    """What whoever starts a run asks for: rounds of tuning, or one question.

    operator: the checkpoint that all begin with, on the coordinator's machine; sites have their own copy of it.
    min_sites: fewer, at the start or at the end of a round, make no model. deadline: seconds that a round may take,
    waiting for sites and measuring among them. lost: rounds in a row that may fail before the run gives up.
    evaluate: whether each round's model is measured on patients that nobody learns from, and the best one kept, which
    may be the operator as it was; else the last one is. A model for which not all sites answered is not measured, and
    not kept either, unless no model was.
    most_examples: the most that a site may count for; if nothing is said 1, as sites count alike unless their policies
    say otherwise, and 1000 where noise is shared, as patients count then. largest_update: longest mean update of a
    round, in units of the length of all weights of the operator. What is beyond these is lost.
    question: of `query`: `model` (how good the model is) or `cohort` (what the patients are like).
    """

    verb: Literal["programme"] = "programme"
    kind: Literal["rounds", "query"] = "rounds"
    operator: Path | None = None
    rounds: int = Field(default=5, ge=1)
    most_examples: int | None = Field(default=None, ge=1)
    largest_update: PositiveFloat = 3.0
    strategy: StrategyConfig = FedAvgConfig()
    task: RoundTask = RoundTask()
    evaluate: bool = True
    min_sites: int = Field(default=3, ge=2)
    deadline: PositiveFloat = 600.0
    lost: int = Field(default=3, ge=0)
    question: Literal["", "model", "cohort"] = ""

    @model_validator(mode="after")
    def _asks(self) -> ProgrammeConfig:
        if self.kind == "query" and not self.question:
            raise ValueError("question: say what is asked")
        return self

    def most_claimed(self, kind: str) -> int:
        """What a site may count for in a message of this kind."""
        if self.most_examples is not None:
            return self.most_examples
        return 1000 if kind == "train" and self.task.noise is not None else 1

    def work(self) -> ProgrammeConfig:
        """What the weights of a round follow from: the same without how long, how many rounds, and who asks."""
        return ProgrammeConfig(strategy=self.strategy, task=self.task)

    def round_task(self, number: int) -> RoundTask:
        """The task of a round: FedProx's weight is the strategy's, each round draws other batches, and steps decay."""
        task, noise = self.task, self.task.noise
        mu = self.strategy.mu if isinstance(self.strategy, FedProxConfig) else task.mu
        factor = task.decay ** (number - 1)
        if noise is not None:
            noise = noise.model_copy(update={"clip": noise.clip * factor})
        return task.model_copy(update={"mu": mu, "seed": task.seed + number, "lr": task.lr * factor, "noise": noise})


class PrivacyConfig(Config):
    """Differential privacy of a site; the unit is a patient with all windows.

    epsilon, delta: all that may ever be spent. mechanism: `patients` clips and noises each patient's gradient in each
    step, and tunes an adapter; `update` clips the whole update of a round to `clip` and noises that; `shared` clips
    each patient's update of a round, and the sites bring the noise together, as the task's `noise` says.
    noise: standard deviation of the noise, in units of `clip`. sample: share of the patients that a step sees.
    bound: most that a patient's figure counts in a question; figures: noise of these, in units of the bound.
    patients: by how many the site counts and divides, in place of how many it has; null makes that number public.
    """

    epsilon: PositiveFloat
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0)
    mechanism: Literal["patients", "update", "shared"] = "patients"
    noise: PositiveFloat = 2.0
    clip: PositiveFloat = 1.0
    sample: float = Field(default=0.5, gt=0.0, le=1.0)
    bound: PositiveFloat = 10.0
    figures: PositiveFloat = 20.0
    patients: int | None = Field(default=None, ge=1)


class SiteConfig(Config):
    """A site's own settings, in its site.yaml; no message changes them.

    fit: the content of a config of `distlfm fit`, whose data section says where the patients' records are; or `store`:
    pairs that are there already. windows, patients: the most that are taken of a patient, and of these.
    test: share of the patients that are never learned from, but measure the model. choose: share of those that decide,
    together with the other sites', which round's model is kept. seed: of these choices. batch_seed: makes the batches
    of a simulated site repeatable; null draws them from the system's random source, as a real site must.
    """

    name: str
    fit: dict[str, Any] | None = None
    store: Path | None = None
    windows: int | None = Field(default=None, ge=1)
    patients: int | None = Field(default=None, ge=1)
    test: float = Field(default=0.3, ge=0.0, lt=1.0)
    choose: float = Field(default=0.2, ge=0.0, lt=1.0)
    seed: int = 0
    batch_seed: int | None = None
    threads: int = Field(default=1, ge=1)
    privacy: PrivacyConfig | None = None

    @model_validator(mode="after")
    def _has_patients(self) -> SiteConfig:
        if self.fit is None and self.store is None:
            raise ValueError(
                "Neither fit nor store is filled in. Fill in the lines from `fit:` on and take their # away, or the "
                "line `store:`; docs/federation.md (Setting up) has an example of fit to copy"
            )
        if self.fit is not None and self.store is not None:
            raise ValueError("Both fit and store are filled in. Leave one of them out")
        return self


class BaseConfig(Config):
    """The operator that all begin with: a checkpoint, or one learned from generated instances, of which no patient
    is. generate, train: configs of these verbs; paths count from the config's own folder. The lists are overrides.
    """

    operator: Path | None = None
    generate: Path | None = None
    generate_with: tuple[str, ...] = ()
    train: Path | None = None
    train_with: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_way(self) -> BaseConfig:
        if (self.operator is None) == (self.generate is None or self.train is None):
            raise ValueError("give either operator, or both generate and train")
        return self


class SimulatedSite(Config):
    """A site. dataset: a reference set, where it is there, whose patients are fitted with the config `fit`.

    generate_with: overrides of the base's `generate`, which make the patients where there is no dataset; each of these
    has one window, whose force is known.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    dataset: str | None = None
    generate_with: tuple[str, ...] = ()


class SimulateRunConfig(Config):
    """dir: where all is kept. threads: of the tensor operations."""

    dir: Path | None = None
    threads: int = Field(default=1, ge=1)


class FederatedConfig(Config):
    """`distlfm federated simulate`.

    data: `auto` takes the sites' datasets if all are there, else generated patients; `generated` takes these anyway.
    fit, fit_with: how patients of datasets are fitted. windows, patients: the most of a patient, and of a site.
    test: share of each site's patients that measure; choose: of those that decide which round is kept.
    personal: steps by which each site tunes the common model further for itself; 0 for none. privacy: a budget for each
    site; masking alone if null.
    """

    verb: Literal["federated"] = "federated"
    title: str = ""
    base: BaseConfig
    sites: tuple[SimulatedSite, ...] = Field(min_length=2)
    data: Literal["auto", "generated"] = "auto"
    fit: Path | None = None
    fit_with: tuple[str, ...] = ()
    windows: int | None = Field(default=None, ge=1)
    patients: int | None = Field(default=None, ge=1)
    test: float = Field(default=0.3, gt=0.0, lt=1.0)
    choose: float = Field(default=0.2, gt=0.0, lt=1.0)
    programme: ProgrammeConfig = ProgrammeConfig()
    personal: int = Field(default=10, ge=0)
    privacy: PrivacyConfig | None = None
    seed: int = Field(default=0, ge=0)
    run: SimulateRunConfig = SimulateRunConfig()

    @model_validator(mode="after")
    def _distinct(self) -> FederatedConfig:
        if len({site.name for site in self.sites}) != len(self.sites):
            raise ValueError("two sites have the same name")
        if self.programme.min_sites > len(self.sites):
            raise ValueError(
                f"programme.min_sites is {self.programme.min_sites}, and there are {len(self.sites)} sites"
            )
        return self

    def work(self) -> FederatedConfig:
        """The same without what changes no number."""
        return self.model_copy(update={"run": SimulateRunConfig(), "title": ""})


def read_config(path: Path, overrides: tuple[str, ...] = ()) -> FederatedConfig:
    """The config of a file, with the paths in it made absolute."""
    config, folder = load(FederatedConfig, path, overrides), path.resolve().parent
    given = {name: getattr(config.base, name) for name in ("operator", "generate", "train")}
    base = config.base.model_copy(update={name: folder / one for name, one in given.items() if one is not None})
    fit = None if config.fit is None else folder / config.fit
    return config.model_copy(update={"base": base, "fit": fit})


VERBS: dict[str, type[Config]] = {"federated": FederatedConfig, "programme": ProgrammeConfig}
