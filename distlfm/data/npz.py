"""NumPy archives (.npz), in one of two forms. Nothing in them is ever unpickled.

**Instances**, what `write_npz` writes. Each instance has its arrays under a number of its own, `0/`, `1/`, …; a file of
one instance may leave the number out. Needed are `times` [N] and `values` [P, N]. The rest is optional: `id`,
`outputs` [P], `mask` [P, N], `positions` [N, d], `variance` [P, N], `metadata/<key>`, and for scoring
`truth/times` [n], `truth/force` [L, n], `truth/outputs` [P, n], `truth/positions` [n, d], `truth/parameters/<name>`.

**Simulation**, a noise-free fleet on common times: `t` [N] and `y` [B, P, N], and optionally `force` [B, N] or
[B, L, N] and `train_stride`. Any other array with one row an instance is a true parameter, except those whose name
ends in `_as_recorded`. `y` is the noise-free truth of the outputs too; `train_stride` goes to the metadata.

An archive names its own arrays, so a column map does not apply to it.
"""

from __future__ import annotations

import difflib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from distlfm.data.base import ColumnMap, ReadReport, reads, stem_of
from distlfm.errors import DataError, refused
from distlfm.instance import FloatArray, Instance, Truth

Arrays = Mapping[str, NDArray[Any]]

_OBSERVED = {"id", "outputs", "times", "values", "mask", "positions", "variance"}
_FIELDS = _OBSERVED | {f"truth/{name}" for name in ("times", "force", "outputs", "positions")}
STEP = 64
"""Instances of a large archive that are read together."""

_SIMULATION = {"t", "y", "force", "train_stride"}


def npz_steps(path: Path) -> Iterator[ReadReport]:
    """Read either form, instances under numbers of their own a few at a time; a simulation is one piece.

    A member that is damaged is found before the first is given.
    """
    with _opened(path) as archive:
        _check(path, archive)
        yield from _reports(path, archive.files, lambda key: _member(path, archive, key), STEP)


@reads(".npz", steps=npz_steps)
def read_npz(path: Path, columns: ColumnMap | None = None) -> ReadReport:  # noqa: ARG001
    """Read either form."""
    whole = ReadReport()
    with _opened(path) as archive:
        for report in _reports(path, archive.files, lambda key: _member(path, archive, key), STEP):
            whole.instances += report.instances
            whole.set_aside += report.set_aside
    return whole


def _reports(path: Path, keys: Sequence[str], array: Callable[[str], NDArray[Any]], step: int) -> Iterator[ReadReport]:
    """The instances of an archive with these arrays, `step` at a time."""
    if "t" in keys and "y" in keys:
        yield _read_simulation(path, {key: array(key) for key in keys})
        return
    groups: dict[str, dict[str, str]] = {}
    if "times" in keys and "values" in keys:
        groups[""] = {key: key for key in keys}
    else:
        for key in keys:
            number, _, rest = key.partition("/")
            groups.setdefault(number, {})[rest] = key
        if not groups or not all(
            number.isdecimal() and {"times", "values"} <= set(groups[number]) for number in groups
        ):
            found = ", ".join(list(keys)[:8]) or "nothing"
            fix = f"Give arrays times [N] and values [P, N], or t [N] and y [B, P, N]. The file has: {found}."
            raise refused("The archive has neither of the known forms.", fix, str(path))
    numbers = sorted(groups, key=lambda number: int(number or 0))
    for start in range(0, len(numbers), step):
        report = ReadReport()
        for number in numbers[start : start + step]:
            fields = {rest: array(key) for rest, key in groups[number].items()}
            _add(report, path, fields, default_id=f"{stem_of(path)}_{number}" if number else stem_of(path))
        yield report


def write_npz(path: str | Path, instances: Iterable[Instance]) -> None:
    """Write instances, with their truth, so that `read` gives them back. The file appears whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {}
    for number, instance in enumerate(instances):
        fields: dict[str, Any] = {
            "id": instance.id,
            "outputs": np.array(instance.outputs, dtype=np.str_),
            "times": instance.times,
            "values": instance.values,
            "mask": instance.mask,
            "positions": instance.positions,
            "variance": instance.variance,
        }
        fields |= {f"metadata/{key}": value for key, value in instance.metadata.items()}
        if instance.truth is not None:
            truth = instance.truth
            fields |= {f"truth/{name}": getattr(truth, name) for name in ("times", "force", "outputs", "positions")}
            fields |= {f"truth/parameters/{name}": value for name, value in truth.parameters.items()}
        arrays |= {f"{number}/{name}": np.asarray(value) for name, value in fields.items() if value is not None}
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        buffer = io.BytesIO()  # zipfile complains of a file that it could not finish, in a traceback of its own
        np.savez_compressed(buffer, **arrays)
        partial.write_bytes(buffer.getbuffer())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


BROKEN = (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise at an archive that is none."""


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is cut short, or no archive at all")
        archive = np.load(path, allow_pickle=False)
    except BROKEN as error:
        raise _unreadable(path, str(error)) from error
    with archive:
        yield archive


def _check(path: Path, archive: NpzFile) -> None:
    """Refuse an archive of which a member has another sum than it was written with."""
    assert archive.zip is not None
    try:
        broken = archive.zip.testzip()
    except BROKEN as error:
        raise _unreadable(path, str(error)) from error
    if broken is not None:
        raise _unreadable(path, f"its member {broken} is damaged")


