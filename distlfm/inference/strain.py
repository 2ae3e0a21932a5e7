"""Where data and priors contradict each other: unknowns that ended far outside what their prior expects.

Wrong units are the usual cause. A flexible force describes values that are a thousand times too large as well as right
ones, so no score of the fit tells; the priors do, which were written in the right units.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

STRAINED = 4.0
"""Deviations of the prior; of a hundred thousand values that come from it, six lie beyond."""

MOST_NAMED = 3
NOISE = ("noise", "relative_noise")
"""May be far below its prior: exact data have none."""

LIKELIHOOD = {
    "noise": "likelihood.prior",
    "relative_noise": "likelihood.relative",
    "dispersion": "likelihood.dispersion",
}


def strain(names: Sequence[str], z: Tensor) -> str:
    """A sentence on what ended far outside its prior, or nothing.

    names: of the whitened unknowns. z: [n], their posterior mean, for one instance.
    """
    far = [
        (abs(value), name)
        for name, value in zip(names, z.tolist(), strict=True)
        if abs(value) > STRAINED and not (value < 0 and name.partition("[")[0] in NOISE)
    ]
    if not far:
        return ""
    far.sort(reverse=True)
    named = ", ".join(name for _, name in far[:MOST_NAMED])
    more = f" and {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    lies = "lies" if len(far) == 1 else "lie"
    keys = ", ".join(dict.fromkeys(_key(name) for _, name in far[:MOST_NAMED]))
    return (
        f"{named}{more} {lies} far from what the prior expects (up to {far[0][0]:.0f} deviations): check the units of "
        f"times and values, or widen the priors ({keys})."
    )


def _key(name: str) -> str:
    """Where a config has the prior of an unknown. Those of kernels have their force's name first."""
    whole = name.partition("[")[0]
    if "." in whole:
        return f"force.priors.{name.partition('.')[2]}"
    return LIKELIHOOD.get(whole, f"mechanism.priors.{whole}")
