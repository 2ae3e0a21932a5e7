"""What only shows when instances are compared: other units, other outputs, the same name twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distlfm.errors import Problem
from distlfm.instance import Instance

UNIT_RATIO = 300.0
"""Values this many times larger or smaller than the other instances' suggest another unit (milli against whole)."""

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
            for name, difference in zip(by_instance, (logs - usual).tolist(), strict=True):
                if abs(difference) > np.log(UNIT_RATIO):
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
