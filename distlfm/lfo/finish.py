"""From a training to an operator: the best weights, calibrated, with a novelty score."""

from __future__ import annotations

from typing import Any

from distlfm.lfo.calibrate import Calibration, calibrate, coverage
from distlfm.lfo.loop import Training
from distlfm.lfo.novelty import Novelty, features
from distlfm.lfo.operator import Operator

FEWEST = 10
"""Instances of the calibration split without which nothing is calibrated."""

MOST = 4096
"""Instances of the training split that describe it."""


def finish(training: Training) -> Operator:
    """The operator of a training, calibrated on the calibration split.

    The coverage in its `training` is that of the validation split, which the calibration has not seen.
    """
    model, examples, parts, schema = (
        training.best_model().cpu().float(),
        training.examples,
        training.split,
        training.schema,
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
        "stores": list(examples.sources),
        "instances": {name: len(getattr(parts, name)) for name in ("train", "validation", "calibration")},
    }
    if len(parts.calibration) >= FEWEST:
        held_out, some = examples.batch(parts.calibration), examples.batch(parts.train[:MOST])
        raw = operator.predict(held_out.values, held_out.mask)
        operator.calibration = calibrate(raw, held_out, model.normal)
        kinds = [
            features(model, one.values, one.mask, operator.predict(one.values, one.mask)) for one in (some, held_out)
        ]
        operator.novelty = Novelty.fit(*kinds)
        if len(parts.validation):
            check = examples.batch(parts.validation)
            told["coverage"] = coverage(
                operator.predict(check.values, check.mask), check, model.normal, operator.calibration
            )
    operator.training = told
    return operator
