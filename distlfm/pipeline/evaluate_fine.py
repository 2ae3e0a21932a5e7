"""Super-resolution: fresh instances on a grid twice as fine as the trained one, answered on both grids."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from distlfm.config import build
from distlfm.instance import Instance
from distlfm.lfo import Answer, Operator
from distlfm.pipeline.generate import generate
from distlfm.pipeline.generate_settings import GenerateConfig, SamplingConfig
from distlfm.pipeline.query_figures import row_of
from distlfm.report.lfo_page import Resolutions
from distlfm.store import Store

COUNT = 2
"""Instances that are drawn anew."""

FRESH = 715_517
"""Added to the seed of the store, so that no instance is one that was learned from."""


def resolutions(operator: Operator, store: Store, count: int = COUNT) -> list[Resolutions]:
    """Fresh instances of a generated store's config, asked on the trained grid and on one twice as fine.

    Nothing for a fitted store. Raises a DistlfmError where the config cannot be drawn from here (a plugin that is not
    there, say).
    """
    if store.spec.kind != "generate":
        return []
    fine = fresh(store.spec.attributes.get("config", {}), operator, count)
    return [_both(operator, one) for one in fine]


def fresh(config: dict[str, object], operator: Operator, count: int) -> list[Instance]:
    """Instances observed at every point of a grid with half the trained step."""
    dims = operator.schema.dims
    with tempfile.TemporaryDirectory(prefix="distlfm-fine-") as folder:
        given = build(GenerateConfig, {**config, "run": {"dir": str(Path(folder) / "fine.zarr"), "executor": "serial"}})
        places = 2 * dims[1].size - 1 if len(dims) > 1 else given.places
        changed = {
            "instances": count,
            "seed": given.seed + FRESH,
            "points": 2 * dims[0].size - 1,
            "places": places,
            "sampling": SamplingConfig(),
            "missing": 0.0,
            "gaps": None,
        }
        return generate(given.model_copy(update=changed)).instances()


def thinned(instance: Instance) -> Instance:
    """Every second point of an even grid, in each of its dimensions; the truth stays whole."""
    if instance.positions is None:
        return instance.thinned(2)
    axes = [instance.times, *instance.positions.T]
    places = [np.unique(np.round(axis, 9), return_inverse=True)[1].ravel() for axis in axes]
    keep = np.all([place % 2 == 0 for place in places], axis=0)
    return replace(
        instance,
        times=instance.times[keep],
        values=instance.values[:, keep],
        mask=instance.mask[:, keep],
        positions=instance.positions[keep],
        variance=None if instance.variance is None else instance.variance[:, keep],
    )


def _both(operator: Operator, fine: Instance) -> Resolutions:
    coarse = thinned(fine)
    answers = operator(coarse.blind()), operator(fine.blind())
    rows = [row_of(answer, one, operator.schema, 0.0) for answer, one in zip(answers, (coarse, fine), strict=True)]
    sizes = ["×".join(map(str, answer.shape)) for answer in answers]
    figures = {f"force Q² at {size}": row["latent_q2"] for size, row in zip(sizes, rows, strict=True)}
    figures["largest change of a parameter"] = change(*answers)
    return Resolutions(fine, answers, figures)


def change(first: Answer, second: Answer) -> float | None:
    """The largest difference of two answers' parameters, relative to the first."""
    pairs = zip(first.parameters, second.parameters, strict=True)
    return max((abs(b.mean - a.mean) / max(abs(a.mean), 1e-12) for a, b in pairs), default=None)
