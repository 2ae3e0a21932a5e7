"""The config of `distlfm federated simulate`: sites on one machine, and what is compared with what."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from distlfm.config import Config, load
from distlfm.federated.settings import PrivacyConfig, ProgrammeConfig


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
    config = load(FederatedConfig, path, overrides)
    folder = path.resolve().parent

    def placed(one: Path | None) -> Path | None:
        return None if one is None else folder / one

    base = config.base.model_copy(
        update={name: placed(getattr(config.base, name)) for name in ("operator", "generate", "train")}
    )
    return config.model_copy(update={"base": base, "fit": placed(config.fit)})
