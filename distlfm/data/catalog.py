"""The reference data: what each set is, where it comes from, and how to read it.

The data are not part of the package. Their folder is named by the environment variable DISTLFM_DATA_DIR, and without it
the error says enough to find the set elsewhere. `list_datasets` and `check` describe the catalogue, and a file, as
plain rows for whoever prints them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.data.base import ColumnMap, ReadReport, did_you_mean
from distlfm.data.reading import examine, read
from distlfm.errors import Problem, UsageError, refused
from distlfm.instance import Instance, Truth

DATA_DIR_VARIABLE = "DISTLFM_DATA_DIR"
NOT_STATED = "not stated"


@dataclass(frozen=True)
class Dataset:
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
    units: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    true_parameters: Mapping[str, float] = field(default_factory=dict)


_P53 = ("replicate", "time_h", "gene")
_REACTION_DIFFUSION = {"sensitivity": 1.0, "decay": 0.1, "diffusion": 0.01}


def _glucose(name: str, study: str, licence: str, sha256: str) -> Dataset:
    return Dataset(
        name,
        f"glucose/site_{name}.csv.gz",
        f"Continuous glucose monitoring, {study}, at most 7 days per patient, dates removed, duplicated times averaged",
        f"{study}, harmonised by Glucose-ML",
        ("patient", "time_min", "glucose_mg_dl"),
        sha256,
        ColumnMap(instance="patient", time="time_min", values="glucose_mg_dl"),
        licence=licence,
        units={"time_min": "min", "glucose_mg_dl": "mg/dL"},
    )


_DATASETS = (
    Dataset(
        "p53",
        "p53_barenco.csv",
        "Human leukaemia cells after 5 Gy: five p53 targets, 3 replicates, 7 times",
        "Barenco et al., PUMA-processed, as distributed with the gpsim software; used by Lawrence et al. 2007",
        (*_P53, "expression", "variance"),
        "979befbf86093fbd0a1b21efc333d4b7fdb2987aa20597e77b69ad2243fc7837",
        ColumnMap(instance="replicate", time="time_h", output="gene", values="expression", variance="variance"),
        accession="ArrayExpress E-MEXP-549",
        units={"time_h": "h", "expression": NOT_STATED},
    ),
    Dataset(
        "hafner",
        "hafner_p53.csv",
        "MCF7 cells after 10 Gy: 21 p53 targets, 2 replicates, 13 hourly times",
        "Hafner et al., NCBI raw counts, normalised to counts per million",
        (*_P53, "cpm"),
        "f6028a7c9424be96daae5839046cacb438ebc75bfff8b388f0f78e4ab02602f4",
        ColumnMap(instance="replicate", time="time_h", output="gene", values="cpm"),
        accession="GEO GSE100099",
        units={"time_h": "h", "cpm": "counts per million"},
    ),
    Dataset(
        "kni",
        "kni_becker.csv",
        "Drosophila gap gene knirps: protein and mRNA at 8 times and 57 positions",
        "Becker et al. 2013",
        ("time_min", "position", "protein", "mrna"),
        "eccdf959b4780462a19b2296828573f2d87f05555f39413711fd4af03c71f805",
        ColumnMap(time="time_min", positions="position", values="protein", truth_force="mrna"),
        units={"time_min": "min", "position": NOT_STATED, "protein": NOT_STATED, "mrna": NOT_STATED},
        note="The protein is not zero at the first time, and the force has no scale of its own.",
    ),
    Dataset(
        "reaction_diffusion_toy",
        "reaction_diffusion_toy.csv",
        "One simulated reaction-diffusion field on 41 x 41 points with its true force",
        "López-Lopera et al. 2019",
        ("t", "x", "force", "output"),
        "7ea404ffca78d452f3621f9ef3c664cda9c8d7095dd822727cc4b77d6ad54cec",
        ColumnMap(time="t", positions="x", values="output", truth_force="force"),
        note="The output is a ten-term sine series, which differs from the PDE's solution by an RMSE of 0.008.",
        true_parameters=_REACTION_DIFFUSION,
    ),
    Dataset(
        "reaction_diffusion_noisy",
        "reaction_diffusion_noisy.csv",
        "The force of reaction_diffusion_toy, with the PDE's converged solution and noise of deviation 0.008",
        "made for distlfm from reaction_diffusion_toy (López-Lopera et al. 2019)",
        ("t", "x", "force", "output", "output_clean"),
        "d2c65065dd6b58dd10c4fc14055222c466b0faa37df9fdb5dc61722f5219a751",
        ColumnMap(time="t", positions="x", values="output", truth_force="force", truth_outputs="output_clean"),
        note="There is no noise at the boundary and at t = 0.",
        true_parameters=_REACTION_DIFFUSION,
    ),
    Dataset(
        "transcription_toy",
        "transcription_toy.npz",
        "Five simulated 5-gene transcription instances with true force and rates, noise-free",
        'test sets of the paper "Approximate Latent Force Model Inference"',
        ("t", "y", "force", "basal", "sensitivity", "decay", "sensitivity_as_recorded", "train_stride"),
        "5b19f0567ffd7ce01e5cc16039f36e40222ae32f5277f4dc2e7a8a02ed90a689",
        note="Train on every metadata['train_stride']-th time. Series start in the steady state basal / decay. "
        "sensitivity_as_recorded is not what the data was made with, and is not read.",
    ),
    Dataset(
        "lynx_hare",
        "lynx_hare.csv",
        "Hudson Bay pelts 1900-1920",
        "Hudson's Bay Company records",
        ("year", "hare", "lynx"),
        "51ab3a3912b247c09e12058593abbcf5cbe65f15dd9db7f7e0d5184d655500e4",
        ColumnMap(time="year", values="lynx", truth_force="hare"),
        units={"year": "year", "hare": "thousands", "lynx": "thousands"},
        note="The hare is taken for the hidden force; give your own column map to observe both.",
    ),
    _glucose("hall2018", "Hall 2018", "CC BY 4.0", "6b0372614f11efc998f7a593de45b836a52db096c5d939404929a404c6f93fb7"),
    _glucose("azt1d", "AZT1D 2025", "CC BY 4.0", "cc0ba00398c1b3c69ab35e276c7ddd989a5ae3c7fb1c00b8d8d2dd897a14cd70"),
    _glucose("hupa", "HUPA-UCM 2024", "CC BY 4.0", "823b265bfee99c419ff5e134306f18b56d8adac42fac8d001bcd676cc0dc122a"),
    _glucose(
        "bigideas", "BIG IDEAs 2023", "ODC-By 1.0", "f74dcf2a334d08c42d9973f0884d3fab7063f6008cbeecceb4a66cf73fc57bcd"
    ),
)
DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _DATASETS}


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
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != entry.sha256:
        what = f"The file is not the one that is known: its sha256 is {found} and not {entry.sha256}."
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
    """Read a file or folder and say what is in it. Raises DataError if it cannot be read at all."""
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
