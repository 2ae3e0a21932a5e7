"""Ask a trained operator, and write its answers: tables for a spreadsheet, and JSON with everything, as they come.

The operator is found, the data's names are matched with its own, and one bad instance is set aside from the good ones.
What an earlier query has left in the folder is removed before the answers of the next one take its place.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from distlfm.answer.parameters import COLUMNS
from distlfm.errors import DistlfmError, UsageError
from distlfm.fleets.sources import known_units
from distlfm.fleets.spool import Source
from distlfm.instance import Instance
from distlfm.lfo import Operator, OperatorAnswer, OperatorSchema
from distlfm.lfo.schema import check_units
from distlfm.queries.figures import true_elements
from distlfm.runs import OPERATOR, REPORT, SUMMARY
from distlfm.runs.folder import forget_report, versions
from distlfm.runs.settings import DataConfig
from distlfm.store.files import finite, replacing, storing
from distlfm.store.layout import UNKNOWN_UNIT


@dataclass(frozen=True)
class QueryOutcome:
    """An instance, its answer or why there is none, and the seconds that it took."""

    instance: Instance
    answer: OperatorAnswer | None
    reason: str
    seconds: float


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint that a path means: the file, or that of a training run."""
    given = Path(path)
    if given.is_dir():
        given /= OPERATOR
        if not given.is_file():
            fix = "Give a checkpoint, or the folder of a finished training run."
            raise UsageError(f"{given.parent} has no {OPERATOR}.", fix)
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
    """What a page says about where its answers come from. checkpoint: as marked. The seed is that of the training."""
    loop = operator.training.get("settings", {}).get("loop", {})
    return {"hash": config_hash, "versions": versions(), "seed": loop.get("seed"), "checkpoint": checkpoint}


def renamed(instance: Instance, names: Mapping[str, str], known: Sequence[str]) -> Instance:
    """The instance with the operator's names of its outputs. One output alone needs no name to be known."""
    outputs = tuple(names.get(name, name) for name in instance.outputs)
    if len(outputs) == len(known) == 1:
        outputs = tuple(known)
    return instance if outputs == instance.outputs else replace(instance, outputs=outputs)


def check_data(schema: OperatorSchema, source: Source, data: DataConfig, names: Mapping[str, str]) -> None:
    """Refuse data that the operator's numbers do not hold for: a map of names that fits neither, or other units."""
    for name, meant in names.items():
        if name not in source.outputs:
            raise UsageError(f"outputs: the data have no output {name!r}.", f"They have {', '.join(source.outputs)}.")
        if meant not in schema.outputs:
            raise UsageError(f"outputs: the operator has no output {meant!r}.", f"It has {', '.join(schema.outputs)}.")
    given = [names.get(name, name) for name in source.outputs]
    alone = len(given) == len(schema.outputs) == 1
    stated = known_units(source, data)
    if data.scale == "output":  # numbers without a unit, which no name of a unit tells apart
        stated.pop("value_unit", None)
    check_units(schema, stated, schema.outputs if alone else given)


def ask(operator: Operator, instances: Sequence[Instance]) -> list[QueryOutcome]:
    """Answers of instances, computed together; one that the operator cannot take does not stop the others."""
    since = time.perf_counter()
    try:
        answers = operator([instance.blind() for instance in instances])
    except DistlfmError as error:
        if len(instances) == 1:
            return [QueryOutcome(instances[0], None, str(error), time.perf_counter() - since)]
        return [one for instance in instances for one in ask(operator, [instance])]
    seconds = (time.perf_counter() - since) / max(1, len(instances))
    return [QueryOutcome(instance, answer, "", seconds) for instance, answer in zip(instances, answers, strict=True)]


ANSWERS, PARAMETERS, DOCUMENT = "answers.csv", "parameters.csv", "answers.json"


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What spreadsheets take for the beginning of a formula, also in its full-width form."""


def as_cell(name: str) -> str:
    """Return a name from outside as a spreadsheet shows it: with ' before what it would run as a formula."""
    return f"'{name}" if name.startswith(_FORMULA) and not _NUMBER.fullmatch(name) else name


