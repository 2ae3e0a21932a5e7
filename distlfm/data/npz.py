"""NumPy archives (.npz), in one of two forms. Nothing in them is ever unpickled.

**Instances**, what `write_npz` writes. Each instance has its arrays under a number of its own, `0/`, `1/`, …; a file of
one instance may leave the number out. Needed are `times` [N] and `values` [P, N]. The rest is optional: `id`,
`outputs` [P], `mask` [P, N], `positions` [N, d], `variance` [P, N], `metadata/<key>`, and for scoring
`truth/times` [n], `truth/force` [L, n], `truth/outputs` [P, n], `truth/positions` [n, d], `truth/parameters/<name>`.

**Simulation**, a noise-free fleet on common times: `t` [N] and `y` [B, P, N], and optionally `force` [B, N] or
[B, L, N] and `train_stride`. Any other array with one row per instance is a true parameter, except those whose name
ends in `_as_recorded`. `y` is the noise-free truth of the outputs too; `train_stride` goes to the metadata.

An archive names its own arrays, so a column map does not apply to it.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.data.base import ColumnMap, ReadReport, did_you_mean, reads, stem_of
from distlfm.errors import DataError, refused
from distlfm.instance import FloatArray, Instance, Truth

Arrays = Mapping[str, NDArray[Any]]

_OBSERVED = ("id", "outputs", "times", "values", "mask", "positions", "variance")
_TRUE = ("times", "force", "outputs", "positions")
_FIELDS = {*_OBSERVED, *(f"truth/{name}" for name in _TRUE)}
STEP = 64
"""Instances of a large archive that are read together."""

_NUMBER = re.compile("[0-9]{1,18}")
_SIMULATION = {"t", "y", "force", "train_stride"}


def npz_steps(path: Path) -> Iterator[ReadReport]:
    """Read either form, instances under numbers of their own a few at a time; a simulation is one piece.

    A member that is damaged is found before the first is given.
    """
    with _opened(path) as archive:
        with _readable(path):
            broken = archive.zip.testzip()
        if broken is not None:
            raise _unreadable(path, f"its member {broken} is damaged")
        yield from _reports(path, archive)


@reads(".npz", steps=npz_steps)
def read_npz(path: Path, columns: ColumnMap | None = None) -> ReadReport:  # noqa: ARG001
    """Read either form."""
    with _opened(path) as archive:
        return ReadReport.joined(_reports(path, archive))


def _reports(path: Path, archive: Any) -> Iterator[ReadReport]:
    """The instances of an archive, STEP at a time."""
    keys = archive.files
    if "t" in keys and "y" in keys:
        yield _read_simulation(path, _members(path, archive, {key: key for key in keys}))
        return
    groups: dict[str, dict[str, str]] = {}
    if "times" in keys and "values" in keys:
        groups[""] = {key: key for key in keys}
    else:
        for key in keys:
            number, _, rest = key.partition("/")
            groups.setdefault(number, {})[rest] = key
        whole = [_NUMBER.fullmatch(number) and {"times", "values"} <= set(group) for number, group in groups.items()]
        if not groups or not all(whole):
            listed = ", ".join(list(keys)[:8]) or "nothing"
            fix = f"Give arrays times [N] and values [P, N], or t [N] and y [B, P, N]. The file has: {listed}."
            raise refused("The archive has neither of the known forms.", fix, str(path))
    numbers = sorted(groups, key=lambda number: int(number or 0))
    for start in range(0, len(numbers), STEP):
        report = ReadReport()
        for number in numbers[start : start + STEP]:
            fields = _members(path, archive, groups[number])
            _add(report, path, fields, default_id=f"{stem_of(path)}_{number}" if number else stem_of(path))
        yield report


def write_npz(path: str | Path, instances: Iterable[Instance]) -> None:
    """Write instances, with their truth, so that `read` gives them back. The file appears whole or not at all.

    path: of the file; one that is there is replaced. instances: those to write. Raises `OSError` if it cannot be
    written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        buffer = io.BytesIO()  # zipfile complains of a file that it could not finish, in a traceback of its own
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            add_to_npz(archive, instances)
        partial.write_bytes(buffer.getbuffer())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def add_to_npz(archive: zipfile.ZipFile, instances: Iterable[Instance], first: int = 0) -> None:
    """Write instances into an archive that is open, under numbers from `first` on."""
    for number, instance in enumerate(instances, first):
        fields = {name: getattr(instance, name) for name in _OBSERVED}
        fields |= {f"metadata/{key}": value for key, value in instance.metadata.items()}
        if instance.truth is not None:
            fields |= {f"truth/{name}": getattr(instance.truth, name) for name in _TRUE}
            fields |= {f"truth/parameters/{name}": value for name, value in instance.truth.parameters.items()}
        for name, value in fields.items():
            if value is not None:
                with archive.open(f"{number}/{name}.npy", "w", force_zip64=True) as member:
                    np.save(member, value, allow_pickle=False)


