"""What the markers of a store tell those who go on with it."""

from __future__ import annotations

from distlfm.cluster.job import Past
from distlfm.store import Store


def past_of(store: Store) -> Past:
    """Seconds of the blocks that are done, and whether a row of theirs was worked on to its end, well or badly."""
    markers = store.markers()
    seconds = {block: marker.seconds for block, marker in markers.items() if marker.seconds is not None}
    return Past(seconds, any(marker.statuses.get("failed", 0) < marker.count for marker in markers.values()))
