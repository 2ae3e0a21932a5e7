"""The reference data: what each set is, where it comes from, and how to read it.

`catalog.yaml` lists them. The data are not part of the package. Their folder is named by the environment variable
DISTLFM_DATA_DIR, and without it the error says enough to find the set elsewhere. `list_datasets` and `check` describe
the catalogue, and a file, as plain rows for whoever prints them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import Config, read_yaml
from distlfm.data.base import ColumnMap, ReadReport, did_you_mean
from distlfm.data.reading import examine, read
from distlfm.errors import Problem, UsageError, refused
from distlfm.instance import Instance, Truth

DATA_DIR_VARIABLE = "DISTLFM_DATA_DIR"
NOT_STATED = "not stated"


class Dataset(Config):
    """One reference set. `columns` are all names in the file, `column_map` the part each plays (None for npz)."""

    name: str
    file: str
    title: str
    origin: str
    columns: tuple[str, ...]
    sha256: str
    column_map: ColumnMap | None = None
    accession: str = NOT_STATED
    licence: str = NOT_STATED
    units: Mapping[str, str] = {}
    note: str = ""
    true_parameters: Mapping[str, float] = {}


DATASETS: Mapping[str, Dataset] = {
    name: Dataset(name=name, **entry) for name, entry in read_yaml(Path(__file__).with_name("catalog.yaml")).items()
}


def dataset(name: str) -> Dataset:
    """The entry of a set, by its name."""
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS)
        raise UsageError(f"There is no reference set {name!r}.", f"{hint}Known: {', '.join(DATASETS)}.")
    return DATASETS[name]


def data_dir() -> Path | None:
    """The folder of the reference data, if the environment names one."""
    named = os.environ.get(DATA_DIR_VARIABLE)
    return Path(named).expanduser() if named else None


def available() -> list[str]:
    """Names of the sets whose file is there."""
    folder = data_dir()
    return [] if folder is None else [name for name, entry in DATASETS.items() if (folder / entry.file).is_file()]


def path_of(name: str) -> Path:
    """The file of a set, or an error that says where the set comes from."""
    entry = dataset(name)
    folder = data_dir()
    if folder is None or not (folder / entry.file).is_file():
        missing = f"{DATA_DIR_VARIABLE} is not set" if folder is None else f"{folder} does not hold it"
        fix = (
            f"Get the file and set {DATA_DIR_VARIABLE} to the folder it is in. {entry.title}. Origin: {entry.origin}. "
            f"Accession: {entry.accession}. Licence: {entry.licence}. File {entry.file} with columns "
            f"{', '.join(entry.columns)}; sha256 {entry.sha256}."
        )
        raise refused(f"The reference set {name!r} is not here: {missing}.", fix, entry.file)
    return folder / entry.file


def load(name: str, columns: ColumnMap | None = None) -> ReadReport:
    """Read a reference set; `columns` replaces the part each column plays."""
    entry = dataset(name)
    path = path_of(name)
    report = read(path, columns or entry.column_map)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != entry.sha256:
        what = f"The file is not the one that is known: its sha256 is {digest} and not {entry.sha256}."
        report.notices.append(Problem(what, "Results on it may differ from published ones.", str(path)))
    report.instances = [_with_entry(instance, entry) for instance in report.instances]
    return report


def _with_entry(instance: Instance, entry: Dataset) -> Instance:
    truth: Truth | None = instance.truth
    if truth is not None and entry.true_parameters:
        truth = replace(truth, parameters={name: np.array([value]) for name, value in entry.true_parameters.items()})
    units = {f"unit_{column}": unit for column, unit in entry.units.items()}
    if entry.column_map is not None:
        units["time_unit"] = entry.units.get(entry.column_map.time, NOT_STATED)
        units["value_unit"] = entry.units.get(entry.column_map.values[0], NOT_STATED)
    stated = {key: unit for key, unit in units.items() if unit != NOT_STATED}
    return replace(instance, truth=truth, metadata={**instance.metadata, "dataset": entry.name, **stated})


def list_datasets() -> list[dict[str, str]]:
    """Return one row per reference set."""
    here = available()
    texts = ("name", "title", "origin", "accession", "licence", "file", "sha256", "note")
    return [
        {
            **{key: getattr(entry, key) for key in texts},
            "available": "yes" if entry.name in here else "no",
            "columns": ", ".join(entry.columns),
            "units": ", ".join(f"{column}: {unit}" for column, unit in entry.units.items()) or NOT_STATED,
        }
        for entry in DATASETS.values()
    ]


@dataclass(frozen=True)
class CheckReport:
    """What a file holds. Counts are over the usable instances; `num_cells` counts observed and missing values."""

    path: str
    num_instances: int
    outputs: tuple[str, ...]
    num_points: int
    num_cells: int
    num_missing: int
    time_range: tuple[float, float] | None
    num_space_dimensions: int
    truth: tuple[str, ...]
    set_aside: tuple[Problem, ...]
    notices: tuple[Problem, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line to print; what was set aside and the notices are printed beside them."""
        dims = self.num_space_dimensions
        share = f" ({self.num_missing / self.num_cells:.1%})" if self.num_cells else ""
        return [
            ("data", self.path),
            ("instances", f"{self.num_instances} usable, {len(self.set_aside)} set aside"),
            ("outputs", f"{len(self.outputs)}: {', '.join(self.outputs)}"),
            ("points", str(self.num_points)),
            ("times", "none" if self.time_range is None else f"{self.time_range[0]:g} to {self.time_range[1]:g}"),
            ("space", {0: "none", 1: "1 dimension"}.get(dims, f"{dims} dimensions")),
            ("missing", f"{self.num_missing} of {self.num_cells} values{share}"),
            ("truth", ", ".join(self.truth) + " (for scoring only)" if self.truth else "none"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same for programs, as JSON can hold it."""
        return asdict(self)


def check(path: str | Path, columns: ColumnMap | None = None) -> CheckReport:
    """Read a file or folder, and return what is in it.

    path, columns: as for `read`. Raises `DataError` if it cannot be read at all.
    """
    report = examine(path, columns)
    instances = report.instances
    times = [float(time) for one in instances for time in (one.times[0], one.times[-1])]
    return CheckReport(
        path=str(path),
        num_instances=len(instances),
        outputs=tuple(dict.fromkeys(name for instance in instances for name in instance.outputs)),
        num_points=sum(len(instance.times) for instance in instances),
        num_cells=sum(instance.mask.size for instance in instances),
        num_missing=sum(int((~instance.mask).sum()) for instance in instances),
        time_range=(min(times), max(times)) if times else None,
        num_space_dimensions=max((one.positions.shape[1] for one in instances if one.positions is not None), default=0),
        truth=tuple(kind for kind in ("force", "outputs", "parameters") if any(_knows(one, kind) for one in instances)),
        set_aside=tuple(report.set_aside),
        notices=tuple(report.notices),
    )


def _knows(instance: Instance, kind: str) -> bool:
    known = getattr(instance.truth, kind, None)
    return known is not None and len(known) > 0
