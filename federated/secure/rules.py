"""What every member holds to, whatever the gatherer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROTOCOL = "distlfm-secagg-1"
MAX_SITES = 1000


def threshold_of(count: int) -> int:
    """How many of `count` sites have to help with unmasking.

    More than two thirds: then two different views of who is in the sum cannot both be signed by enough sites unless a
    third of them cheats (Bonawitz et al. 2017, section 6.2).
    """
    return 2 * count // 3 + 1


@dataclass(frozen=True)
class Rules:
    """What a member's own site has set.

    site: own name. peers: public signing keys by site, 64 hex digits. min_cohort: fewest sites at the start and at the
    end of a sum. whole: purposes (the word before the dot) that all pinned sites answer together or not at all.
    """

    site: str
    peers: Mapping[str, str]
    min_cohort: int
    whole: frozenset[str] = frozenset()

    def must_be_whole(self, purpose: str) -> bool:
        """Whether this purpose takes no smaller cohort and no drop-out."""
        return purpose.partition(".")[0] in self.whole

    @property
    def everybody(self) -> frozenset[str]:
        """All pinned sites and this one."""
        return frozenset({self.site, *self.peers})
