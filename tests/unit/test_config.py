"""Configs: what is read, overridden and refused, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from distlfm.config import Config, apply_overrides, build, dotted_keys, dump, fingerprint, load, nearest, read_yaml
from distlfm.errors import UsageError
from distlfm.federated.settings import VERBS as FEDERATED
from distlfm.verbs.config import VERBS as MAIN
from distlfm.verbs.config import load_any, schema_of

VERBS = {**MAIN, **FEDERATED}
PROJECT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((PROJECT / "configs").rglob("*.yaml"))


class Step(Config):
    rate: float = Field(default=0.1, gt=0)
    rule: Literal["adam", "newton"] = "adam"


class Run(Config):
    seed: int = 0
    dir: Path | None = None


class Job(Config):
    name: str
    run: Run = Run()
    step: Step | None = None
    parts: tuple[str, ...] = ()


def refusal(content: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        build(Job, content, source="job.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value)


def written(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# ---- unknown keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "unknown", "meant"),
    [
        ({"nmae": "x"}, "nmae", "name"),
        ({"run": {"sed": 1}}, "run.sed", "run.seed"),
        ({"step": {"ratee": 1.0}}, "step.ratee", "step.rate"),
        ({"seed": 1}, "seed", "run.seed"),  # the right name in the wrong place
        ({"rules": "adam"}, "rules", "step.rule"),  # neither the right name nor the right place
    ],
)
def test_unknown_key_is_refused_with_the_key_that_was_meant(content: dict[str, Any], unknown: str, meant: str) -> None:
    text = refusal({"name": "x"} | content)
    assert text.startswith(f"job.yaml: Unknown key '{unknown}'. Did you mean '{meant}'")


def test_key_like_no_other_lists_what_there_is() -> None:
    assert "Known are: name, parts, run, step." in refusal({"name": "x", "zzzzzz": 1})


def test_every_fault_of_a_file_is_told_at_once() -> None:
    text = refusal({"run": {"sed": 1}, "step": {"rate": -1}})
    assert "'name' is not set" in text
    assert "'run.sed'" in text
    assert "'step.rate' should be greater than 0, not -1" in text


def test_value_of_the_wrong_kind_names_what_is_allowed() -> None:
    assert "'step.rule' should be 'adam' or 'newton', not 'adma'" in refusal({"name": "x", "step": {"rule": "adma"}})
    assert "'run.seed' should be a valid integer" in refusal({"name": "x", "run": {"seed": "many"}})


@pytest.mark.parametrize("section", ["mechanism.priors.return_rate", "force.priors.lengthscale"])
@pytest.mark.parametrize(
    ("prior", "told"),
    [
        (
            {"kind": "lognormal", "mean": 1},
            "'{0}.median' is not set. Add it to the file, or give {0}.median=… on the command line. "
            "Unknown key '{0}.mean'. Known there are: kind, median, spread.",
        ),
        (1.5, "'{0}' should be a mapping, not 1.5. For example: {{kind: lognormal, median: 1.5}}."),
        ({"median": 1}, "'{0}' is given in part. Say which kind it is too, for example {0}.kind=lognormal."),
        ({"variance": {"kind": "lognormal"}}, "'{0}' has no kind, and 'variance' in it. Did you mean '{1}.variance'?"),
        (
            {"kind": "gauss"},
            "'{0}.kind' should be one of 'lognormal', 'normal', 'uniform', 'halfnormal', not 'gauss'.",
        ),
        ({"kind": "uniform", "low": 2, "high": 1}, "'{0}': low (2) must be below high (1)."),
    ],
)
def test_a_wrong_prior_is_told_by_keys_that_can_be_written(section: str, prior: object, told: str) -> None:
    place, _, name = section.partition(".priors.")
    content: dict[str, Any] = {"mechanism": {"kind": "glucose"}}
    content[place] = content.get(place, {}) | {"priors": {name: prior}}
    with pytest.raises(UsageError) as caught:
        build(VERBS["fit"], content, source="fit.yaml")
    assert str(caught.value) == "fit.yaml: " + told.format(section, f"{place}.priors")


@pytest.mark.parametrize("section", ["mechanism.fixed.return_rate", "force.fixed.lengthscale"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        *((given, f"{given!r} is not a number") for given in ("x", None, True, [1.0], float("nan"))),
        *(({"p": given}, f"p is {given!r}, which is not a number") for given in ("x", None, {"p": 1.0})),
    ],
)
def test_a_known_value_that_is_no_number_is_told_once_and_as_it_is_written(
    section: str, given: object, told: str
) -> None:
    place, _, name = section.split(".")
    content: dict[str, Any] = {"mechanism": {"kind": "glucose"}}
    content[place] = content.get(place, {}) | {"fixed": {name: given}}
    with pytest.raises(UsageError) as caught:
        build(VERBS["fit"], content, source="fit.yaml")
    fix = "Give a number for all elements, such as 1.0, or one for each by name: {NAME: 1.0}."
    assert str(caught.value) == f"fit.yaml: '{section}': {told}. {fix}"


@pytest.mark.parametrize("given", [0.5, 1, "1e-3", {"p": "1e-3"}, {}])
def test_a_known_value_may_be_written_as_yaml_reads_numbers(given: object) -> None:
    assert build(VERBS["fit"], {"mechanism": {"kind": "glucose", "fixed": {"return_rate": given}}})


def test_what_is_no_mapping_of_known_values_is_told_so() -> None:
    with pytest.raises(UsageError, match=r"'mechanism\.fixed' should be a mapping of names to values, not 3\."):
        build(VERBS["fit"], {"mechanism": {"kind": "glucose", "fixed": 3}})


def test_a_misspelt_key_of_the_mechanism_is_told_with_its_section() -> None:
    with pytest.raises(UsageError, match=r"Unknown key 'mechanism\.otuputs'\. Did you mean 'mechanism\.outputs'\?"):
        build(VERBS["fit"], {"mechanism": {"kind": "glucose", "otuputs": ["a"]}})


def test_a_number_in_place_of_a_section_gets_the_keys_of_the_section() -> None:
    assert "'run' should be a mapping, not 3. Its keys are: dir, seed." in refusal({"name": "x", "run": 3})


def test_nearest_prefers_the_same_last_name() -> None:
    assert nearest("train.lr", ["fit.lr", "train.log"]) == "Did you mean 'fit.lr'?"


# ---- files -----------------------------------------------------------------------------------------------------------


def test_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no config file .*none\.yaml"):
        read_yaml(tmp_path / "none.yaml")


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"job\.yaml, line 2 is not valid YAML"):
        read_yaml(written(tmp_path, "name: x\nrun: [1, }\n"))


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words\n"])
def test_file_without_settings_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="holds no settings"):
        read_yaml(written(tmp_path, text))


def test_file_that_is_no_text_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(UsageError, match="Cannot read the config file"):
        read_yaml(path)


# ---- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),  # YAML 1.1 takes this for text
        ("-2.5", -2.5),
        ("true", True),
        ("null", None),
        ("[a, b]", ["a", "b"]),
        ("{rate: 2}", {"rate": 2}),
        ("some words", "some words"),
        ("runs/a=b", "runs/a=b"),
        ("", None),
        ("[open", "[open"),
    ],
)
def test_override_is_read_as_yaml(text: str, value: object) -> None:
    assert apply_overrides({}, [f"key={text}"]) == {"key": value}


def test_override_reaches_nested_keys_and_leaves_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path, "name: x\nrun: {seed: 1, dir: here}\n")
    job = load(Job, path, ["run.seed=7", "step.rate=1e-3"])
    assert (job.run.seed, job.run.dir, job.step) == (7, Path("here"), Step(rate=1e-3))


def test_later_override_wins_and_the_given_mapping_is_not_changed() -> None:
    given_content = {"run": {"seed": 1}}
    assert apply_overrides(given_content, ["run.seed=2", "run.seed=3"]) == {"run": {"seed": 3}}
    assert given_content == {"run": {"seed": 1}}


@pytest.mark.parametrize("override", ["run.seed", "=1"])
def test_override_without_key_or_value_is_refused(override: str) -> None:
    with pytest.raises(UsageError, match=r"is not an override\. Write key=value"):
        apply_overrides({}, [override])


def test_unknown_override_is_refused_like_an_unknown_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Unknown key 'run\.sed'\. Did you mean 'run\.seed'"):
        load(Job, written(tmp_path, "name: x\n"), ["run.sed=1"])


# ---- saving and hashing ----------------------------------------------------------------------------------------------

jobs = st.builds(
    Job,
    name=st.text(min_size=1),
    run=st.builds(Run, seed=st.integers(), dir=st.none() | st.just(Path("a/b"))),
    step=st.none() | st.builds(Step, rate=st.floats(1e-12, 1e12), rule=st.sampled_from(["adam", "newton"])),
    parts=st.lists(st.text()).map(tuple),
)


@given(jobs)
def test_dump_reads_back_as_the_same_config(job: Job) -> None:
    again = build(Job, yaml.safe_load(dump(job)))
    assert again == job
    assert fingerprint(again) == fingerprint(job)


def test_fingerprint_follows_values_not_their_order_or_whether_they_are_spelled_out() -> None:
    short = build(Job, {"name": "x"})
    long = build(Job, {"step": None, "run": {"dir": None, "seed": 0}, "name": "x"})
    assert fingerprint(short) == fingerprint(long)
    assert fingerprint(short) != fingerprint(build(Job, {"name": "x", "run": {"seed": 1}}))


def test_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Run().seed = 1  # type: ignore[misc]


def test_dotted_keys_go_into_optional_parts() -> None:
    assert set(dotted_keys(Job)) == {"name", "run", "run.seed", "run.dir", "step", "step.rate", "step.rule", "parts"}


# ---- what is shipped -------------------------------------------------------------------------------------------------


def test_configs_are_shipped() -> None:
    assert SHIPPED, "configs/ holds no config"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(PROJECT)))
def test_shipped_config_is_valid_names_its_verb_and_survives_saving(path: Path) -> None:
    config = load_any(path, verbs=VERBS)
    assert path.parent.name == read_yaml(path)["verb"], "a config lies in the folder of its verb, which it names"
    assert build(type(config), yaml.safe_load(dump(config))) == config


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(PROJECT)))
def test_shipped_config_with_a_wrong_key_is_refused(path: Path) -> None:
    places = {"fit": "run.seed", "train": "loop.seed", "tune": "train.loop.seed", "programme": "task.seed"}
    seed = places.get(path.parent.name, "seed")
    with pytest.raises(UsageError, match=rf"Unknown key '{seed[:-2]}d'\. Did you mean '{seed}'"):
        load_any(path, [f"{seed[:-2]}d=1"], VERBS)
    with pytest.raises(UsageError, match="Unknown key"):
        load_any(path, ["mechanism.no_such_option=1"], VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_a_schema_that_refuses_unknown_keys(verb: str) -> None:
    schema = schema_of(verb, VERBS)
    assert schema["additionalProperties"] is False
    assert schema["properties"]


def test_verb_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"There is no verb 'fti' with a config\. Known are: .*fit"):
        schema_of("fti")
