"""Noise that covers what one site contributes, for sums whose roster is like that of an answered one.

Each site adds it by itself, to numbers that are held within bounds, and counts as much as every other site: the
difference of two such sums, with whatever weights, is at most one site's contribution, and this noise hides that. It is
drawn as all noise is, in whole numbers of the ring: `noise.py`.
"""

from __future__ import annotations

import numpy as np

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.messages import Part
from distlfm.federated.secure.noise import SumNoise
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
) -> tuple[FloatArray, SumNoise]:
    """Numbers [N] of an answer held within their bounds, and the noise that all of them but the weight need.

    weight: what every site counts for. bound: most that a metric counts. clip: longest update. noise: standard
    deviation in units of `bound` or `clip`. Raises Refused for what has no bound: a whole array,
    or an update without a clip.
    """
    found: FloatArray = values / values[0]
    start, deviations = 0, {}
    moved: list[slice] = []
    for part in parts:
        here = slice(start, start + size_of(part))
        start = here.stop
        if part[1] == "weight":
            found[here] = 1.0
        elif part[1] == "metric":
            found[here] = np.clip(np.nan_to_num(found[here], nan=bound), -bound, bound)
            deviations[part[0]] = noise * bound * weight
        elif part[1] == "difference" and clip is not None:
            moved.append(here)
            deviations[part[0]] = noise * clip * weight
        else:
            raise Refused(Reason.ROSTER, "The answer has no bound that noise could cover: set clip in the policy.")
    if moved:
        assert clip is not None
        length = float(np.sqrt(sum(found[here] @ found[here] for here in moved)))
        for here in moved:
            found[here] = found[here] * min(1.0, clip / max(length, clip)) if np.isfinite(length) else 0.0
    found *= weight
    return found, SumNoise(deviations)
