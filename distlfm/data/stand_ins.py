"""Numbers that are often written where nothing was observed, such as -9999: a fit would take them for values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from distlfm.errors import Doubt, Problem
from distlfm.instance import FloatArray, Instance

_NINES = (999.0, 999.9, 999.99, 9999.0, 9999.9, 9999.99, 99999.0, 999999.0, 9999999.0)
_HUGE = (1e20, 1e30, 1e31, 1e36, 1e37, 9.969209968386869e36, float(np.finfo(np.float32).max), 1.7976931348623157e308)
_WRITTEN = (
    *(-99.0, -99.9, -99.99, -32768.0, -2147483648.0),
    *(sign * number for sign in (1.0, -1.0) for number in (*_NINES, *_HUGE)),
)
_ROUNDED = [float(np.float32(number)) for number in _WRITTEN if abs(number) < 1e38]
STAND_INS: FloatArray = np.unique([*_WRITTEN, *_ROUNDED])
"""As programs and tables write them, in double and in single precision."""

FAR, FAR_ONCE = 1.0, 3.0
"""A stand-in is further from all other values of its output than so many times their range; alone, than FAR_ONCE."""


@dataclass
class _Found:
    """A number that may be a stand-in: how often, in how many instances, and in which first."""

    first: str
    count: int = 0
    instances: int = 0


@dataclass
class _Column:
    """What was seen of one output, or of the times. low, high: of all numbers but `found`, which may be stand-ins."""

    low: float = np.inf
    high: float = -np.inf
    found: dict[float, _Found] = field(default_factory=dict)

    def suspects(self) -> dict[float, _Found]:
        """Which are far from the values, or the only negative ones and there more than once."""
        if self.low > self.high:
            return {}
        return {number: self.found[number] for number in sorted(self.found) if self._far(number)}

    def _far(self, number: float) -> bool:
        repeated = self.found[number].count > 1
        if repeated and number < 0 <= self.low:
            return True
        outside = max(self.low - number, number - self.high)
        far = (FAR if repeated else FAR_ONCE) * (self.high - self.low)
        return outside > max(far, abs(self.low), abs(self.high))  # 999 is not far from many a 1000

    def add(self, instance: str, values: FloatArray) -> None:
        """Take note of more values [n]."""
        above = STAND_INS[np.searchsorted(STAND_INS[:-1], values)]
        possible = above == values
        self.low = min(self.low, float(values.min(initial=np.inf, where=~possible)))
        self.high = max(self.high, float(values.max(initial=-np.inf, where=~possible)))
        if possible.any():
            for number, count in zip(*np.unique(values[possible], return_counts=True), strict=True):
                found = self.found.setdefault(float(number), _Found(instance))
                found.count += int(count)
                found.instances += 1


class StandIns:
    """Looks for stand-ins while instances go by one at a time."""

    def __init__(self) -> None:
        self._times = _Column()
        self._outputs: dict[str, _Column] = {}

    def add(self, instance: Instance) -> None:
        """Take note of one more."""
        self._times.add(instance.id, instance.times)
        for output, values, mask in zip(instance.outputs, instance.values, instance.mask, strict=True):
            self._outputs.setdefault(output, _Column()).add(instance.id, values[mask])

    def notices(self, file: str) -> list[Problem]:
        """One for each stand-in of the times and of each output."""
        return [
            _notice(file, output, number, found)
            for output, seen in ((None, self._times), *self._outputs.items())
            for number, found in seen.suspects().items()
        ]


def _notice(file: str, output: str | None, number: float, found: _Found) -> Doubt:
    single = found.instances == 1
    kind, fix = "value", "Leave the cell empty where nothing was observed."
    if output is None:
        kind, fix = "time", "Remove the rows whose time is not known."
    those = f"1 {kind} is" if found.count == 1 else f"{found.count} {kind}s are"
    where = "" if single else f", in {found.instances} instances of which {found.first!r} is the first"
    return Doubt(
        f"{those} {number:.7g} and apart from all others{where}: such a number mostly means that nothing is known, "
        f"and it was read as a {kind}.",
        fix,
        file,
        column=output,
        instance=found.first if single else None,
    )
