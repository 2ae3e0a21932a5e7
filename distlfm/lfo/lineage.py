"""What a store's instances come from: whether an operator has seen them before, in this store or in another one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from distlfm.lfo.dataset import Examples, fingerprint
from distlfm.store import Store, content_hash

SEEING = ("instances", "points", "places", "sampling", "missing", "gaps", "noise", "units", "title", "run")
"""Settings of a generated store that do not change what is drawn: how many, and how they are observed."""


def lineage(store: Store) -> tuple[str, ...]:
    """Hashes, one of which two stores share if instances of the same name are the same ones in both.

    Of the instances and their config; of the content, which fits keep as that of their data; of the data of fits; and
    of generated ones of the draws, which a store with more instances or on another grid has too.
    """
    told = store.spec.attributes
    found = [fingerprint(store)]
    if markers := store.markers():
        found.append(content_hash(markers))
    if store.spec.kind == "generate":
        origins = [told, *told.get("merged_from", [])]
        found += [str(one["config_hash"]) for one in origins if one.get("config_hash")]
        found += [_draws(told["config"])] if "seed" in told.get("config", {}) else []
    elif told.get("data"):
        found.append(str(told["data"]))
    return tuple(dict.fromkeys(found))


def lineage_of(examples: Examples) -> tuple[str, ...]:
    """That of all that is learned from."""
    stores = [hash_ for store in examples.stores for hash_ in lineage(store)]
    more = [] if examples.observed is None else [examples.observed.source]
    return tuple(dict.fromkeys([*stores, *more]))


def _draws(config: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in config.items() if key not in SEEING}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