class Tables:
    """The open files of a query's answers. In the CSV files, names are cells that no spreadsheet runs; JSON has them
    as they are."""

    def __init__(self, schema: OperatorSchema, answers: TextIO, parameters: TextIO, document: TextIO) -> None:
        self._schema, self._document = schema, document
        self._answers, self._parameters = csv.writer(answers), csv.writer(parameters)
        dims = [dim.name for dim in schema.dims]
        self._answers.writerow(["instance", *map(as_cell, dims), "force", *COLUMNS])
        self._parameters.writerow(["instance", "parameter", "kind", "unit", *COLUMNS, "true"])
        document.write(f'{{\n"units": {_json(dict(schema.units))},\n"answers": [')
        self._between = "\n"

    def add(self, answer: OperatorAnswer, instance: Instance) -> None:
        """One more answer."""
        name = as_cell(answer.id)
        for i, force in enumerate(map(as_cell, answer.forces)):
            curves = np.stack([getattr(answer, name)[i].ravel() for name in COLUMNS], -1)
            rows = zip(answer.points.tolist(), curves.tolist(), strict=True)
            self._answers.writerows([name, *map(_digits, at), force, *map(_digits, stated)] for at, stated in rows)
        true = true_elements(instance, self._schema)
        for one in answer.estimates:
            numbers = [_digits(getattr(one, name)) for name in COLUMNS]
            known = _digits(true[one.name]) if one.name in true else ""
            unit = self._schema.units.get(one.name, "").replace(UNKNOWN_UNIT, "")
            names = map(as_cell, (answer.id, one.name, one.kind, unit))
            self._parameters.writerow([*names, *numbers, known])
        self._document.write(self._between + _json(as_data(answer)))
        self._between = ",\n"

    def close(self) -> None:
        self._document.write("\n]\n}\n")


@contextmanager
def tables(folder: Path, schema: OperatorSchema) -> Iterator[Tables]:
    """Files that appear together when all is written, or not at all."""
    with storing("answers", folder), ExitStack() as places, ExitStack() as files:
        drafts = [places.enter_context(replacing(folder / name)) for name in (ANSWERS, PARAMETERS, DOCUMENT)]
        # An instance id may hold lone surrogates, which have no UTF-8.
        opened = [
            files.enter_context(draft.open("w", encoding="utf-8", errors="backslashreplace", newline=""))
            for draft in drafts
        ]
        written = Tables(schema, *opened)
        yield written
        written.close()


def as_data(answer: OperatorAnswer) -> dict[str, Any]:
    """An answer as plain data: `dims` has the coordinates, `forces` the curves in their shape."""
    curves = {name: getattr(answer, name).tolist() for name in COLUMNS}
    return {
        "id": answer.id,
        "novelty": answer.novelty,
        "warning": answer.warning,
        "dims": {name: axis.tolist() for name, axis in zip(answer.dims, answer.axes, strict=True)},
        "forces": {force: {name: curves[name][i] for name in COLUMNS} for i, force in enumerate(answer.forces)},
        "parameters": {one.name: {name: getattr(one, name) for name in COLUMNS} for one in answer.estimates},
    }


def _digits(value: float) -> str:
    """Seven digits: single precision has no more."""
    return f"{value:.7g}"


def _json(content: Any) -> str:
    return json.dumps(finite(content), allow_nan=False)


WRITTEN = (ANSWERS, PARAMETERS, DOCUMENT, SUMMARY, REPORT)
PLOTS = "plots"


def forget_answers(directory: Path) -> None:
    """Remove the pictures, the report and the summary of the query before; the tables are replaced all at once."""
    folder = directory / PLOTS
    if folder.is_dir():
        with storing(PLOTS, directory):
            for name in _pictures(directory / SUMMARY):
                (folder / name).unlink(missing_ok=True)
            if not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()
    forget_report(directory)  # not sooner: the summary tells which pictures there are


def _pictures(summary: Path) -> list[str]:
    """Names of the pictures that a query may have drawn, of the instances in its summary; others are not its own."""
    from distlfm.report.operator_plots import picture_names  # draws

    try:
        ids = [str(one["id"]) for one in json.loads(summary.read_text(encoding="utf-8"))["instances"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for index, one in enumerate(ids) for name in picture_names(index, one)]
