"""What only shows when instances are compared: other units, other outputs, the same name twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distlfm.errors import Problem
from distlfm.instance import Instance

UNIT_RATIO = 300.0
"""Values this many times larger or smaller than the other instances' suggest another unit (milli against whole)."""

ODD_RATIO = 8.0
"""Where the other instances are alike, so many times suggest another unit too (mmol/L of glucose against mg/dL: 18)."""

ODD_DEVIATIONS = 8.0
"""They are alike if the difference is more than so many median absolute deviations of their logarithms."""

ODD_GAP = 5.0
"""Between an odd one and the usual sizes nothing lies for this factor; sizes that differ by nature lie all the way."""

FEWEST_OTHERS = 5
"""Of fewer instances nobody can say how much they differ by nature."""

LARGEST_EXPONENT = 700.0
"""Beyond it a float overflows; the ratio is only printed."""


class PartlyObserved:
    """Outputs that some instances of a table have and others lack; often a name is misspelt."""

    def __init__(self) -> None:
        self._count = 0
        self._having: dict[str, int] = {}

    def add(self, instances: Sequence[Instance]) -> None:
        """Take note of more instances of the same table."""
        self._count += len(instances)
        for instance in instances:
            for output, mask in zip(instance.outputs, instance.mask, strict=True):
                self._having[output] = self._having.get(output, 0) + bool(mask.any())

    def notices(self, file: str) -> list[Problem]:
        """One for each such output."""
        return [
            Problem(
                f"The output {output!r} has values in {having} of {self._count} instances.",
                "Check how its name is written, if it should be in all.",
                file,
            )
            for output, having in self._having.items()
            if having < self._count and self._count > 1
        ]


class Comparison:
    """What instances have in common, kept while they go by one at a time."""

    def __init__(self) -> None:
        self._sizes: dict[str, dict[str, float]] = {}
        self._first: tuple[str, tuple[str, ...]] | None = None
        self._odd: tuple[str, tuple[str, ...]] | None = None

    def add(self, instance: Instance) -> None:
        """Take note of one more."""
        for output, values, mask in zip(instance.outputs, instance.values, instance.mask, strict=True):
            size = float(np.median(np.abs(values[mask]))) if mask.any() else 0.0
            if size > 0:
                self._sizes.setdefault(output, {})[instance.id] = size
        self._first = self._first or (instance.id, instance.outputs)
        if self._odd is None and instance.outputs != self._first[1]:
            self._odd = (instance.id, instance.outputs)

    def notices(self, file: str) -> list[Problem]:
        """One if instances differ in outputs or their order, and one for each whose values look like another unit's."""
        return [*self._other_outputs(file), *self._other_units(file)]

    def _other_outputs(self, file: str) -> list[Problem]:
        if self._odd is None or self._first is None:
            return []
        what = f"Outputs are {list(self._odd[1])} here and {list(self._first[1])} in {self._first[0]!r}."
        return [Problem(what, "Set columns.expected_outputs to fix names and order.", file, instance=self._odd[0])]

    def _other_units(self, file: str) -> list[Problem]:
        notices = []
        for output, by_instance in self._sizes.items():
            logs = np.log(list(by_instance.values()))
            # Of two, each is compared with the other; of more, the one that is off hardly moves the median.
            usual = logs[::-1] if len(logs) == 2 else np.full(len(logs), np.median(logs))
            suspect = (np.abs(logs - usual) > np.log(UNIT_RATIO)) | _odd_ones(logs)
            for name, difference, is_suspect in zip(by_instance, (logs - usual).tolist(), suspect, strict=True):
                if is_suspect:
                    ratio = f"{np.exp(min(abs(difference), LARGEST_EXPONENT)):.3g}"
                    times = f"{ratio} times {'larger' if difference > 0 else 'smaller'}"
                    notices.append(
                        Problem(
                            f"Values of {output!r} are {times} than the other instances'.",
                            "Check the unit: mend the values if this instance is in another one.",
                            file,
                            column=output,
                            instance=name,
                        )
                    )
        return notices


def _odd_ones(logs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of these logarithms of sizes [B] are far from the others', as measured by how those differ."""
    if len(logs) <= FEWEST_OTHERS:
        return np.zeros(len(logs), dtype=bool)
    centres = _medians_of_others(logs)
    spreads = np.empty_like(centres)
    for centre in np.unique(centres):  # three at most: without one, the median is its neighbour or between two
        here = centres == centre
        spreads[here] = _medians_of_others(np.abs(logs - centre))[here]
    distances = np.abs(logs - centres)
    # A rounding of the logarithms must not decide on exactly so many times.
    far = (distances >= np.log(ODD_RATIO) - 1e-9) & (distances > ODD_DEVIATIONS * spreads)
    odd: NDArray[np.bool_] = far & (_widest_gaps(logs) >= np.log(ODD_GAP))
    return odd


def _widest_gaps(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each of B numbers the widest gap between two neighbours on the way to it from the middle [B]."""
    order = np.argsort(numbers, kind="stable")
    gaps = np.diff(numbers[order])
    lower, upper = (len(numbers) - 1) // 2, len(numbers) // 2
    widest = np.zeros(len(numbers))
    widest[order[upper + 1 :]] = np.maximum.accumulate(gaps[upper:])
    widest[order[:lower]] = np.maximum.accumulate(gaps[:lower][::-1])[::-1]
    return widest


def _medians_of_others(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each of B numbers the median of all others [B], by one sorting."""
    order = np.argsort(numbers, kind="stable")
    rank = np.empty(len(numbers), dtype=np.intp)
    rank[order] = np.arange(len(numbers))
    ordered = numbers[order]
    below, above = (len(numbers) - 2) // 2, (len(numbers) - 1) // 2
    middle: NDArray[np.float64] = (ordered[below + (below >= rank)] + ordered[above + (above >= rank)]) / 2
    return middle
