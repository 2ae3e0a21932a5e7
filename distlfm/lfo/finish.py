"""From a training to an operator: the best weights, calibrated, with a novelty score."""

from __future__ import annotations

from typing import Any

from distlfm.lfo.calibrate import Calibration, calibrate, coverage
from distlfm.lfo.learned_priors import priors_of
from distlfm.lfo.lineage import lineage_of
from distlfm.lfo.loop import Training
from distlfm.lfo.novelty import Novelty, features
from distlfm.lfo.operator import Operator

FEWEST = 10
"""Instances of the calibration split without which nothing is calibrated."""

MOST = 4096
"""Instances of a split that describe it; of more, evenly spaced ones."""


def finish(training: Training) -> Operator:
    """The operator of a training, calibrated on those of the calibration split whose force is known.

    If these are too few, it has the calibration of the operator that it began with, or none; so with the novelty score,
    for which instances need no labels. The coverage in its `training` is that of the validation split, which the
    calibration has not seen.
    """
    model, examples, parts, schema, start = (
        training.best_model().cpu().float(),
        training.examples,
        training.split,
        training.schema,
        training.start,
    )
    operator = Operator(
        schema, training.config.operator, model, Calibration.none(len(schema.forces), len(schema.parameters))
    )
    told: dict[str, Any] = {
        "settings": training.config.model_dump(mode="json"),
        "best": training.best,
        "history": training.history,
        "step": training.step,
        "seconds": training.seconds,
        "stores": list(lineage_of(examples)),
        "priors": priors_of(examples.stores, start),
        "instances": {name: len(getattr(parts, name)) for name in ("train", "validation", "calibration")},
        "unlabelled": int((~examples.labelled).sum()),
    }
    held_out = examples.some(parts.calibration, MOST)
    known = held_out[examples.labelled[held_out]]
    if len(known) >= FEWEST:
        batch = examples.batch(known)
        operator.calibration = calibrate(operator.predict(batch.values, batch.mask), batch, model.normal)
    elif start is not None:
        operator.calibration = start.calibration
        told["calibrated_before"] = True
    if len(held_out) >= FEWEST:
        both = [examples.batch(rows) for rows in (examples.some(parts.train, MOST), held_out)]
        some, held = (features(model, one.values, one.mask, operator.predict(one.values, one.mask)) for one in both)
        operator.novelty = Novelty.fit(some, held, training.config.augment.missing)
    elif start is not None:
        operator.novelty = start.novelty
    check = examples.some(parts.validation, MOST)
    check = check[examples.labelled[check]]
    if len(check) and operator.calibration.instances:
        batch = examples.batch(check)
        ready = operator.predict(batch.values, batch.mask)
        told["coverage"] = coverage(ready, batch, model.normal, operator.calibration)
    if start is not None:
        told["stores"] = list(dict.fromkeys([*told["stores"], *start.training.get("stores", [])]))
    operator.training = told
    return operator
