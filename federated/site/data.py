"""A site's patients: their records cut into windows and fitted, into the site's own store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from distlfm.config import build
from distlfm.errors import OtherWork, UsageError
from distlfm.federated.settings import SiteConfig
from distlfm.federated.site.cohort import FITS, groups, patient_of
from distlfm.fleets.sources import Intake, read_instances, windows
from distlfm.instance import Instance
from distlfm.lfo import Batch, Operator
from distlfm.queries.asking import renamed
from distlfm.runs.folder import ELSEWHERE
from distlfm.runs.settings import DataConfig, FitConfig
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store import Store, find_store
from distlfm.verbs.fit import fit


def site_store(folder: Path, config: SiteConfig) -> Store:
    """The pairs of a site that was prepared."""
    place = folder / (FITS if config.store is None else config.store)
    if config.store is None and not place.is_dir():
        raise UsageError(
            f"The site {config.name} has no fits of its patients yet.",
            f"Fit them first: distlfm federated prepare {folder}",
        )
    return Store.open(find_store(place))


def fit_patients(folder: Path, config: SiteConfig, reporter: Reporter) -> int:
    """Fit all windows of the site's patients; what was fitted before is kept. Returns how much was left out: records
    that were set aside, and windows whose fit failed."""
    if config.store is not None:
        site_store(folder, config)
        return 0
    chosen = fit_config(folder, config)
    instances, left_out = records(chosen.data, config.windows, config.patients, reporter)
    # The windows are cut already; where they came from changes no number.
    data = DataConfig(**chosen.data.model_dump(include={"stride", "fraction", "split_seed", "scale"}))
    run = chosen.run.model_copy(update={"dir": folder / FITS})
    patients = len({patient_of(one.id) for one in instances})
    reporter.say(f"site {config.name}: {len(instances)} windows of {patients} patients")
    try:
        run_of_all = fit(chosen.model_copy(update={"data": data, "run": run}), data=instances, reporter=reporter)
    except OtherWork as error:
        if error.fix != ELSEWHERE:
            raise
        raise OtherWork(
            error.cause, f"Take back what was changed, or delete {folder / FITS}: the patients are then fitted anew."
        ) from None
    return left_out + len(run_of_all.set_aside) + run_of_all.tally.failed


def fit_config(folder: Path, config: SiteConfig) -> FitConfig:
    """How the site's patients are fitted; a path of its data counts from the site's folder, wherever a process is."""
    assert config.fit is not None
    found = build(FitConfig, config.fit, source=f"fit of the site {config.name}")
    if found.data.path is None:
        return found
    data = found.data.model_copy(update={"path": folder.resolve() / found.data.path.expanduser()})
    return found.model_copy(update={"data": data})


def records(
    data: DataConfig,
    most_windows: int | None = None,
    most_patients: int | None = None,
    reporter: Reporter | None = None,
) -> tuple[list[Instance], int]:
    """The windows of some patients, in the order of the data, and how many were set aside, which is reported."""
    if data.path is None and data.dataset is None:
        raise UsageError("The path of the patients' records is missing.", "Set data.path or data.dataset in fit.")
    whole = data.model_copy(update={"window": None, "scale": "none", "stride": 1, "fraction": 1.0})
    report = read_instances(whole)
    Intake(report.set_aside, report.notices).tell(reporter or Silent())
    found: Sequence[Instance] = report.instances[:most_patients]
    if data.window is not None:
        found = list(windows(found, data.window))
    kept = {row for rows in groups([one.id for one in found]).values() for row in rows[:most_windows]}
    return [one for row, one in enumerate(found) if row in kept], len(report.set_aside)


def unlabelled(operator: Operator, instances: Sequence[Instance]) -> Batch:
    """Windows as they were observed, with no force or parameters known."""
    shape = operator.schema.shape
    known = [renamed(one, {}, operator.schema.outputs) for one in instances]
    values, mask = operator.arrays(known, shape)
    count = len(instances)
    force = torch.full((count, len(operator.schema.forces), *shape), torch.nan)
    params = torch.full((count, len(operator.schema.parameters)), torch.nan)
    return Batch(
        values=values,
        mask=mask,
        force=force,
        force_var=force,
        params=params,
        params_var=params,
        clean=torch.full_like(values, torch.nan),
        noise=torch.full(values.shape[:2], torch.nan),
        ids=tuple(one.id for one in instances),
    )
