"""Units of forces and parameters follow from those of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from distlfm.config import read_yaml
from distlfm.gp.kernels import KernelConfig
from distlfm.inference.model import ForceConfig, Model
from distlfm.instance import NUMBER, POSITION, RATE, TIME, VALUE, Dimension, named
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import Mechanism, Parameter, build_system
from distlfm.mechanisms.base import MechanismConfig, zero_state
from distlfm.mechanisms.priors import LogNormal, Values
from distlfm.report.words import force_unit, parameter_units
from tests.support.result_factories import make_page, make_result

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("dimension", "units", "told"),
    [
        (RATE, {"value": "mg/dL", "time": "min"}, "mg/dL/min"),
        (RATE**2, {"value": "mg/dL", "time": "min"}, "(mg/dL/min)²"),
        (TIME**-1, {"time": "h"}, "1/h"),
        (TIME**-2, {"time": "h"}, "1/h²"),
        (VALUE, {"value": "counts per million"}, "counts per million"),
        (RATE, {"value": "counts per million", "time": "h"}, "(counts per million)/h"),
        (VALUE**2, {"value": "mg/dL"}, "(mg/dL)²"),
        (VALUE**-1, {"value": "mg/dL"}, "1/(mg/dL)"),
        (POSITION**2 / TIME, {"position": "mm", "time": "s"}, "mm²/s"),
        (RATE, {"value": "1", "time": "h"}, "1/h"),
        (VALUE, {"value": "1"}, None),
        (NUMBER, {"value": "mg/dL", "time": "min"}, None),
        (RATE, {"value": "mg/dL"}, None),
    ],
)
def test_a_dimension_in_the_units_of_the_data(dimension: Dimension, units: dict[str, str | None], told: str) -> None:
    assert dimension.unit(units) == told


SYSTEMS: list[dict[str, Any]] = [
    {"kind": "transcription", "outputs": ["a", "b"], "initial": "free"},
    {"kind": "transcription", "outputs": ["a", "b"], "response": {"kind": "exp"}},
    {"kind": "cascade", "outputs": ["a", "b"], "initial": "free"},
    {"kind": "glucose"},
    {"kind": "linear_ode", "order": 3, "free_start": True},
    {"kind": "nonparametric", "outputs": ["a", "b"]},
    {"kind": "lotka_volterra"},
]


@pytest.mark.parametrize("options", SYSTEMS, ids=lambda one: f"{one['kind']} {one.get('response', {}).get('kind', '')}")
def test_an_equation_holds_in_any_units(options: dict[str, Any]) -> None:
    """Values in other units give the same slopes in those: so the dimensions are those of the equation."""
    system = build_system(options)
    assert isinstance(system, Mechanism)
    value, time = 1.7, 0.6
    """How many new units an old one is."""

    def factor(dimension: Dimension | None) -> float:
        return 1.0 if dimension is None else value**dimension.value * time**dimension.time

    stream = torch.Generator().manual_seed(0)
    space = Model(system, ForceConfig(), LikelihoodConfig()).space
    old = space.unpack(torch.randn(4, space.num_free, generator=stream, dtype=torch.float64))
    if options["kind"] in ("cascade", "lotka_volterra"):  # what is not told is in the scale of the hidden state
        hidden = {"cascade": ("sensitivity", value / time), "lotka_volterra": ("growth", 1 / time)}
        name, by = hidden[options["kind"]]
        changed = {name: torch.full_like(old[name], by)}
    else:
        changed = {}
    new = {
        one.name: old[one.name]
        * changed.get(one.name, torch.tensor([factor(one.dimension_of(label)) for label in one.labels]))
        for one in space.parameters
    }
    t = torch.rand(4, generator=stream, dtype=torch.float64)
    y = torch.rand(4, system.num_states, generator=stream, dtype=torch.float64)
    f = torch.rand(4, len(system.force_names), generator=stream, dtype=torch.float64)
    states = torch.full((system.num_states,), value, dtype=torch.float64)
    force = factor(system.force_dimension)
    if options["kind"] == "linear_ode":
        states = states / time ** torch.arange(system.num_states)
    if options["kind"] == "cascade":
        states[0], force = 1.0, 1 / time
    slopes = system.vector_field(t, y, f, old)
    torch.testing.assert_close(system.vector_field(time * t, states * y, force * f, new), slopes * states / time)
    start = system.initial_state(old)
    torch.testing.assert_close(system.initial_state(new), start * states)


def test_units_are_those_that_a_shipped_config_writes_out() -> None:
    config = read_yaml(PROJECT / "configs" / "generate" / "glucose.yaml")
    model = Model(
        build_system(config["mechanism"]), ForceConfig(kernel=KernelConfig(kind="matern52")), LikelihoodConfig()
    )
    given = {"value": "mg/dL", "time": "min"}
    told = {one.name: one.dimension_of(one.labels[0]) for one in model.space.parameters}
    told["appearance"] = model.system.force_dimension
    found = {name: None if one is None else one.unit(given) for name, one in told.items()}
    written = {name: unit.replace("^2", "²") for name, unit in config["units"].items() if name in told}
    assert found == written


def test_a_field_has_a_lengthscale_in_time_and_in_space() -> None:
    system = build_system({"kind": "advection_diffusion", "mesh": {"kind": "rectangle"}, "initial": {"kind": "field"}})
    model = Model(system, ForceConfig(), LikelihoodConfig())
    given = {"value": "nM", "time": "h", "position": "mm"}
    units = {
        f"{one.name} {label}": dimension.unit(given)
        for one in model.space.parameters
        for label in one.labels
        if (dimension := one.dimension_of(label)) is not None
    }
    assert units["diffusion diffusion"] == "mm²/h"
    assert units["velocity_0 velocity_0"] == "mm/h"
    assert [units[f"force.lengthscale {label}"] for label in "txy"] == ["h", "mm", "mm"]
    assert (units["initial_lengthscale lengthscale"], units["initial_deviation deviation"]) == ("mm", "nM")
    assert (units["force.variance variance"], units["noise output"]) == ("(nM/h)²", "nM")


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        ({"kind": "periodic"}, {"force.variance", "force.period_length"}),
        ({"kind": "sum", "parts": [{"kind": "rbf"}, {"kind": "matern12"}]}, set()),
    ],
)
def test_only_what_is_sure_of_a_kernel_is_told(kernel: dict[str, Any], known: set[str]) -> None:
    system = build_system({"kind": "transcription", "outputs": ["a"]})
    model = Model(system, ForceConfig(kernel=KernelConfig.model_validate(kernel)), LikelihoodConfig())
    assert {one.name for one in model.space.parameters if one.kind == "kernel" and one.dimension} == known


class _Tank(Mechanism):
    def parameters(self) -> list[Parameter]:
        return [Parameter("leak", self.outputs, LogNormal(median=1.0, spread=1.0), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        return f - values["leak"] * y

    def initial_state(self, values: Values) -> Tensor:
        return zero_state(values, 1)


def test_an_equation_of_ones_own_need_not_say_anything() -> None:
    model = Model(_Tank(MechanismConfig(kind="tank", outputs=("level",))), ForceConfig(), LikelihoodConfig())
    told = {one.name: one.dimension_of(one.labels[0]) for one in model.space.parameters}
    assert told == {"leak": None, "force.lengthscale": TIME, "force.variance": None, "noise": VALUE}
    assert model.system.force_dimension is None


def test_a_report_has_units_of_force_and_parameters_where_the_data_have_theirs() -> None:
    result = make_result(num_outputs=2, metadata={"time_unit": "h", "value_unit": "nM"})
    assert force_unit(result) == "nM/h"
    units = parameter_units(result)
    decays = {unit for name, unit in units.items() if name.startswith("decay")}
    assert decays == {"1/h"}
    assert not any(name.startswith("sensitivity") for name in units)
    nothing = make_result(num_outputs=2, metadata={})
    assert (force_unit(nothing), parameter_units(nothing)) == (None, {})


def test_the_table_of_parameters_has_a_column_of_units_if_there_are_any(tmp_path: Path) -> None:
    pages = []
    for name, metadata in (("with", {"time_unit": "h", "value_unit": "nM"}), ("without", {})):
        result = make_result(num_outputs=2, metadata=metadata)
        pages.append(make_page(tmp_path / f"{name}.html", [result]).read_text(encoding="utf-8"))
    assert [">unit<" in page for page in pages] == [True, False]
    assert ">1/h<" in pages[0]


def test_units_that_data_do_not_have_are_named() -> None:
    units = {"time": "h", "value": "mg/L"}
    dose = named("mg") / TIME
    assert dose.unit(units) == "mg/h"
    assert (dose**2).unit(units) == "(mg/h)²"
    assert named("L").unit({}) == "L"
    assert (VALUE * named("L") / TIME).unit(units) == "mg/L·L/h"
    assert named("L") / named("L") == NUMBER
    assert named("L") * named("kg") == named("kg") * named("L")
    assert dose.unit({}) is None