BROKEN = (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise at a file that is not an archive."""


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        raise _unreadable(path, str(error)) from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with _readable(path):
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is cut short, or not an archive at all")
        archive = np.load(path, allow_pickle=False)
    with archive:
        yield archive


def _members(path: Path, archive: Any, keys: Mapping[str, str]) -> Arrays:
    """Arrays of an archive by the names that their keys are given."""
    with _readable(path):
        return {name: archive[key] for name, key in keys.items()}


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
            fix = did_you_mean(key, _FIELDS).strip() or f"Use: {', '.join(sorted(_FIELDS))}."
            raise refused(f"The array {key!r} is not known.", fix, column=key)
    times, values = _floats(fields, "times", 1), _floats(fields, "values", 2)
    mask = _numbers(fields, "mask").astype(np.bool_) if "mask" in fields else np.ones(values.shape, dtype=np.bool_)
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
        positions=_optional(fields, "positions", 2),
        variance=_optional(fields, "variance", 2),
        truth=_truth(fields, times, len(values)),
        metadata={key.removeprefix("metadata/"): str(fields[key]) for key in fields if key.startswith("metadata/")},
    )


def _truth(fields: Arrays, times: FloatArray, num_outputs: int) -> Truth | None:
    keys = [key for key in fields if key.startswith("truth/")]
    if not keys:
        return None
    at = _floats(fields, "truth/times", 1) if "truth/times" in fields else times
    force, outputs, positions = (_optional(fields, f"truth/{name}", 2) for name in ("force", "outputs", "positions"))
    by_column = "Give one row per force or output, and one column per time."
    for key, array, fits, fix in (
        ("truth/force", force, force is None or force.shape[1] == len(at), by_column),
        ("truth/outputs", outputs, outputs is None or outputs.shape == (num_outputs, len(at)), by_column),
        ("truth/positions", positions, positions is None or len(positions) == len(at), "Give one row per time."),
    ):
        if array is not None and not fits:
            raise refused(f"{key} has shape {array.shape} for {len(at)} true times.", fix, column=key)
    parameters = {
        key.removeprefix("truth/parameters/"): _numbers(fields, key).astype(np.float64)
        for key in keys
        if key.startswith("truth/parameters/")
    }
    return Truth(at, force, outputs, positions, parameters)


def _numbers(fields: Arrays, key: str) -> NDArray[Any]:
    array = fields[key]
    if array.dtype.kind not in "fiub":
        raise refused(f"{key} holds {array.dtype} and not numbers.", "Give an array of floats.", column=key)
    return array


def _optional(fields: Arrays, key: str, ndim: int) -> FloatArray | None:
    return _floats(fields, key, ndim) if key in fields else None


def _floats(fields: Arrays, key: str, ndim: int) -> FloatArray:
    """An array as floats of `ndim` dimensions; [N] is taken for [1, N] where outputs are rows."""
    array = _numbers(fields, key)
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
