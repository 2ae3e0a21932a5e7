"""Configs of `distlfm generate`: what they take, what they refuse, and by what a store is known as theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from distlfm.config import build, dump, fingerprint, load
from distlfm.errors import UsageError
from distlfm.runs.settings import GenerateConfig
from distlfm.simulation.block import open_draws, store_spec
from distlfm.verbs.generate import generate

SHIPPED = sorted((Path(__file__).parents[2] / "configs" / "generate").glob("*.yaml"))
GENES = {"mechanism": {"kind": "transcription"}, "num_outputs": 2, "instances": 4, "points": 12}


def make(**more: Any) -> GenerateConfig:
    return build(GenerateConfig, {**GENES, **more})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_config_survives_saving_and_states_its_units(path: Path) -> None:
    config = load(GenerateConfig, path)
    assert build(GenerateConfig, yaml.safe_load(dump(config))) == config
    assert "time" in config.units


def test_there_are_configs_for_genes_fields_and_glucose() -> None:
    assert {path.stem for path in SHIPPED} >= {"transcription", "reaction_diffusion", "glucose"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"stop": 0.0}, "must be after start"),
        ({"missing": 1.0}, "less than 1"),
        ({"noise": -0.1}, "'noise'"),
        ({"sampling": {"every": 11, "count": 1}}, "'sampling.count'"),
        ({"sampling": {"every": 12}}, r"sampling\.every \(12\)"),
        ({"gaps": {"number": 2}}, "'gaps.length' is not set"),
        ({"instances": 0}, "'instances'"),
        ({"run": {"blok": 5}}, "Did you mean 'run.block'"),
        ({"mechanism": {"kind": "transcription", "priors": {"decai": {"kind": "normal"}}}}, "decai"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"units": {"decai[output_1]": "1/h"}}, r"'decai\[output_1\]'.*Did you mean 'decay\[output_1\]'"),
        ({"sampling": {"count": 13}}, "sampling.count is 13, and there are 12 points"),
        ({"noise": 0.1, "likelihood": {"kind": "poisson"}}, "a poisson likelihood has none"),
        ({"likelihood": {"noise": "given"}}, r"likelihood\.noise=learned"),
        ({"mechanism": {"kind": "reaction_diffusion", "start": 1.0}}, r"mechanism\.start is 1"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_drawn(wrong: dict[str, Any], said: str) -> None:
    config = make(**wrong)
    with pytest.raises(UsageError, match=said):
        store_spec(config, open_draws(config))


def test_a_store_needs_a_place() -> None:
    with pytest.raises(UsageError, match="--out STORE"):
        generate(make())


def test_the_hash_is_that_of_the_numbers() -> None:
    before = fingerprint(make().work())
    assert fingerprint(make(run={"dir": "/elsewhere", "block": 3, "threads": 2}).work()) == before
    assert fingerprint(make(seed=1).work()) != before


def test_the_spec_holds_all_parameters_the_grid_and_the_units() -> None:
    fixed = {"sensitivity": {"output_0": 1.0}}
    config = make(
        mechanism={"kind": "transcription", "fixed": fixed},
        units={"time": "h", "output_1": "nM", "decay[output_0]": "1/d", "decay": "1/h"},
        sampling={"every": 3},
        run={"block": 3},
    )
    spec = store_spec(config, open_draws(config))
    assert spec.kind == "generate"
    assert (spec.instances, spec.block, spec.num_blocks) == (4, 3, 2)
    assert spec.times is not None
    assert (spec.steps, spec.times[0], spec.times[-1], spec.samples) == (12, 0.0, 11.0, 4)
    assert "sensitivity[output_0]" in spec.parameters
    assert dict(zip(spec.parameters, spec.parameter_kinds, strict=True))["force.lengthscale"] == "kernel"
    stated = {"time": "h", "output_1": "nM", "decay[output_0]": "1/d", "decay[output_1]": "1/h"}
    assert spec.units == {**stated, "force.lengthscale": "h"}  # the last one follows from the first
    assert build(GenerateConfig, spec.attributes["config"]) == config.work()


def test_units_are_stated_as_those_of_data_and_the_others_follow() -> None:
    mechanism = {"kind": "glucose"}
    config = make(mechanism=mechanism, num_outputs=1, units={"time": "h", "value": "mg/L", "noise": "g/L"})
    spec = store_spec(config, open_draws(config))
    assert spec.units[spec.outputs[0]] == "mg/L"
    assert spec.units[spec.forces[0]] == "mg/L/h"
    assert spec.units["return_rate"] == "1/h"
    assert spec.units["noise"] == "g/L"
