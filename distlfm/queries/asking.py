"""Asking a trained operator: finding it, fitting the data's names to its own, and one bad instance among good ones."""

from __future__ import annotations

import hashlib
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distlfm.errors import DistlfmError, UsageError
from distlfm.fleets.sources import told_units
from distlfm.fleets.spool import Source
from distlfm.instance import Instance
from distlfm.lfo import Operator, OperatorAnswer, OperatorSchema
from distlfm.lfo.schema import check_units
from distlfm.runs import OPERATOR
from distlfm.runs.folder import versions
from distlfm.runs.settings import DataConfig


@dataclass(frozen=True)
class Asked:
    """An instance, its answer or why there is none, and the seconds that it took."""

    instance: Instance
    answer: OperatorAnswer | None
    reason: str
    seconds: float


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint that a path means: the file, or that of a training run."""
    given = Path(path)
    if given.is_dir():
        if not (given / OPERATOR).is_file():
            fix = "Give a checkpoint, or the folder of a finished training run."
            raise UsageError(f"{given} has no {OPERATOR}.", fix)
        given /= OPERATOR
    try:
        with given.open("rb") as file:
            archive = zipfile.is_zipfile(file)
    except PermissionError:
        raise UsageError(f"Cannot read {given}: permission denied.", "Give yourself the right to read it.") from None
    except OSError:  # the reader says what is wrong
        return given
    if not archive:  # as all are that torch writes
        raise UsageError(f"{given} is not a checkpoint, or a damaged one.", "Give one of `distlfm train`.")
    return given


def mark(path: Path) -> str:
    """A short hash of a checkpoint, which tells whether two answers are of the same operator."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def origin(operator: Operator, checkpoint: str, config_hash: str | None) -> dict[str, Any]:
    """What a page tells of where its answers come from. checkpoint: as marked. The seed is that of the training."""
    loop = operator.training.get("settings", {}).get("loop", {})
    return {"hash": config_hash, "versions": versions(), "seed": loop.get("seed"), "checkpoint": checkpoint}


def renamed(instance: Instance, names: Mapping[str, str], known: Sequence[str]) -> Instance:
    """The instance with the operator's names of its outputs. One output alone needs no name to be known."""
    outputs = tuple(names.get(name, name) for name in instance.outputs)
    if len(outputs) == len(known) == 1:
        outputs = tuple(known)
    return instance if outputs == instance.outputs else replace(instance, outputs=outputs)


def check_names(names: Mapping[str, str], given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a map of names that fits neither the data nor the operator."""
    for name, meant in names.items():
        if name not in given:
            raise UsageError(f"outputs: the data have no output {name!r}.", f"They have {', '.join(given)}.")
        if meant not in known:
            raise UsageError(f"outputs: the operator has no output {meant!r}.", f"It has {', '.join(known)}.")


def check_data(schema: OperatorSchema, source: Source, data: DataConfig, names: Mapping[str, str]) -> None:
    """Refuse data that the operator's numbers do not hold for: a map of names that fits neither, or other units."""
    check_names(names, source.outputs, schema.outputs)
    given = [names.get(name, name) for name in source.outputs]
    alone = len(given) == len(schema.outputs) == 1
    told = told_units(source, data)
    if data.scale == "output":  # numbers without a unit, which no name of a unit tells apart
        told.pop("value_unit", None)
    check_units(schema, told, schema.outputs if alone else given)


def ask(operator: Operator, instances: Sequence[Instance]) -> list[Asked]:
    """Answers of instances, computed together; one that the operator cannot take does not stop the others."""
    since = time.perf_counter()
    try:
        answers = operator([instance.blind() for instance in instances])
    except DistlfmError:
        return [_ask_alone(operator, instance) for instance in instances]
    seconds = (time.perf_counter() - since) / max(1, len(instances))
    return [Asked(instance, answer, "", seconds) for instance, answer in zip(instances, answers, strict=True)]


def _ask_alone(operator: Operator, instance: Instance) -> Asked:
    since = time.perf_counter()
    try:
        answer: OperatorAnswer | None = operator(instance.blind())
        reason = ""
    except DistlfmError as error:
        answer, reason = None, str(error)
    return Asked(instance, answer, reason, time.perf_counter() - since)
