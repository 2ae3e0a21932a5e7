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


def partly_observed_outputs(instances: Sequence[Instance], file: str) -> list[Problem]:
    """One notice for each output that some instances have and others lack; often a name is misspelt."""
    notices = []
    for row, output in enumerate(instances[0].outputs if len(instances) > 1 else ()):
        having = [instance.id for instance in instances if instance.mask[row].any()]
        if len(having) < len(instances):
            what = f"The output {output!r} has values in {len(having)} of {len(instances)} instances."
            notices.append(Problem(what, "Check how its name is written, if it should be in all.", file))
    return notices


def other_units(instances: Sequence[Instance], file: str) -> list[Problem]:
    """One notice for each instance whose values of an output are far larger or smaller than the others'."""
    sizes: dict[str, dict[str, float]] = {}
    for instance in instances:
        for output, values, mask in zip(instance.outputs, instance.values, instance.mask, strict=True):
            size = float(np.median(np.abs(values[mask]))) if mask.any() else 0.0
            if size > 0:
                sizes.setdefault(output, {})[instance.id] = size
    notices = []
    for output, by_instance in sizes.items():
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


def other_outputs(instances: Sequence[Instance], file: str) -> list[Problem]:
    """One notice if instances differ in their outputs or in the order of them."""
    odd = [instance for instance in instances if instance.outputs != instances[0].outputs]
    if not odd:
        return []
    what = f"Outputs are {list(odd[0].outputs)} here and {list(instances[0].outputs)} in {instances[0].id!r}."
    return [Problem(what, "Set columns.expected_outputs to fix names and order.", file, instance=odd[0].id)]
