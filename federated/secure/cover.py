"""Noise that covers what one site contributes, for sums whose roster is like that of an answered one.

Each site adds it by itself, to numbers that are held within bounds, and counts as much as every other site: the
difference of two such sums, with whatever weights, is at most one site's contribution, and this noise hides that.
"""

from __future__ import annotations

import secrets

import numpy as np

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.messages import Part
from distlfm.federated.secure.records import size_of
from distlfm.federated.secure.ring import FloatArray


def covered(
    parts: tuple[Part, ...],
    values: FloatArray,
    *,
    weight: float,
    bound: float,
    clip: float | None,
    noise: float,
) -> FloatArray:
    """Numbers [N] of an answer with noise in each but the weight.

    weight: what every site counts for. bound: most that a metric counts. clip: longest update. noise: standard
    deviation in units of `bound` or `clip`. Raises Refused for what has no bound: a whole array,
    or an update without a clip.
    """
    random = np.random.default_rng(secrets.randbits(256))
    found: FloatArray = values / values[0]
    start = 0
    moved: list[slice] = []
    for part in parts:
        here = slice(start, start + size_of(part))
        start = here.stop
        if part[1] == "weight":
            found[here] = 1.0
        elif part[1] == "metric":
            held = np.clip(np.nan_to_num(found[here], nan=bound), -bound, bound)
            found[here] = held + random.normal(0.0, noise * bound, size=held.shape)
        elif part[1] == "difference" and clip is not None:
            moved.append(here)
        else:
            raise Refused(Reason.ROSTER, "The answer has no bound that noise could cover: set clip in the policy.")
    if moved:
        assert clip is not None
        update = np.concatenate([found[here] for here in moved])
        update = update if np.isfinite(update).all() else np.zeros_like(update)
        update *= min(1.0, clip / max(float(np.linalg.norm(update)), clip))
        update += random.normal(0.0, noise * clip, size=update.shape)
        for here, part_ in zip(
            moved, np.split(update, np.cumsum([one.stop - one.start for one in moved])[:-1]), strict=True
        ):
            found[here] = part_
    found *= weight
    return found