def _member(path: Path, archive: NpzFile, key: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = archive[key]
    except BROKEN as error:
        raise _unreadable(path, str(error)) from error
    return found


def _unreadable(path: Path, why: str) -> DataError:
    reason = "it holds Python objects" if "allow_pickle" in why else why
    fix = "Write it with numpy.savez and arrays of numbers or text, or copy it again."
    return refused(f"The file is not a readable npz archive ({reason}).", fix, str(path))


def _add(report: ReadReport, path: Path, fields: Arrays, default_id: str) -> None:
    """Build an instance from its arrays into the report, or set it aside."""
    label = str(fields["id"]) if "id" in fields else default_id
    try:
        report.instances.append(_instance(label, fields))
    except DataError as error:
        report.set_aside.append(replace(error.problem, file=str(path), instance=label))


def _instance(label: str, fields: Arrays) -> Instance:
    for key in fields:
        if key not in _FIELDS and not key.startswith(("metadata/", "truth/parameters/")):
            near = difflib.get_close_matches(key, _FIELDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Use: {', '.join(sorted(_FIELDS))}."
            raise refused(f"The array {key!r} is not known.", hint, column=key)
    times = _floats(fields, "times", 1)
    values = _floats(fields, "values", 2)
    assert times is not None
    assert values is not None
    given = _numeric(fields, "mask")
    mask = np.ones(values.shape, dtype=np.bool_) if given is None else given.astype(np.bool_)
    if mask.shape == values.shape:
        wrong = np.argwhere(mask & ~np.isfinite(values))
        if len(wrong):
            place = ", ".join(str(position) for position in wrong[0])
            what = f"values[{place}] is {values[tuple(wrong[0])]}."
            raise refused(what, "Give a mask that is False where nothing was observed.", column="values")
        values = np.where(mask, values, 0.0)
    default_names = [f"output_{row}" for row in range(len(values))]
    return Instance(
        id=label,
        outputs=tuple(str(name) for name in np.atleast_1d(fields.get("outputs", np.array(default_names)))),
        times=times,
        values=values,
        mask=mask,
        positions=_floats(fields, "positions", 2),
        variance=_floats(fields, "variance", 2),
        truth=_truth(fields, times, len(values)),
        metadata={key.removeprefix("metadata/"): str(fields[key]) for key in fields if key.startswith("metadata/")},
    )


def _truth(fields: Arrays, times: FloatArray, num_outputs: int) -> Truth | None:
    keys = [key for key in fields if key.startswith("truth/")]
    if not keys:
        return None
    at = _floats(fields, "truth/times", 1) if "truth/times" in fields else times
    assert at is not None
    force, outputs = _floats(fields, "truth/force", 2), _floats(fields, "truth/outputs", 2)
    for key, array, rows in (("truth/force", force, None), ("truth/outputs", outputs, num_outputs)):
        if array is not None and array.shape != (len(array) if rows is None else rows, len(at)):
            what = f"{key} has shape {array.shape} for {len(at)} true times."
            raise refused(what, "Give one row a force or output, and one column a time.", column=key)
    positions = _floats(fields, "truth/positions", 2)
    if positions is not None and len(positions) != len(at):
        what = f"truth/positions has shape {positions.shape} for {len(at)} true times."
        raise refused(what, "Give one row a time.", column="truth/positions")
    parameters = {}
    for key in keys:
        value = _numeric(fields, key) if key.startswith("truth/parameters/") else None
        if value is not None:
            parameters[key.removeprefix("truth/parameters/")] = value.astype(np.float64)
    return Truth(at, force, outputs, positions, parameters)


def _numeric(fields: Arrays, key: str) -> NDArray[Any] | None:
    array = fields.get(key)
    if array is not None and array.dtype.kind not in "fiub":
        raise refused(f"{key} holds {array.dtype} and not numbers.", "Give an array of floats.", column=key)
    return array


def _floats(fields: Arrays, key: str, ndim: int) -> FloatArray | None:
    """An array as floats of `ndim` dimensions; [N] is taken for [1, N] where outputs are rows."""
    array = _numeric(fields, key)
    if array is None:
        return None
    if array.ndim == ndim - 1 and not key.endswith("positions"):
        array = array[np.newaxis]
    if array.ndim != ndim:
        raise refused(f"{key} has {array.ndim} dimensions.", f"Give {ndim}: see distlfm.data.npz.", column=key)
    return array.astype(np.float64)


def _read_simulation(path: Path, arrays: Arrays) -> ReadReport:
    times, outputs = arrays["t"], arrays["y"]
    if times.ndim != 1 or outputs.ndim != 3 or outputs.shape[2] != len(times):
        what = f"t has shape {times.shape} and y {outputs.shape}."
        raise refused(what, "Give t as [N] and y as [B, P, N].", str(path), column="y")
    force = arrays.get("force")
    if force is not None and (force.ndim < 2 or len(force) != len(outputs)):
        what = f"force has shape {force.shape} for {len(outputs)} instances."
        raise refused(what, "Give force as [B, N] or [B, L, N].", str(path), column="force")
    parameters = {
        key: array
        for key, array in arrays.items()
        if key not in _SIMULATION and not key.endswith("_as_recorded") and array.ndim and len(array) == len(outputs)
    }
    report = ReadReport()
    for number, values in enumerate(outputs):
        fields = {"times": times, "values": values, "truth/times": times, "truth/outputs": values}
        fields |= {f"truth/parameters/{key}": np.atleast_1d(array[number]) for key, array in parameters.items()}
        if force is not None:
            fields["truth/force"] = force[number]
        if "train_stride" in arrays:
            fields["metadata/train_stride"] = np.asarray(str(arrays["train_stride"]))
        _add(report, path, fields, default_id=f"{stem_of(path)}_{number}")
    return report
