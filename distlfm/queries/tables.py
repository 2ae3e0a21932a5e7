"""Write answers as files: tables for a spreadsheet, and JSON with everything, as the answers come.

What an earlier query has left in the folder is removed before the answers of the next one take its place.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from distlfm.instance import Instance
from distlfm.lfo import OperatorAnswer, OperatorSchema
from distlfm.queries.figures import true_elements
from distlfm.runs import REPORT, SUMMARY
from distlfm.runs.folder import forget_report
from distlfm.store.files import finite, storing
from distlfm.store.layout import UNKNOWN_UNIT

ANSWERS, PARAMETERS, DOCUMENT = "answers.csv", "parameters.csv", "answers.json"

COLUMNS = ("mean", "sd", "lower68", "upper68", "lower95", "upper95")


class Tables:
    """The open files of a query's answers."""

    def __init__(self, schema: OperatorSchema, answers: TextIO, parameters: TextIO, document: TextIO) -> None:
        self._schema, self._document = schema, document
        self._answers, self._parameters = csv.writer(answers), csv.writer(parameters)
        dims = [dim.name for dim in schema.dims]
        self._answers.writerow(["instance", *dims, "force", *COLUMNS])
        self._parameters.writerow(["instance", "parameter", "kind", "unit", *COLUMNS, "true"])
        document.write(f'{{\n"units": {_json(dict(schema.units))},\n"answers": [')
        self._between = "\n"

    def add(self, answer: OperatorAnswer, instance: Instance) -> None:
        """One more answer."""
        for i, force in enumerate(answer.forces):
            curves = np.stack([getattr(answer, name)[i].ravel() for name in COLUMNS], -1)
            rows = zip(answer.points.tolist(), curves.tolist(), strict=True)
            self._answers.writerows([answer.id, *map(_digits, at), force, *map(_digits, told)] for at, told in rows)
        true = true_elements(instance, self._schema)
        for one in answer.estimates:
            numbers = [_digits(getattr(one, name)) for name in COLUMNS]
            known = _digits(true[one.name]) if one.name in true else ""
            unit = self._schema.units.get(one.name, "").replace(UNKNOWN_UNIT, "")
            self._parameters.writerow([answer.id, one.name, one.kind, unit, *numbers, known])
        self._document.write(self._between + _json(as_data(answer)))
        self._between = ",\n"

    def close(self) -> None:
        self._document.write("\n]\n}\n")


@contextmanager
def tables(folder: Path, schema: OperatorSchema) -> Iterator[Tables]:
    """Files that appear together when all is written, or not at all."""
    names = (ANSWERS, PARAMETERS, DOCUMENT)
    drafts = [folder / f".{name}.{os.getpid()}.part" for name in names]
    try:
        with storing("answers", folder):
            with ExitStack() as stack:
                # An instance id may hold lone surrogates, which have no UTF-8.
                opened = [
                    stack.enter_context(draft.open("w", encoding="utf-8", errors="backslashreplace", newline=""))
                    for draft in drafts
                ]
                found = Tables(schema, *opened)
                yield found
                found.close()
            for draft, name in zip(drafts, names, strict=True):
                draft.replace(folder / name)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)


def as_data(answer: OperatorAnswer) -> dict[str, Any]:
    """An answer as plain data: `dims` has the coordinates, `forces` the curves in their shape."""
    forces = {
        force: {name: getattr(answer, name)[i].tolist() for name in COLUMNS} for i, force in enumerate(answer.forces)
    }
    return {
        "id": answer.id,
        "novelty": answer.novelty,
        "warning": answer.warning,
        "dims": {name: axis.tolist() for name, axis in zip(answer.dims, answer.axes, strict=True)},
        "forces": forces,
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
