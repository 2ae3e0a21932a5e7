"""From a training to an operator: the best weights, calibrated, with a novelty score.

A checkpoint also keeps what the stores come from (`lineage`), which says whether an operator has seen instances before,
in this store or in another one, and the priors of what it learned from, which are those of its answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from distlfm.config import digest
from distlfm.lfo.calibrate import Calibration, calibrate, coverage
from distlfm.lfo.dataset import Batch, Examples, fingerprint
from distlfm.lfo.loop import Training
from distlfm.lfo.model import OperatorOutput
from distlfm.lfo.novelty import Novelty, features
from distlfm.lfo.operator import Operator
from distlfm.lfo.schema import mechanism_in
from distlfm.lfo.settings import Index
from distlfm.store import Store, StoreSpec, content_hash

SEEING = ("instances", "points", "places", "sampling", "missing", "gaps", "noise", "units", "title", "run")
"""Settings of a generated store that do not change what is drawn: how many, and how they are observed."""


def lineage(store: Store) -> tuple[str, ...]:
    """Hashes, one of which two stores share if instances of the same name are the same ones in both.

    They are hashes of the instances and their config; of the content, which fits keep as that of their data; of the
    data of fits; and of the draws of generated ones, which a store with more instances or on another grid has too.
    """
    attributes = store.spec.attributes
    marks = [fingerprint(store)]
    if markers := store.markers():
        marks.append(content_hash(markers))
    if store.spec.kind == "generate":
        origins = [attributes, *attributes.get("merged_from", [])]
        marks += [str(one["config_hash"]) for one in origins if one.get("config_hash")]
        marks += [_draws(attributes["config"])] if "seed" in attributes.get("config", {}) else []
    elif attributes.get("data"):
        marks.append(str(attributes["data"]))
    return tuple(dict.fromkeys(marks))


def lineage_of(examples: Examples) -> tuple[str, ...]:
    """That of all that is learned from."""
    stores = [hash_ for store in examples.stores for hash_ in lineage(store)]
    more = [] if examples.observed is None else [examples.observed.source]
    return tuple(dict.fromkeys([*stores, *more]))


def _draws(config: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in config.items() if key not in SEEING}
    return digest(json.dumps(kept, sort_keys=True))


Priors = dict[str, Any]
"""mechanism: its section `priors`; force, likelihood: these sections; noise: a stated standard deviation, or None.

Empty of data that do not say it.
"""


def priors_of(stores: Sequence[Store], start: Operator | None) -> list[Priors]:
    """All that differ, in the order of learning: those of the operator that a training began with come first."""
    priors = [] if start is None else learned_priors(start) or [{}]
    priors += [_priors_in(store.spec) for store in stores]
    return [one for i, one in enumerate(priors) if one not in priors[:i]]


def learned_priors(operator: Operator) -> list[Priors]:
    """What the operator's checkpoint says of them; nothing if it is of a distlfm that did not keep them."""
    priors = operator.training.get("priors", [])
    return [one for one in priors if isinstance(one, dict)] if isinstance(priors, list) else []


def _priors_in(spec: StoreSpec) -> Priors:
    config, mechanism = spec.attributes.get("config", {}), mechanism_in(spec)
    if not mechanism:
        return {}
    sections = {name: config.get(name, {}) for name in ("force", "likelihood")}
    return {"mechanism": mechanism.get("priors", {}), **sections, "noise": config.get("noise")}


FEWEST = 10
"""Instances of the calibration split without which nothing is calibrated."""

MOST = 4096
"""Instances of a split that describe it; of more, evenly spaced ones."""


def finish(training: Training) -> Operator:
    """Return the operator of a training, calibrated on those of the calibration split whose force is known.

    If these are too few, it has the calibration of the operator that it began with, or none; so with the novelty score,
    for which instances need no labels. The coverage in its `training` is that of the validation split, which the
    calibration has not seen.
    """
    model, examples, parts = training.best_model().cpu().float(), training.examples, training.split
    schema, start = training.schema, training.start

    def predicted(rows: Index) -> tuple[Batch, OperatorOutput]:
        batch = examples.batch(rows)
        return batch, operator.predict(batch.values, batch.mask)

    calibration = Calibration.none(len(schema.forces), len(schema.parameters))
    operator = Operator(schema, training.config.operator, model, calibration)
    seen_before = [] if start is None else start.training.get("stores", [])
    attributes: dict[str, Any] = {
        "settings": training.config.model_dump(mode="json"),
        "best": training.best,
        "history": training.history,
        "step": training.step,
        "seconds": training.seconds,
        "stores": list(dict.fromkeys([*lineage_of(examples), *seen_before])),
        "priors": priors_of(examples.stores, start),
        "instances": {name: len(getattr(parts, name)) for name in ("train", "validation", "calibration")},
        "unlabelled": int((~examples.labelled).sum()),
    }
    held_out, check = (examples.some(rows, MOST) for rows in (parts.calibration, parts.validation))
    known, check = (rows[examples.labelled[rows]] for rows in (held_out, check))
    if len(known) >= FEWEST:
        batch, raw = predicted(known)
        operator.calibration = calibrate(raw, batch, model.normal)
    elif start is not None:
        operator.calibration = start.calibration
        attributes["calibrated_before"] = True
    if len(held_out) >= FEWEST:
        both = [predicted(rows) for rows in (examples.some(parts.train, MOST), held_out)]
        some, held = (features(model, batch.values, batch.mask, found) for batch, found in both)
        operator.novelty = Novelty.fit(some, held, training.config.augment.missing)
    elif start is not None:
        operator.novelty = start.novelty
    if len(check) and operator.calibration.instances:
        batch, ready = predicted(check)
        attributes["coverage"] = coverage(ready, batch, model.normal, operator.calibration)
    operator.training = attributes
    return operator
