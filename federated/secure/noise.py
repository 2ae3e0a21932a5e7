"""Noise in a masked sum: whole numbers that the sites add to their words before these are masked.

Either a site brings all the noise that hides its own patients, or the sites bring it together, and the sum has it once
instead of once for each of them. Then some of the noise may be missing, as a site may drop out after it masked, or
know its own part and take it off again. So of n sites of which `lost` may be such, each brings 1 / (n − lost) of the
variance: what the others bring is enough by itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distlfm.federated.secure.discrete import Random, discrete_gaussian
from distlfm.federated.secure.messages import Part
from distlfm.federated.secure.records import BITS, size_of
from distlfm.federated.secure.ring import Words

MARGIN = 1 + 2.0**-10
"""More noise than is paid for: a contribution is as long as its limit only up to rounding, when it is added to weights
and when it becomes whole numbers. A thousandth of the limit is more than that takes."""


@dataclass(frozen=True)
class SumNoise:
    """deviations: standard deviation of the noise in the sum, by the name of a part, in units of its summed numbers.

    lost: of how many sites the noise may be missing; None if this site brings all of it.
    """

    deviations: Mapping[str, float]
    lost: int | None = None

    def own_share(self, sites: int) -> float:
        """Return the standard deviation that this site brings, in units of the whole. sites: that mask together."""
        if self.lost is None:
            return 1.0
        if sites <= self.lost:
            raise ValueError("There are not more sites than may be lost.")
        return 1 / math.sqrt(sites - self.lost)

    def words(self, parts: tuple[Part, ...], sites: int, random: Random = os.urandom) -> Words:
        """Draw this site's noise for a vector [N] of these parts. A name that is no part is an error."""
        share, found = self.own_share(sites), []
        if set(self.deviations) - {name for name, *_ in parts}:
            raise ValueError("Noise for a part that the answer does not have.")
        for part in parts:
            name, kind, _, _ = part
            drawn = np.zeros(size_of(part), dtype=np.int64)
            if name in self.deviations:
                drawn = discrete_gaussian(
                    self.deviations[name] * share * MARGIN * 2.0 ** BITS[kind], len(drawn), random
                )
            found.append(drawn)
        return np.concatenate(found).view(np.uint64)
