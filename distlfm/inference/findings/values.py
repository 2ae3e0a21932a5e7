"""Values that do not look measured: cut off at a limit, or repeated where something else should have been read.

Noise of any kind that a likelihood knows makes neither. Whole numbers and rounded ones are repeated by right, so that
values count only where others differ. Shapes: `n` values of one output in their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distlfm.instance import FloatArray, Instance

LEAST = 8
"""With fewer values nothing is said."""

RUN = 4
"""Equal values in a row at the end of the range, at least, that are a limit; twice as many as in a row elsewhere."""

DIFFERENT, EQUAL = 0.45, 0.25
"""Share of values that differ from all others' where rounding is fine, and of neighbours that are then equal by
repetition."""


def doubtful_values(instance: Instance) -> Iterator[str]:
    """What is odd about the values of a series, in words."""
    if instance.positions is not None:
        return
    for name, values, seen in zip(instance.outputs, instance.values, instance.mask, strict=True):
        own = values[seen]
        if len(own) < LEAST or np.ptp(own) == 0:
            continue
        for end, which in ((own.max(), "highest"), (own.min(), "lowest")):
            longest = _longest(own, own == end)
            if end != 0 and longest >= max(RUN, 2 * _longest(own, own != end)):
                yield (
                    f"{longest} values of {name!r} in a row are its {which}, {end:g}: the sensor was at its limit, and "
                    "a fit takes them for measured. Leave them out."
                )
        if len(np.unique(own)) >= DIFFERENT * len(own) and (np.diff(own) == 0).mean() >= EQUAL:
            yield (
                f"Many values of {name!r} repeat the one before, to the last digit: readings that were copied, or "
                "filled in, are taken for independent ones, and the noise for far too small. Leave the copies out."
            )


def _longest(values: FloatArray, among: np.typing.NDArray[np.bool_]) -> int:
    """Length of the longest run of equal values [n] in a row, of those `among` [n]."""
    longest = run = 0
    for i, one in enumerate(values):
        run = (run + 1 if i and among[i - 1] and values[i - 1] == one else 1) if among[i] else 0
        longest = max(longest, run)
    return longest
