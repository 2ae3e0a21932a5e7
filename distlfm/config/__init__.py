"""One YAML file per run, checked by pydantic models, with dotted overrides.

Each component owns the model of its own options (it derives from `Config`), and a verb's model is made of those. This
module holds what they share: reading, overriding, saving, hashing, and saying which key was meant.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from distlfm.config.keys import is_mapping, is_model, parts
from distlfm.errors import UsageError

Model = TypeVar("Model", bound=BaseModel)
Overrides = Sequence[str] | Mapping[str, Any]
"""Settings to change: `["run.seed=1"]`, or `{"run.seed": 1}`."""

DATA_ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz", ".tsv", ".xlsx", ".zarr")
"""What has such a name is not a config; some people give their data first."""


class Config(BaseModel):
    """Base of every options model: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def changed(self, section: str, **values: Any) -> Self:
        """Return the same with other `values`, by name, in the field `section`. They are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})


def load(model: type[Model], config: Model | Mapping[str, Any] | Path | str, overrides: Overrides = ()) -> Model:
    """Check the content of a YAML file, or a mapping, with `key.sub=value` overrides. A config that is built stays."""
    if isinstance(config, model):
        return config
    if isinstance(config, Mapping):
        return build(model, apply_overrides(dict(config), overrides) if overrides else dict(config))
    if isinstance(config, Path | str):
        return build(model, apply_overrides(read_yaml(config), overrides), source=str(config))
    fix = "Give the path of a config file or a mapping with its content"
    more = "; a Model is fitted with model.fit(data), and model.config is its config"
    held = isinstance(getattr(config, "config", None), model)
    raise UsageError(f"The config is of type {type(config).__name__}.", f"{fix}{more if held else ''}.")


def read_yaml(path: Path | str) -> dict[str, Any]:
    """The mapping in a YAML file, unchecked."""
    path = Path(path)
    if path.name.lower().endswith(DATA_ENDINGS) and path.exists():
        raise UsageError(
            f"{path} holds data, and a config is expected here.",
            "Give data with --data beside a config, such as one of configs/fit/, or as data.path in it.",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"There is no config file {path}.", "Shipped ones are in configs/; give the path of one."
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder.", "Give the path of a config file in it.") from None
    except OSError as error:
        raise UsageError(
            f"Cannot read the config file {path}: {error.strerror}.", "Check the path and its permissions."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"Cannot read the config file {path}: it is not text.", "Give the path of one.") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(
            f"{path}{line} is not valid YAML: {getattr(error, 'problem', error)}.",
            "Mend that line; names with brackets, colons or # need quotation marks.",
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings.", "A config is a mapping of keys to values, such as `verb: fit`.")
    return content


def apply_overrides(content: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """A copy of `content` with each `a.b=value` set; values are read as YAML (`1e-3`, `[a, b]`, `null`, text)."""
    result: dict[str, Any] = json.loads(json.dumps(content, default=str))
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(one, default=str)}" for key, one in overrides.items()]
    for override in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UsageError(f"{override!r} is not an override.", "Write key=value, for example run.seed=1.")
        *parents, last = key.split(".")
        target = result
        for parent in parents:
            if not isinstance(target.get(parent), dict):
                target[parent] = {}
            target = target[parent]
        target[last] = _value(text)
    return result


def _value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a number or a date that Python does not take
        if text[:1] + text[-1:] in ("[]", "{}"):
            raise UsageError(
                f"{text} is not valid YAML.", """Quote names with brackets or colons: '["a [mM]", b]'."""
            ) from None
        return text
    if isinstance(value, str):
        with suppress(ValueError):  # YAML 1.1 reads 1e-3 as text
            return float(value)
    return value


def build(model: type[Model], content: dict[str, Any], source: str = "config", within: str = "") -> Model:
    """Check a mapping against a model; every wrong key or value becomes one sentence.

    within: the key of the section that the mapping is, where the file has more; messages name keys with it.
    """
    wanted = model.model_fields["verb"].default if "verb" in model.model_fields else None
    if wanted is not None and content.get("verb", wanted) != wanted:  # its other keys would be as strange
        raise UsageError(
            f"{source}: 'verb' should be {wanted!r}, not {content['verb']!r}.", f"Give a config whose verb is {wanted}."
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        known = sorted(set(dotted_keys(model)))
        sentences = [_sentence(dict(item), _Place(model, item["loc"], known, within), known) for item in error.errors()]
        raise UsageError(f"{source}: " + " ".join(dict.fromkeys(sentences))) from None


class _Place:
    """A location of pydantic as a user writes it: the tag of a union's member ("prior.lognormal.median") is not a key.

    name: with dots; short: without the section that it is in. level: the keys that are known beside its last part.
    named_by_user: whether these stand under a name that no model has, such as a parameter's. models: what may stand
    there, if mappings.
    """

    def __init__(self, model: type[BaseModel], location: Sequence[object], known: list[str], within: str) -> None:
        kept: list[str] = []
        here: list[Any] = [model]
        parts = [str(part) for part in location]
        self.level: list[str] = []
        for i, part in enumerate(parts):
            below = [shape for one in here for shape in _below(one, part)]
            members = [one for one in here if part in _tags(one)]
            below_next = [".".join([*kept, rest]) for rest in parts[i + 1 : i + 2]]
            odd = ".".join([*kept, part]) not in known and any(key in known for key in below_next)
            if not below and (members or odd):
                here = members or here
                continue
            self.level = sorted({key for one in here if is_model(one) for key in one.model_fields})
            kept.append(part)
            here = below
        self.short, self.within = ".".join(kept), f"{within}." if within and kept else within
        self.name = self.within + self.short
        self.named_by_user = ".".join(kept[:-1]) not in ("", *known)
        self.models: list[type[BaseModel]] = [one for one in here if is_model(one)]


def _tags(shape: Any) -> tuple[str, ...]:
    """What pydantic calls a member of a union."""
    if not is_model(shape):
        return ()
    kind = shape.model_fields.get("kind")
    return (shape.__name__, *(typing.get_args(kind.annotation) if kind else ()))


def _below(shape: Any, part: str) -> list[Any]:
    """What may stand under a key of a model or of a mapping; unions are taken apart."""
    if is_model(shape):
        return list(parts(shape.model_fields[part].annotation)) if part in shape.model_fields else []
    return list(parts(typing.get_args(shape)[1])) if is_mapping(shape) else []


def _sentence(item: dict[str, Any], found: _Place, known: list[str]) -> str:
    place = found.name
    if item["type"] == "extra_forbidden":
        if found.named_by_user and found.level:
            return f"Unknown key {place!r}. Known there are: {', '.join(found.level)}."
        return f"Unknown key {place!r}. {nearest(found.short, known, found.within)}"
    if item["type"] == "union_tag_not_found":
        given = item.get("input")
        if isinstance(given, dict) and given and all(isinstance(one, dict) for one in given.values()):
            meant = ".".join([*place.split(".")[:-1], str(next(iter(given)))])
            return f"{place!r} has no kind, and {next(iter(given))!r} in it. Did you mean {meant!r}?"
        return f"{place!r} is given in part. Say which kind it is too, for example {place}.kind=lognormal."
    if item["type"] == "union_tag_invalid":
        key, given = str(item["ctx"]["discriminator"]).strip("'"), item["ctx"]["tag"]
        return f"'{place}.{key}' should be one of {item['ctx']['expected_tags']}, not {given!r}."
    if item["type"] == "missing":
        return f"{place!r} is not set. Add it to the file, or give {place}=… on the command line."
    if item["type"] in ("model_type", "model_attributes_type") and found.models:
        example = _example(found.models[0], item.get("input"))
        return f"{place!r} should be a mapping, not {item.get('input')!r}. {example}"
    message = str(item["msg"]).rstrip(".").replace("a valid dictionary", "a mapping of names to values")
    if message.startswith("Input should be "):
        shown = "" if isinstance(item.get("input"), (dict, list)) else f", not {item.get('input')!r}"
        return f"{place!r} should be {message.removeprefix('Input should be ')}{shown}."
    message = message.removeprefix("Value error, ")
    message = message.removeprefix(f"{place}: ") + ("" if message.endswith("?") else ".")
    names_keys = not place or f"'{place}." in message  # it is about several keys, or one further down
    return message if names_keys else f"{place!r}: {message}"


def _example(model: type[BaseModel], given: object) -> str:
    """How a mapping is written of which only a number was given, or nothing useful."""
    fields = model.model_fields
    needed = [name for name, info in fields.items() if info.is_required()]
    if "kind" not in fields or len(needed) != 1:
        return f"Its keys are: {', '.join(sorted(fields))}."
    number = given if isinstance(given, int | float) and not isinstance(given, bool) and given > 0 else 1.0
    return f"For example: {{kind: {fields['kind'].default}, {needed[0]}: {number:g}}}."


def nearest(name: str, known: Sequence[str], prefix: str = "") -> str:
    """A sentence that points from an unknown name to the closest known ones, named with the prefix."""
    leaf = name.rsplit(".", 1)[-1]
    by_leaf = [key for key in known if key.rsplit(".", 1)[-1] == leaf]
    close = by_leaf[:3] or difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    close = close or difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    if not close:
        leaves = {key.rsplit(".", 1)[-1]: key for key in known}
        close = [leaves[match] for match in difflib.get_close_matches(leaf, list(leaves), n=2, cutoff=0.5)]
    if close:
        return f"Did you mean {' or '.join(repr(prefix + key) for key in close)}?"
    top = sorted({key.split(".", 1)[0] for key in known})
    return f"Known are: {', '.join(top)}."


def dotted_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key that a model takes, nested ones with dots."""
    for name, info in model.model_fields.items():
        yield prefix + name
        for nested in filter(is_model, parts(info.annotation)):
            if prefix.count(".") < 5:  # a kernel may hold kernels
                yield from dotted_keys(nested, f"{prefix}{name}.")


def dump(config: BaseModel) -> str:
    """The resolved config as YAML, defaults included."""
    content = config.model_dump(mode="json")
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if yaml.safe_load(text) != content:  # some control characters survive only as escapes
        text = yaml.safe_dump(content, sort_keys=False)
    return text


def fingerprint(config: BaseModel) -> str:
    """A hash that two configs share exactly when they ask for the same work."""
    return digest(json.dumps(config.model_dump(mode="json"), sort_keys=True))


def digest(text: str) -> str:
    """A short hash, by which texts are told apart in names and summaries."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
