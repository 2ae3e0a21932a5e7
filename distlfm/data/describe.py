"""What is in the catalogue and in a file, as plain rows for whoever prints them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distlfm.data import catalog
from distlfm.data.base import ColumnMap
from distlfm.data.door import examine
from distlfm.errors import Problem


def list_datasets() -> list[dict[str, str]]:
    """One row for each reference set."""
    here = set(catalog.available())
    return [
        {
            "name": entry.name,
            "available": "yes" if entry.name in here else "no",
            "title": entry.title,
            "origin": entry.origin,
            "accession": entry.accession,
            "licence": entry.licence,
            "file": entry.file,
            "columns": ", ".join(entry.columns),
            "units": ", ".join(f"{column}: {unit}" for column, unit in entry.units.items()) or catalog.NOT_STATED,
            "sha256": entry.sha256,
            "note": entry.note,
        }
        for entry in catalog.DATASETS.values()
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
    """Read a file or folder and say what is in it. Raises DataError if it cannot be read at all."""
    report = examine(path, columns)
    instances = report.instances
    truths = [instance.truth for instance in instances if instance.truth is not None]
    kinds = {
        "force": any(truth.force is not None for truth in truths),
        "outputs": any(truth.outputs is not None for truth in truths),
        "parameters": any(truth.parameters for truth in truths),
    }
    return CheckReport(
        path=str(path),
        num_instances=len(instances),
        outputs=tuple(dict.fromkeys(name for instance in instances for name in instance.outputs)),
        num_points=sum(len(instance.times) for instance in instances),
        num_cells=sum(instance.mask.size for instance in instances),
        num_missing=sum(int((~instance.mask).sum()) for instance in instances),
        time_range=(
            (
                min(float(instance.times[0]) for instance in instances),
                max(float(instance.times[-1]) for instance in instances),
            )
            if instances
            else None
        ),
        num_space_dimensions=max(
            (instance.positions.shape[1] for instance in instances if instance.positions is not None), default=0
        ),
        truth=tuple(kind for kind, there in kinds.items() if there),
        set_aside=tuple(report.set_aside),
        notices=tuple(report.notices),
    )
