"""A careful guess of the column map from a table's header, for tables that leave no doubt.

It never guesses between two candidates, because the wrong one could be the truth that a fit must not see.
"""

from __future__ import annotations

import re

from distlfm.data.base import ColumnMap
from distlfm.data.table import Table
from distlfm.errors import DataError, Problem

_UNIT = r"(_(s|sec|min|h|hr|d|days|hours|minutes|seconds)|\s*(\([^()]+\)|\[[^\[\]]+\]))?"
"""`time_h`, `Time (h)`, `time [h]`."""

_TIME = re.compile(rf"(t|times?|years?|days?|hours?|minutes?|seconds?){_UNIT}", re.IGNORECASE)
_INSTANCE = re.compile(r"(patient|instance|replicate|subject|sample|donor|id)([_ ]id)?", re.IGNORECASE)
_POSITION = re.compile(r"(x|x_?\d|positions?)", re.IGNORECASE)
_OUTPUT = re.compile(r"(gene|output)(_name)?", re.IGNORECASE)
_VARIANCE = re.compile(r"(variance|noise_variance)", re.IGNORECASE)


def infer_columns(table: Table) -> tuple[ColumnMap, Problem]:
    """The column map that the header suggests, and the notice that says what was taken."""
    time = _one(table, "time", _TIME)
    if time is None:
        raise _doubt(table, "No column is clearly the time.")
    instance = _one(table, "instance", _INSTANCE)
    variance = _one(table, "variance", _VARIANCE)
    positions = tuple(name for name in table.names if _POSITION.fullmatch(name))
    # `output` may name the column of values as well as the column of output names: only text can be names.
    names = [name for name in table.names if _OUTPUT.fullmatch(name) and not table.numbers(name).mostly_numeric]
    if len(names) > 1:
        raise _doubt(table, f"Columns {_quoted(names)} could each name the output.")
    output = names[0] if names else None
    rest = [name for name in table.names if name not in {time, instance, variance, output, *positions}]
    if len(rest) != 1 or not table.numbers(rest[0]).mostly_numeric:
        found = f"Columns {_quoted(rest)} could each be" if len(rest) > 1 else "No column is clearly"
        raise _doubt(table, f"{found} the observed values.")
    columns = ColumnMap(
        time=time, instance=instance, output=output, values=(rest[0],), positions=positions, variance=variance
    )
    taken = ", ".join(f"{key} = {name!r}" for key, name in columns.roles())
    return columns, Problem(f"The columns were guessed: {taken}.", "Set columns to choose them yourself.", table.file)


def _one(table: Table, key: str, pattern: re.Pattern[str]) -> str | None:
    found = [name for name in table.names if pattern.fullmatch(name)]
    if len(found) > 1:
        raise _doubt(table, f"Columns {_quoted(found)} could each be the {key}.")
    return found[0] if found else None


def _doubt(table: Table, what: str) -> DataError:
    fix = (
        "Set columns.time and columns.values, and where they apply columns.instance, columns.output, "
        "columns.positions, columns.variance and columns.truth_force (for scoring only): in a config "
        "`data: {columns: {time: a, values: [b, c]}}`, with data check `time=a 'values=[b, c]'`. "
        f"The file has: {', '.join(table.names)}."
    )
    return DataError(Problem(what, fix, table.file))


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
