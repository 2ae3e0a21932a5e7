"""The priors of what an operator learned from. They are those of its answers, and a checkpoint keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distlfm.lfo.alike import mechanism_in
from distlfm.lfo.operator import Operator
from distlfm.store import Store, StoreSpec

Priors = dict[str, Any]
"""mechanism: its section `priors`; force, likelihood: these sections; noise: a stated standard deviation, or None.

Empty of data that do not say it.
"""


def priors_of(stores: Sequence[Store], start: Operator | None) -> list[Priors]:
    """All that differ, in the order of learning: those of the operator that a training began with come first."""
    found = [] if start is None else learned_priors(start) or [{}]
    for store in stores:
        found.append(_priors_in(store.spec))
    return [one for i, one in enumerate(found) if one not in found[:i]]


def learned_priors(operator: Operator) -> list[Priors]:
    """What the operator's checkpoint says of them; nothing if it is of a distlfm that did not keep them."""
    told = operator.training.get("priors", [])
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []


def _priors_in(spec: StoreSpec) -> Priors:
    config, mechanism = spec.attributes.get("config", {}), mechanism_in(spec)
    if not mechanism:
        return {}
    sections = {name: config.get(name, {}) for name in ("force", "likelihood")}
    return {"mechanism": mechanism.get("priors", {}), **sections, "noise": config.get("noise")}
