"""What lies beyond the data: the same whatever else is asked, and as wide as it must be."""

from __future__ import annotations

import numpy as np
import pytest

from distlfm.config import build
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.mechanisms import build_mechanism
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import MODEL


@pytest.fixture(scope="module")
def toy() -> tuple[Model, list]:
    config = build(SimulateConfig, {**MODEL, "instances": 2, "num_outputs": 2})
    model = Model(build_mechanism(config.mechanism, ["output_0", "output_1"]), config.force, config.likelihood)
    return model, simulate_from(config)


@pytest.mark.parametrize("method", ["collapsed", "exact", "nested", "variational"])
def test_a_far_time_alone_is_the_same_as_among_many(toy: tuple[Model, list], method: str) -> None:
    model, instances = toy
    own = {"variational": {"iterations": 3}} if method == "variational" else {}
    settings = own or {"posterior": {"method": "laplace", "draws": 8}}
    options = build(InferenceConfig, {"method": method, **settings})
    result = fit_instances(model, instances[:1], options)[0]
    far = 20.0
    alone = result.predict([far])
    among = result.predict(np.linspace(0, far, 90))
    for name in ("mean", "sd"):
        for kind in ("force", "outputs"):
            one, many = getattr(getattr(alone, kind), name)[:, -1], getattr(getattr(among, kind), name)[:, -1]
            np.testing.assert_allclose(one, many, rtol=2e-3, atol=2e-3)


def test_far_beyond_the_data_the_quadrature_agrees_with_the_closed_form(toy: tuple[Model, list]) -> None:
    model, instances = toy
    settings = {"posterior": {"method": "point"}}
    bands = [
        fit_instances(model, instances, build(InferenceConfig, {"method": method, **settings}))[1].predict([40.0, 80.0])
        for method in ("collapsed", "exact")
    ]
    np.testing.assert_allclose(bands[0].outputs.sd, bands[1].outputs.sd, rtol=0.02)
    assert (bands[0].outputs.sd > 0.05).all()
