"""Which sets of sites a site has answered with, and which further ones would show a few sites alone.

An epoch has one roster: the sites that are pinned. Sums over it can be answered as often as the policy allows. The
difference of a sum over it and one over another roster is about the sites by which they differ, whatever else a request
says: a coordinator can change every field of it. So rosters are compared, not requests. A roster is *open* if no
combination of the answered ones and itself is left with fewer than `k` sites; any other one is answered only with noise
that covers what a site can contribute, and a limited number of times in an epoch.

Joining or leaving opens a new epoch. What was answered before is remembered, so its sums need that noise until enough
sites have changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from distlfm.config import Config
from distlfm.federated.secure.ring import FloatArray

Sites = frozenset[str]
MOST_ROSTERS = 200
"""Rosters that are remembered; a site that has answered more different ones covers all others."""
MOST_SUBSETS = 25_000


class History(Config):
    """What a site has answered with, over all runs and restarts.

    number: of the epoch, from one on. pinned: its sites. rosters: those of exact sums, of all epochs. covered: sums
    with covering noise in this epoch. sums: answered ever.
    """

    number: int = 0
    pinned: tuple[str, ...] = ()
    rosters: tuple[tuple[str, ...], ...] = ()
    covered: int = Field(default=0, ge=0)
    sums: int = Field(default=0, ge=0)

    def entered(self, pinned: Sites) -> History:
        """Return the history in the epoch of these sites: a new one if others were pinned before."""
        names = tuple(sorted(pinned))
        if names == self.pinned:
            return self
        return self.model_copy(update={"number": self.number + 1, "pinned": names, "covered": 0})

    def is_open(self, sites: Sites, k: int) -> bool:
        """Whether an exact sum over these sites tells nothing of fewer than `k` sites, now or with all pinned."""
        known = [frozenset(one) for one in self.rosters]
        if sites in known:
            return True
        if len(known) >= MOST_ROSTERS:
            return False
        pinned = frozenset(self.pinned)
        kept = known if pinned in known or tells_of_few([*known, pinned], k) else [*known, pinned]
        return not tells_of_few([*kept, sites], k)

    def answered(self, sites: Sites, *, covered: bool) -> History:
        """Return the history after one more sum."""
        names, counted = tuple(sorted(sites)), {"sums": self.sums + 1}
        if covered:
            return self.model_copy(update={"covered": self.covered + 1, **counted})
        rosters = self.rosters if names in self.rosters else (*self.rosters, names)
        return self.model_copy(update={"rosters": rosters, **counted})

    def noted(self, *, covered: bool) -> dict[str, int | bool | list[str]]:
        """What a site's audit log keeps of the sum that was answered last, so that `remembered` knows it again."""
        return {"covered": covered, "epoch": self.number, "pinned": list(self.pinned), "sums": self.sums}

    def remembered(self, lines: Sequence[Mapping[str, Any]]) -> History:
        """Return the history with what a site's log has noted: its lines of sums that were answered, oldest first.

        For a history that was lost or brought back from an old copy. Lines of older versions have the sites alone.
        """
        exact = [tuple(sorted(one["survivors"])) for one in lines if not one.get("covered", False)]
        rosters = tuple(dict.fromkeys([*self.rosters, *exact]))
        last = lines[-1] if lines else {}
        number, pinned = last.get("epoch", self.number), tuple(last.get("pinned", self.pinned))
        covered = sum(bool(one.get("covered")) and one.get("epoch") == number for one in lines)
        return History(
            number=number, pinned=pinned, rosters=rosters, covered=covered, sums=last.get("sums", len(lines))
        )


def tells_of_few(rosters: Iterable[Sites], k: int) -> bool:
    """Whether some combination of sums over these rosters is one over fewer than `k` sites, but not over none.

    Two rosters that differ by fewer sites are such a combination; three can be, though no two of them are.
    """
    known = list(dict.fromkeys(rosters))
    if k <= 1:
        return False
    if any(len(one ^ other) < k for one, other in itertools.combinations(known, 2)) or any(
        len(one) < k for one in known
    ):
        return True
    names = sorted(frozenset().union(*known))
    size = min(k - 1, len(names))
    if len(known) <= 2:
        return False  # a combination of two has all sites, or those in which they differ
    if math.comb(len(names), size) > MOST_SUBSETS:
        return True  # too many to look at
    table = np.array([[float(name in one) for name in names] for one in known])
    rank = int(np.linalg.matrix_rank(table))
    return any(_is_smaller(table, rank, subset) for subset in itertools.combinations(range(len(names)), size))


def _is_smaller(table: FloatArray, rank: int, subset: Sequence[int]) -> bool:
    """Whether the rank falls without some sites: then a combination has these sites alone."""
    return int(np.linalg.matrix_rank(np.delete(table, subset, axis=1))) < rank
