"""`distlfm fit`: read instances, infer their forces in batches, write a run directory."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from distlfm.config import dump, fingerprint, load
from distlfm.data import ReadReport, catalog, read
from distlfm.data.prepare import scaled, windows
from distlfm.errors import Problem, UsageError, WorkError
from distlfm.inference.archive import SavedFits, save
from distlfm.inference.fit import fit_instances, instance_bytes, settle_fleet
from distlfm.inference.metrics import Figures, figures, overall
from distlfm.inference.model import Model
from distlfm.inference.result import Digest, FitResult
from distlfm.instance import Instance
from distlfm.mechanisms import build_system
from distlfm.pipeline.settings import DataConfig, FitConfig
from distlfm.report.fit_report import fit_page
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.version import __version__

BATCH_BYTES = 1_500_000_000
"""Memory that a batch may take; its size follows from it unless run.batch is set."""

MAX_BATCH = 256


@dataclass
class FitRun:
    """What a fit gave. `results` are in the order of the data; `set_aside` could not be read.

    With `run.dir` a result is read from its file each time it is asked for, and memory is that of one batch; without,
    all results are kept.
    """

    config: FitConfig
    results: Sequence[FitResult] = ()
    digests: list[Digest] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)
    set_aside: list[Problem] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any]:
        mean, worst = overall(self.figures)
        return {
            "instances": self.figures,
            "mean": mean,
            "worst": worst,
            "set_aside": [str(problem) for problem in self.set_aside],
            "config_hash": fingerprint(self.config),
            "versions": versions(),
        }


def versions() -> dict[str, str]:
    """What made the numbers."""
    return {"distlfm": __version__, "torch": torch.__version__, "python": platform.python_version()}


def fit(
    config: FitConfig | Path | str,
    data: Sequence[Instance] | Path | str | None = None,
    overrides: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> FitRun:
    """Infer the forces of all instances. `data` stands in for the config's: instances, or a path to them.

    With `run.dir` set, the run directory is written: config.yaml, summary.json, fits/, report.html.
    """
    reporter = reporter or Silent()
    if not isinstance(config, FitConfig):
        config = load(FitConfig, Path(config), overrides)
    if isinstance(data, Path | str):
        config = config.model_copy(update={"data": config.data.model_copy(update={"path": Path(data)})})
        data = None
    if config.run.dir is not None:
        _prepare(config.run.dir)
    report = read_instances(config.data) if data is None else ReadReport(instances=list(data))
    for notice in report.notices:
        reporter.say(f"notice: {notice}")
    for problem in report.set_aside:
        reporter.warn(f"set aside: {problem}")
    run = FitRun(config, set_aside=report.set_aside)
    model = model_of(config, report.instances)
    # Where and when a field was looked at is known of held-back points too: the domain must hold them.
    seen = report.instances if model.is_field else [_for_fitting(one, config.data) for one in report.instances]
    options = settle_fleet(model, seen, config.inference)
    with reporter.task("fit", len(report.instances)) as task, torch_threads(config.run.threads):
        for block in _blocks(report.instances, config, model):
            chosen = [_for_fitting(instance, config.data) for instance in block]
            _add(run, fit_instances(model, chosen, options, config.run.seed))
            failed = sum(not digest.ok for digest in run.digests)
            task.advance(len(block), f"{failed} failed" if failed else "")
    if config.run.dir is not None:
        _write(run, config.run.dir)
    if not any(digest.ok for digest in run.digests):
        raise WorkError(f"All {len(run.digests)} fits failed.", run.digests[0].advice)
    return run


def _add(run: FitRun, results: Sequence[FitResult]) -> None:
    """Score a batch and put it on disk, or, where there is no directory, in memory."""
    run.figures += [figures(result) for result in results]
    run.digests += [result.digest for result in results]
    if run.config.run.dir is None:
        run.results = [*run.results, *results]
        return
    folder, first = run.config.run.dir / "fits", len(run.results)
    paths = [folder / f"{number:05d}-{_safe(result.id)}.npz" for number, result in enumerate(results, first)]
    for result, path in zip(results, paths, strict=True):
        save(result, path)
    before = run.results.paths if isinstance(run.results, SavedFits) else []
    run.results = SavedFits([*before, *paths])


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Tensor operations take `count` threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read_instances(config: DataConfig) -> ReadReport:
    """The instances that a config's data section names."""
    if config.dataset is None and config.path is None:
        raise UsageError("No data are named.", "Give --data PATH, or set data.path or data.dataset in the config.")
    if config.path is None:
        assert config.dataset is not None
        report = catalog.load(config.dataset, config.columns)
    else:
        columns = config.columns
        if columns is None and config.dataset is not None:
            columns = catalog.dataset(config.dataset).column_map
        report = read(config.path, columns)
    if config.only:
        known = [instance.id for instance in report.instances]
        missing = [name for name in config.only if name not in known]
        if missing:
            raise UsageError(
                f"There is no instance {missing[0]!r} in the data.", f"Known are: {', '.join(known[:20])}."
            )
        report.instances = [instance for instance in report.instances if instance.id in config.only]
    if config.window is not None:
        report.instances = list(windows(report.instances, config.window))
    if config.scale == "output":
        report.instances = [scaled(instance) for instance in report.instances]
    return report


def _for_fitting(instance: Instance, data: DataConfig) -> Instance:
    """The observations of an instance that a fit may see."""
    thinned = instance.thinned(data.stride)
    if thinned.positions is not None:
        thinned = thinned.observed()
    return thinned if data.fraction == 1.0 else thinned.sampled(data.fraction, data.split_seed)


def model_of(config: FitConfig, instances: Sequence[Instance]) -> Model:
    """The model of a config, its outputs taken from the data unless the config names them."""
    outputs = list(dict.fromkeys(name for instance in instances for name in instance.outputs))
    return Model(build_system(config.mechanism, outputs), config.force, config.likelihood)


def _blocks(instances: Sequence[Instance], config: FitConfig, model: Model) -> Iterator[Sequence[Instance]]:
    size = config.run.batch or _batch_size(instances, config, model)
    for start in range(0, len(instances), size):
        yield instances[start : start + size]


def _batch_size(instances: Sequence[Instance], config: FitConfig, model: Model) -> int:
    """As many instances as fit in BATCH_BYTES, or in half of the memory that is free."""
    times = max(len(instance.times) for instance in instances) // config.data.stride + 1
    each = instance_bytes(model, times, config.inference)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(MAX_BATCH, min(BATCH_BYTES, free // 2) // each))


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "fits").mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot write to {directory}: {error.strerror}.", "Choose another --out directory.") from None


def _write(run: FitRun, directory: Path) -> None:
    (directory / "config.yaml").write_text(dump(run.config), encoding="utf-8")
    summary = run.summary
    (directory / "summary.json").write_text(json.dumps(_finite(summary), indent=2, allow_nan=False), encoding="utf-8")
    provenance = {
        "seed": str(run.config.run.seed),
        "config hash": summary["config_hash"],
        **summary["versions"],
    }
    fit_page(directory / "report.html", run.results, summary, dump(run.config), provenance, digests=run.digests)


def _finite(value: Any) -> Any:
    """The same with null for every number that is not finite: JSON has none, and a failed fit has some."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _safe(name: str) -> str:
    """An instance's id as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:60]
