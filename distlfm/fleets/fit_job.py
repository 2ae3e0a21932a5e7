"""Fit a fleet as a job of blocks: a worker reads its block, fits it in one batch, and writes it to the store.

The first part is how a store keeps fits: which grid, which parameters, and one array per variable.

Shapes: `b` instances of a block, `P` outputs, `L` forces, `K` parameters, `n` observation points.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from distlfm.cluster.blocks.job import Worker
from distlfm.config import build
from distlfm.fleets.driver import StoreJob
from distlfm.fleets.sources import for_fitting
from distlfm.fleets.spool import Source
from distlfm.inference.archive import packed
from distlfm.inference.field.settings import open_field, shown_axes, shown_nodes, shown_times
from distlfm.inference.findings.scores import Figures, Tally, failed_row, row_of
from distlfm.inference.fit import InferenceConfig, fit_instances, seed_of
from distlfm.inference.model import Model
from distlfm.inference.result import FitResult
from distlfm.inference.survey import Survey
from distlfm.instance import AXES, Instance
from distlfm.mechanisms import build_system
from distlfm.runs.settings import FitConfig
from distlfm.runtime.reporting import during
from distlfm.solvers.field.meshed import SPARSE_NODES, close_helper_groups
from distlfm.store import STATUSES, Store, StoreSpec, pack
from distlfm.store.block import misfit
from distlfm.store.layout import variables

Arrays = dict[str, NDArray[Any]]


def grid_part(model: Model, options: InferenceConfig, found: Survey) -> dict[str, Any]:
    """The part of a store's spec that says where solutions and forces are given."""
    if not model.is_field:
        if not found.shared:
            return {"steps": options.grid_points}
        end = found.ends[1] if options.until is None else max(found.ends[1], options.until)
        times = found.starts[0] + (end - found.starts[0]) * np.linspace(0, 1, options.grid_points)
        return {"steps": options.grid_points, "times": tuple(times)}
    settings = options.settled
    assert settings is not None
    dims = model.field.field.num_dims
    times = shown_times(settings, dims)
    part: dict[str, Any] = {"steps": len(times), "times": tuple(times), "space": AXES[:dims]}
    axes = shown_axes(settings)
    if axes is not None:
        return {**part, "lattice": tuple(tuple(axis) for axis in axes)}
    nodes = shown_nodes(torch.from_numpy(open_field(model, settings).nodes))
    return {**part, "nodes": tuple(tuple(node) for node in nodes.tolist())}


def mesh_of(model: Model, options: InferenceConfig) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Nodes and cells of a field's mesh, unless it is too large to be kept in one piece."""
    if not model.is_field:
        return None
    assert options.settled is not None
    opened = open_field(model, options.settled)
    return (opened.nodes, opened.cells) if len(opened.nodes) <= SPARSE_NODES else None


def parameter_part(model: Model) -> dict[str, Any]:
    """The part of a store's spec that names the parameters which are not known."""
    space = model.space
    kinds = [parameter.kind for parameter in space.parameters for _ in parameter.free]
    return {"parameters": space.free_names, "parameter_kinds": tuple(kinds)}


def columns(
    spec: StoreSpec, instances: Sequence[Instance], results: Sequence[FitResult | None], seeds: Sequence[int]
) -> Arrays:
    """One array a variable, each [b, …]; an instance without a result has the status `failed`, and its data if there

    is a place for them: those with an output that the mechanism does not know have none.
    """
    arrays = {one.name: one.filled(len(instances)) for one in variables(spec)}
    pairs = enumerate(zip(instances, results, strict=True))
    shown = [row for row, (one, result) in pairs if result is not None or not misfit(spec, one)]
    for name, values in pack(spec, [instances[row] for row in shown]).items():
        arrays[name][shown] = values
    arrays["id"][:] = [one.id for one in instances]
    arrays["seed"][:] = seeds
    for row, result in enumerate(results):
        arrays["status"][row] = STATUSES["failed" if result is None else result.status]
        if result is not None and result.ok:
            _answer(spec, arrays, row, result)
    return arrays


def _answer(spec: StoreSpec, arrays: Arrays, row: int, result: FitResult) -> None:
    for name, band in (("solution", result.grid.outputs), ("force", result.grid.force)):
        shape = arrays[f"{name}_mean"].shape[1:]
        arrays[f"{name}_mean"][row] = band.mean.reshape(shape)
        arrays[f"{name}_var"][row] = band.sd.reshape(shape) ** 2
    if "time" in arrays:
        arrays["time"][row] = result.grid.times
    if spec.draws:
        drawn = result.draws(spec.draws, seed=int(arrays["seed"][row])).force
        arrays["force_draws"][row] = drawn.reshape(arrays["force_draws"].shape[1:])
    known = {estimate.name: estimate for estimate in result.estimates}
    arrays["params_mean"][row] = [known[name].mean for name in spec.parameters]
    arrays["params_var"][row] = [known[name].sd ** 2 for name in spec.parameters]
    arrays["elbo"][row], arrays["wall_s"][row] = result.bound, result.seconds


