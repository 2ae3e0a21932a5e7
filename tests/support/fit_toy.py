"""A small model of three genes, instances of it, and settings that fit them quickly."""

from __future__ import annotations

from typing import Any

import numpy as np

from distlfm.gp.kernels import KernelConfig
from distlfm.inference.fit import InferenceConfig
from distlfm.inference.model import ForceConfig, Model
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.simulation.instances import simulate

GENES = ("a", "b", "c")
MECHANISM = {"kind": "transcription", "outputs": GENES, "fixed": {"sensitivity": {"a": 1.0}}}
QUICK: dict[str, Any] = {
    "posterior": {"stages": [8, 10], "draws": 8},
    "optimiser": {"rounds": 2},
    "variational": {"iterations": 5, "draws": 8, "num_inducing": 6, "samples": 2, "features": 16},
    "grid_points": 9,
}


def quick(**options: Any) -> InferenceConfig:
    content = {**QUICK, **options}
    if content.get("method") == "variational":
        del content["posterior"]
    return InferenceConfig.model_validate(content)


def make_model(kernel: KernelConfig | None = None, **mechanism: Any) -> Model:
    force = ForceConfig(kernel=kernel or KernelConfig())
    return Model(build_mechanism({**MECHANISM, **mechanism}), force, LikelihoodConfig())


def make_instances(count: int, **options: Any) -> list[Instance]:
    times, truth_times = np.linspace(0, 8, 8).tolist(), np.linspace(0, 8, 17).tolist()
    return simulate(make_model(), num_instances=count, times=times, truth_times=truth_times, seed=1, **options)
