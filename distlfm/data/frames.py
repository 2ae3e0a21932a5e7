"""Observations of a program's own: tables of pandas and labelled arrays of xarray, checked as files are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from distlfm.config import build, nearest
from distlfm.data.assemble import assemble
from distlfm.data.base import ColumnMap, ReadReport, Table
from distlfm.data.reading import compared, usable
from distlfm.data.rows import refuse_repeated
from distlfm.errors import DistlfmWarning, Problem, UsageError, refused

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

UNITS = ("time", "value", "position")
ONE = "data"
"""The id of an instance in a table that tells none apart."""

TABLE = "the table"
"""Stands for the name of a file."""


def read_frame(
    frame: pd.DataFrame,
    *,
    time: str,
    value: str | Sequence[str],
    output: str | None = None,
    instance: str | None = None,
    positions: str | Sequence[str] = (),
    variance: str | Mapping[str, str] | None = None,
    duplicates: Literal["refuse", "average"] = "refuse",
    units: Mapping[str, str] | None = None,
) -> ReadReport:
    """Read the instances of a pandas table `frame`; cells without a number (NaN, None, NA) were not observed.

    time: the column of times, as numbers. A long table has a row for each value: the column `output` names the output,
    and `value` holds the number. A wide table has a row for each time: `value` lists one column for each output, and
    `output` is left out. instance: the column that tells instances apart; without it the table is one. positions:
    columns of coordinates, of a field. variance: the column of the noise variance, or one for each column of `value`.
    duplicates: what to do where one point has two values. units: of `time`, `value` and `position`. Names of the index
    will do for columns.

    Returns a report, which is a sequence of instances. A bad instance is set aside with a `DistlfmWarning`, which is
    also given for what looks doubtful. Raises `DataError` if a column is not there or no instance can be used, and
    `UsageError` if an argument is wrong.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"hours": [0, 2, 4], "p21": [0.9, 2.4, None], "mdm2": [1.1, 1.9, 1.7]})
    >>> read_frame(table, time="hours", value=["p21", "mdm2"])
    <1 instance: 'data', with p21, mdm2>
    """
    import pandas

    if not isinstance(frame, pandas.DataFrame):
        raise UsageError(
            f"read_frame reads a pandas DataFrame, and this is a {type(frame).__name__}.",
            "Make one of it, or use read_xarray, Instance, or distlfm.data.read for a file.",
        )
    for column in (time, output, instance):
        if not isinstance(column, str | None):
            raise UsageError(
                f"{column!r} is not the name of a column, which is text.",
                "Rename what has numbers, frame.columns = frame.columns.map(str), and name one column for each part.",
            )
    given = {
        "time": time,
        "values": value if isinstance(value, str) else tuple(value),
        "output": output,
        "instance": instance,
        "positions": positions if isinstance(positions, str) else tuple(positions),
        "variance": dict(variance) if isinstance(variance, Mapping) else variance,
        "duplicates": duplicates,
    }
    columns = build(ColumnMap, given, source="read_frame")
    table = _table(frame, columns)
    found = compared([assemble(table, columns, default_id=ONE)], TABLE)
    report = usable(_in_python(_measured(ReadReport.joined(found), units)))
    for problem in (*report.set_aside, *report.notices):
        warnings.warn(str(problem), DistlfmWarning, stacklevel=2)
    return report


def read_xarray(
    data: xr.DataArray | xr.Dataset,
    *,
    time: str = "time",
    output: str | None = None,
    instance: str | None = None,
    positions: str | Sequence[str] = (),
    units: Mapping[str, str] | None = None,
) -> ReadReport:
    """Read the instances of an xarray object; NaN was not observed.

    data: a DataArray with the dimension `time`, and `output` and `instance` where there are several; or a Dataset,
    whose variables are the outputs. positions: dimensions or coordinates of a field. units: of `time`, `value` and
    `position`. Returns and raises as `read_frame` does.
    """
    import xarray

    if not isinstance(data, xarray.DataArray | xarray.Dataset):
        raise UsageError(
            f"read_xarray reads a DataArray or a Dataset, and this is a {type(data).__name__}.",
            "Use read_frame for a pandas table, or Instance for arrays.",
        )
    places = (positions,) if isinstance(positions, str) else tuple(positions)
    named = [time, *places, *(name for name in (output, instance) if name is not None)]
    for name in named:
        if name not in data.coords and name not in data.dims:
            known = ", ".join(map(str, dict.fromkeys([*data.dims, *data.coords])))
            raise UsageError(f"The data have no dimension or coordinate {name!r}.", f"They have: {known}.")
        if name in (time, *places):
            _refuse_dates(name, data[name].dtype.kind, "data", "the data")
    left = [str(dim) for dim in data.dims if dim not in named and not _spanned(data, dim, named)]
    if left:
        raise UsageError(
            f"The data have a dimension {left[0]!r} that has no part.",
            f"Name it as output, instance or one of positions, or choose one of it with .isel({left[0]}=0).",
        )
    alone = isinstance(data, xarray.DataArray)
    if not alone and output is not None:
        raise UsageError("The outputs of a Dataset are its variables.", "Leave `output` out.")
    values = [str(data.name or "value")] if alone else [str(name) for name in data.data_vars]
    taken = {name: f"{name} values" for name in values if name in named}
    labelled: Any = data.rename(values[0]) if isinstance(data, xarray.DataArray) else data
    frame = labelled.to_dataframe().rename(columns=taken).reset_index()
    values = [taken.get(name, name) for name in values]
    observed = frame.dropna(subset=values, how="all") if output is None else frame
    return read_frame(
        observed if len(observed) else frame,
        time=time,
        value=values,
        output=output,
        instance=instance,
        positions=places,
        units=units,
    )


def _spanned(data: Any, dim: Any, named: Sequence[str]) -> bool:
    """Whether a dimension is that of a named coordinate, such as `point` of `time` and `x`."""
    return any(name in data.coords and dim in data.coords[name].dims for name in named)


def _table(frame: Any, columns: ColumnMap) -> Table:
    """The columns that have a part, as readers hand them on."""
    wanted = [name for _, name in columns.roles()]
    if any(name not in frame.columns and name in ("index", *frame.index.names) for name in wanted):
        frame = frame.reset_index()
    refuse_repeated([name for name in frame.columns if name in wanted], TABLE)
    for name in wanted:
        if name not in frame.columns:
            there = list(map(str, frame.columns))
            fix = f"{nearest(name, there)} The table has: {', '.join(there)}."
            raise refused(f"There is no column {name!r}.", fix, TABLE, column=name)
        _refuse_dates(name, frame[name].dtype.kind, "frame", TABLE)
    cells = pa.table({name: _array(frame[name]) for name in wanted})
    return Table(TABLE, cells, range(1, len(frame) + 1))


def _refuse_dates(name: str, kind: str, variable: str, where: str) -> None:
    if kind in "mM":
        column = f"{variable}[{name!r}]"
        start = f"({column} - {column}.min())" if kind == "M" else column
        fix = f'Count from a start, in numbers: {column} = {start} / pandas.Timedelta("1h").'
        raise refused("These are dates or durations.", fix, where, column=name)


def _array(column: Any) -> Any:
    """A column of pandas; one of mixed types as text, so that a cell which is not a number is reported with its row."""
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if missing else str(cell) for cell, missing in zip(column, column.isna(), strict=True)])


def _measured(report: ReadReport, units: Mapping[str, str] | None) -> ReadReport:
    """The same instances with their units named."""
    for name in units or {}:
        if name not in UNITS:
            raise UsageError(f"units names {name!r}.", f'Known are: {", ".join(UNITS)}, as in {{"time": "h"}}.')
    stated = {f"{name}_unit": str(unit) for name, unit in (units or {}).items()}
    return replace(report, instances=[replace(one, metadata={**one.metadata, **stated}) for one in report.instances])


def _in_python(report: ReadReport) -> ReadReport:
    """The same with fixes as this function's arguments, where those of files name keys of a config."""

    def mended(problem: Problem) -> Problem:
        return replace(problem, fix=problem.fix.replace("columns.values", "value").replace("columns.", ""))

    return ReadReport(report.instances, list(map(mended, report.set_aside)), list(map(mended, report.notices)))
