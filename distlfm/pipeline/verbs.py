"""Every verb that has a config, and how a file is read whose verb is not known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distlfm.config import Config, apply_overrides, build, read_yaml
from distlfm.errors import UsageError
from distlfm.mechanisms import known_systems
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.settings import FitConfig, SimulateConfig
from distlfm.pipeline.train_settings import TrainConfig
from distlfm.pipeline.tune_settings import TuneConfig

Verbs = Mapping[str, type[Config]]
VERBS: dict[str, type[Config]] = {
    "fit": FitConfig,
    "generate": GenerateConfig,
    "simulate": SimulateConfig,
    "train": TrainConfig,
    "tune": TuneConfig,
}


def load_any(path: Path, overrides: Sequence[str] = (), verbs: Verbs = VERBS) -> Config:
    """Read the config of whatever verb it names, of those that there are."""
    content = apply_overrides(read_yaml(path), overrides)
    return build(_model_of(str(content.get("verb", "fit")), verbs), content, source=str(path))


def schema_of(verb: str, verbs: Verbs = VERBS) -> dict[str, Any]:
    """JSON schema of a verb's config; the mechanism's part lists every registered mechanism."""
    schema = _model_of(verb, verbs).model_json_schema()
    if "mechanism" in schema.get("properties", {}):
        kinds = []
        for kind, mechanism in sorted(known_systems().items()):
            part = mechanism.Options.model_json_schema(ref_template=f"#/$defs/{kind}/$defs/{{model}}")
            part["properties"]["kind"] = {"const": kind}
            schema.setdefault("$defs", {})[kind] = part
            kinds.append({"$ref": f"#/$defs/{kind}"})
        schema["properties"]["mechanism"] = {"anyOf": kinds}
    return schema


def _model_of(verb: str, verbs: Verbs) -> type[Config]:
    if verb not in verbs:
        raise UsageError(f"There is no verb {verb!r} with a config.", f"Known are: {', '.join(verbs)}.")
    return verbs[verb]
