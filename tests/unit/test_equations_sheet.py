"""`distlfm config equations`: what somebody needs to write the config of an equation, from the equation itself."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from distlfm.cli import main
from distlfm.config import build
from distlfm.equations import EQUATIONS
from distlfm.mechanisms import REGISTRY, known_systems
from distlfm.mechanisms.priors import Prior
from distlfm.runs.settings import FitConfig
from distlfm.verbs.config import describe_equation, list_equations

SHIPPED = sorted(kind for kind, one in {**EQUATIONS, **REGISTRY}.items() if one.__module__.startswith("distlfm."))
FITTED = ("cascade", "glucose", "linear_ode", "transcription")
LONGER = ("lotka_volterra", "reaction_diffusion")
"""Nonlinear, and in space; those that take longer still go the same ways."""

PLUGIN = '''
from distlfm.instance import TIME
from distlfm.mechanisms import Mechanism, Parameter, register, zero_state
from distlfm.mechanisms.priors import LogNormal

@register("sheet_pair")
class Pair(Mechanism):
    """ẏ₁ = f − k y₁, ẏ₂ = y₁ − k y₂."""

    def __init__(self, options):
        super().__init__(options)
        if len(self.outputs) != 2:
            from distlfm.errors import UsageError
            raise UsageError("sheet_pair has two outputs.", "Name two.")

    def parameters(self):
        return [Parameter("leak", ("k",), LogNormal(median=0.5), positive=True, dimension=TIME**-1, meaning="k, lost")]

    def vector_field(self, t, y, f, values):
        return f - values["leak"] * y

    def initial_state(self, values):
        return zero_state(values, 2)
'''


def test_every_equation_is_listed_with_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(list_equations()) == set(known_systems())
    assert main(["config", "equations"]) == 0
    shown = capsys.readouterr().out
    for kind in SHIPPED:
        assert re.search(rf"^{kind} +\S.* = ", shown, re.MULTILINE), kind
    assert main(["config", "equations", "--json"]) == 0
    assert set(SHIPPED) <= set(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_sheet_says_of_every_parameter_what_it_is_and_a_prior_that_can_be_written(kind: str) -> None:
    sheet = describe_equation(kind)
    assert sheet.parameters
    for one in (*sheet.parameters, *sheet.others):
        assert one.meaning, one.name
        assert one.unit, one.name
        content = yaml.safe_load(one.prior)
        assert TypeAdapter(Prior).validate_python(content).model_dump(mode="json") == content
    mine = {one.name: yaml.safe_load(one.prior) for one in sheet.parameters}
    others = {one.key.rpartition(".")[2]: yaml.safe_load(one.prior) for one in sheet.others if "force" in one.key}
    build(FitConfig, {"mechanism": {"kind": kind, "priors": mine}, "force": {"priors": others}})
    assert [key.name for key in sheet.options if key.default == "must be given"] == []


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_config_of_a_sheet_is_one_as_it_stands_and_with_what_it_shows_behind_a_hash(kind: str) -> None:
    text = describe_equation(kind).config
    assert build(FitConfig, yaml.safe_load(text)) == build(FitConfig, {"mechanism": {"kind": kind}})
    shown = build(FitConfig, yaml.safe_load(text.replace("  # ", "  ", 2)))
    assert shown.mechanism["priors"].keys() == shown.mechanism["fixed"].keys()


@pytest.mark.parametrize("kind", [*FITTED, *(pytest.param(kind, marks=pytest.mark.slow) for kind in LONGER)])
def test_the_pasted_config_fits_the_data_of_the_sheets_command(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config", "equations", kind]) == 0
    shown = capsys.readouterr().out
    _, _, pasted = shown.partition(f"A config, {kind}.yaml:\n\n")
    Path(f"{kind}.yaml").write_text(pasted.partition("\nFit it: ")[0])
    (command,) = re.findall(r"^Data to try it on: distlfm (.*)$", shown, re.MULTILINE)
    small = ["points=6", "places=6", "num_outputs=1", "stop=2"] if kind in EQUATIONS else ["num_outputs=1"]
    assert main([*shlex.split(command), *small]) == 0
    assert main(["fit", f"{kind}.yaml", "--data", f"{kind}.npz", "--executor", "serial"]) == 0
    said = capsys.readouterr()
    assert "converged" in said.out
    assert "warning: The default prior" not in said.out + said.err


def test_units_are_those_of_the_priors_where_these_have_some_and_the_datas_elsewhere() -> None:
    units = {one.name: one.unit for one in describe_equation("glucose").parameters}
    assert units == {"return_rate": "1/min", "base_level": "mg/dL", "initial": "mg/dL"}
    units = {one.name: one.unit for one in describe_equation("transcription").parameters}
    assert units == {"basal": "value/time", "sensitivity": "pure number", "decay": "1/time"}
    assert {one.unit for one in describe_equation("reaction_diffusion").parameters} >= {"position²/time"}


def test_options_change_which_parameters_there_are_and_stand_in_the_config() -> None:
    sheet = describe_equation("transcription", ["response.kind=hill", "mechanism.initial=free"])
    assert {"hill_weight", "hill_bias", "initial"} <= {one.name for one in sheet.parameters}
    built = build(FitConfig, yaml.safe_load(sheet.config))
    assert built.mechanism == {"kind": "transcription", "response": {"kind": "hill"}, "initial": "free"}
    assert "mechanism.initial=free" in shlex.split(sheet.simulate)
    keys = {one.key for one in describe_equation("transcription", ["force.kernel.kind=periodic"]).others}
    assert "force.priors.period_length" in keys


def test_a_default_is_that_of_the_equation_and_not_that_of_the_section() -> None:
    defaults = {key.name: key.default for key in describe_equation("lotka_volterra").options}
    assert defaults["mechanism.response.kind"] == "softplus"
    defaults = {key.name: key.default for key in describe_equation("transcription").options}
    assert defaults["mechanism.response.kind"] == "identity"
    fields = {key.name: key.default for key in describe_equation("fisher_kpp").options}
    assert fields["mechanism.boundary.NAME.kind"] == "neumann"
    assert yaml.safe_load(fields["mechanism.initial.scale"])["kind"] == "lognormal"


def test_an_equation_of_ones_own_is_shown_as_those_that_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sheet_plugin.py").write_text(PLUGIN)
    try:
        assert main(["config", "equations", "--plugin", "sheet_plugin"]) == 0
        assert "sheet_pair" in capsys.readouterr().out
        assert main(["config", "equations", "sheet_pair", "--plugin", "sheet_plugin", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
    finally:
        REGISTRY.pop("sheet_pair", None)
    assert shown["text"] == "ẏ₁ = f − k y₁, ẏ₂ = y₁ − k y₂."
    assert shown["outputs"].startswith("2, named as in the data")
    (leak,) = shown["parameters"]
    assert (leak["name"], leak["elements"], leak["meaning"], leak["unit"]) == ("leak", "k", "k, lost", "1/time")
    assert yaml.safe_load(shown["config"])["plugins"] == ["sheet_plugin"]
    assert "--plugin sheet_plugin" in shown["simulate"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (["transcripton"], "There is no mechanism 'transcripton'. Did you mean 'transcription'?"),
        (["transcription", "mechanism.inital=free"], "Unknown key 'mechanism.inital'. Did you mean"),
        (["linear_ode", "outputs=[a, b]"], "linear_ode has one output, and 2 were given: a, b."),
    ],
)
def test_what_there_is_not_is_told_in_a_sentence(
    call: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "equations", *call]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
