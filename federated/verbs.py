"""The verbs of a federation that have a config."""

from __future__ import annotations

from distlfm.config import Config
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.simulate_settings import FederatedConfig

VERBS: dict[str, type[Config]] = {"federated": FederatedConfig, "programme": ProgrammeConfig}