FITS = "fits"


def model_of(config: FitConfig, instances: Sequence[Instance]) -> Model:
    """The model of a config, its outputs taken from the data unless the config names them."""
    return model_with(config, list(dict.fromkeys(name for instance in instances for name in instance.outputs)))


def model_with(config: FitConfig, outputs: Sequence[str]) -> Model:
    """The model of a config for data with these outputs."""
    return Model(build_system(config.mechanism, list(outputs)), config.force, config.likelihood)


@dataclass(frozen=True)
class FitJob(StoreJob):
    """config: the resolved one, as plain data, so that plugins are imported where it is opened.

    costs: of each block, about: the squared numbers of its instances' observation times, summed.
    """

    config: dict[str, Any]
    options: InferenceConfig
    source: Source
    run: Path
    store: Store
    keep: Literal["all", "few", "none"]
    costs: tuple[float, ...]
    cpus: int = 1
    grouped: bool = False
    memory: int = 0

    def sizes(self) -> Sequence[float]:
        return self.costs

    def open(self) -> Worker:
        return FitWorker(self, build(FitConfig, self.config))


class FitWorker(Worker):
    """Fits blocks, one after another."""

    def __init__(self, job: FitJob, config: FitConfig) -> None:
        self.job, self.config = job, config
        self.model = model_with(config, job.source.outputs)
        torch.set_num_threads(config.run.threads)

    def run(self, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
        began = time.perf_counter()
        chosen = self._chosen(block)
        rows = [row for row in range(len(chosen)) if row not in left_out]
        fitted = dict(zip(rows, self._fit([chosen[row] for row in rows]), strict=True))
        results = [fitted.get(row) for row in range(len(chosen))]
        with during("scores"):
            figures = [
                failed_row(one.id, left_out[row]) if result is None else row_of(result)
                for row, (one, result) in enumerate(zip(chosen, results, strict=True))
            ]
        fitted_at = time.perf_counter()
        seconds = fitted_at - began
        kept = self._keep(block, results, figures)
        arrays = columns(self.job.store.spec, chosen, results, self._seeds(chosen))
        marker = self.job.store.write_block(block, arrays, figures, seconds, kept)
        written = time.perf_counter() - fitted_at
        return {"count": len(chosen), "failed": marker.failed, "seconds": seconds, "write_s": written}

    def attempt(self, block: int, rows: Sequence[int]) -> None:
        chosen = [one for row, one in enumerate(self._chosen(block)) if row in rows]
        fitted = self._fit(chosen)
        for result in fitted:
            row_of(result)
        columns(self.job.store.spec, chosen, fitted, self._seeds(chosen))

    def close(self) -> None:
        if self.model.is_field:
            close_helper_groups()

    def _chosen(self, block: int) -> list[Instance]:
        where = self.job.store.block_range(block)
        return [for_fitting(one, self.config.data) for one in self.job.source.read(where.start, where.stop)]

    def _seeds(self, instances: Sequence[Instance]) -> list[int]:
        return [seed_of(self.config.run.seed, one.id) for one in instances]

    def _fit(self, instances: Sequence[Instance]) -> list[FitResult]:
        return fit_instances(self.model, instances, self.job.options, self.config.run.seed) if instances else []

    def _keep(self, block: int, results: Sequence[FitResult | None], figures: Sequence[Figures]) -> dict[Path, bytes]:
        """Files with the whole posteriors of those instances that are to be kept; their rows tell where."""
        files: dict[Path, bytes] = {}
        first = self.job.store.block_range(block).start
        wanted = telling(figures) if self.job.keep == "few" else {str(row["id"]) for row in figures}
        for row, result in enumerate(results):
            if self.job.keep == "none" or result is None or result.id not in wanted:
                continue
            name = f"{first + row:05d}-{safe(result.id)}.npz"
            files[self.job.run / FITS / name] = packed(result)
            figures[row]["kept"] = f"{FITS}/{name}"
        return files


def telling(rows: Sequence[Figures]) -> set[str]:
    """Ids of the worst, the middle, the best and the slowest of a block: the whole run's are among them."""
    tally = Tally(rows)
    ranked = tally.worst() if len(rows) <= len(tally.first) else [*tally.worst(), *tally.best()]
    fitted = [row for row in ranked if row.get(tally.score) is not None]
    chosen = [fitted[0], fitted[len(fitted) // 2], fitted[-1]] if fitted else []
    return {str(row["id"]) for row in [*tally.slowest()[:1], *chosen]}


def safe(name: str) -> str:
    """An instance's id as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:60]
