"""What looks wrong in data that can be read, noticed while instances pass by.

`Clocks`: times that are dates in disguise, numbers that a clock counts from a far-off day in a unit that nobody chose.
`StandIns`: numbers that are often written where nothing was observed, such as -9999, which a fit would take for values.
`Gaps`: hours without a value in series that are even elsewhere.
`PartlyObserved` and `InstanceChecks`: what shows when instances are compared, such as other units or other outputs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distlfm.errors import Doubt, Problem
from distlfm.instance import FloatArray, Instance

YEARS_OF_SECONDS = (631152000.0, 2208988800.0)
"""Unix seconds of 1990 and 2040: the years in which observations are looked for."""

SHORT = 0.05
"""A series is a clock's only if it spans less than this share of what the clock shows: two years of seconds."""

SHORT_DAYS, LONGEST_GAP = 0.01, 1.0
"""For days: a year, with most gaps of a day or less. A late part of a long series in minutes looks much the same."""


def _daily(times: FloatArray) -> bool:
    brief = times[-1] - times[0] < SHORT_DAYS * times[0]
    return bool(brief and np.median(np.diff(np.unique(times))) <= LONGEST_GAP)


def _dates(times: FloatArray) -> bool:
    """Whether each is a year, month and day as one number."""
    month, day = times // 100 % 100, times % 100
    return bool(((times % 1 == 0) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


class _Clock(NamedTuple):
    """low, high: what it shows from 1990 to 2040. to_hours: what makes hours of it. likely: what else must be true."""

    name: str
    low: float
    high: float
    to_hours: str
    likely: Callable[[FloatArray], bool] = lambda _: True

    def shows(self, times: FloatArray) -> bool:
        first, last = times[0], times[-1]
        within = self.low <= first and last <= self.high and last - first < SHORT * first
        return bool(within and self.likely(times))


def _unix(unit: str, ticks: float) -> _Clock:
    low, high = YEARS_OF_SECONDS
    return _Clock(f"Unix {unit}, counted from 1970", low * ticks, high * ticks, f"divide by {3600 * ticks:.15g}")


CLOCKS = (
    _unix("seconds", 1.0),
    _unix("milliseconds", 1e3),
    _unix("microseconds", 1e6),
    _unix("nanoseconds", 1e9),
    _Clock("day numbers of Excel, counted from 1900", 32874.0, 51136.0, "multiply by 24", _daily),
    _Clock("day numbers of Matlab, counted from the year 0", 726834.0, 745097.0, "multiply by 24", _daily),
    _Clock("dates written as one number", 19900101.0, 20400101.0, "", _dates),
)


class Clocks:
    """Looks for such times while instances go by one at a time."""

    def __init__(self) -> None:
        self._first: dict[_Clock, Instance] = {}
        self._count = Counter[_Clock]()

    def add(self, instance: Instance) -> None:
        """Take note of one more."""
        for clock in CLOCKS:
            if clock.shows(instance.times):
                self._first.setdefault(clock, instance)
                self._count[clock] += 1

    def notices(self, file: str) -> list[Problem]:
        """One for each clock."""
        notices: list[Problem] = []
        for clock, first in self._first.items():
            several = self._count[clock] > 1
            of_all, of_first = (f" of {self._count[clock]} instances", f" of {first.id!r}") if several else ("", "")
            fix = "Write how many days or hours they are after each instance's first one."
            if clock.to_hours:
                fix = f"Subtract each instance's first time, and {clock.to_hours} to have hours."
            what = (
                f"Times{of_all} look like {clock.name}: {first.times[0]:.15g} is the first{of_first}. They were read "
                "as they are, as numbers in the unit of your priors."
            )
            notices.append(Doubt(what, fix, file, instance=None if several else first.id))
        return notices


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
"""A stand-in is further from all other values of its output than this many times their range; alone, than FAR_ONCE."""


@dataclass
class _FoundStandIn:
    """A number that may be a stand-in: how often, in how many instances, and in which first."""

    first: str
    count: int = 0
    instances: int = 0


@dataclass
class _Column:
    """What was seen of one output, or of the times. low, high: of all numbers but `found`, which may be stand-ins."""

    low: float = np.inf
    high: float = -np.inf
    found: dict[float, _FoundStandIn] = field(default_factory=dict)

    def suspects(self) -> dict[float, _FoundStandIn]:
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
                found = self.found.setdefault(float(number), _FoundStandIn(instance))
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
        columns = ((None, self._times), *self._outputs.items())
        return [_stand_in(file, output, *found) for output, seen in columns for found in seen.suspects().items()]


def _stand_in(file: str, output: str | None, number: float, found: _FoundStandIn) -> Doubt:
    single = found.instances == 1
    kind, fix = "value", "Leave the cell empty where nothing was observed."
    if output is None:
        kind, fix = "time", "Remove the rows whose time is not known."
    those = f"1 {kind} is" if found.count == 1 else f"{found.count} {kind}s are"
    where = "" if single else f", in {found.instances} instances of which {found.first!r} is the first"
    what = (
        f"{those} {number:.7g} and apart from all others{where}: such a number mostly means that nothing is known, "
        f"and it was read as a {kind}."
    )
    return Doubt(what, fix, file, column=output, instance=found.first if single else None)


EVEN_SHARE, EVEN = 0.9, 1.5
"""A series is even if this share of its steps is no longer than this many times the usual one."""

GAP = 4.0
"""A step that is longer than this many usual ones of an even series is a gap."""

FEWEST_STEPS = 10
"""With fewer it is not known what is usual."""


class Gaps:
    """Looks for times at which nothing was observed in series that are even elsewhere."""

    def __init__(self) -> None:
        self._count = 0
        self._gaps = 0
        self._longest = (0.0, 0.0, 0.0, "")

    def add(self, instance: Instance) -> None:
        """Take note of one more."""
        if instance.positions is not None:
            return
        times = np.unique(instance.times[instance.mask.any(axis=0)])
        steps = np.diff(times)
        if len(steps) < FEWEST_STEPS or np.mean(steps <= EVEN * np.median(steps)) < EVEN_SHARE:
            return
        usual = float(np.median(steps))
        gaps = np.flatnonzero(steps > GAP * usual)
        self._count += bool(len(gaps))
        self._gaps += len(gaps)
        for at in gaps.tolist():
            self._longest = max(self._longest, (float(steps[at]), float(times[at]), usual, instance.id))

    def notices(self, file: str) -> list[Problem]:
        """One for all gaps."""
        if not self._gaps:
            return []
        length, start, usual, name = self._longest
        which = f"{self._gaps} gap{'s' if self._gaps > 1 else ''}"
        where = f" in {self._count} instances, the longest of {name!r}" if self._count > 1 else ""
        longest = ", the longest" if self._count == 1 and self._gaps > 1 else ""
        what = (
            f"Nothing was observed in {which}{where}{longest} from {start:.7g} to {start + length:.7g}, where values "
            f"otherwise come every {usual:.4g}."
        )
        fix = "Within a gap the force follows from its prior, and its band says how little is known."
        return [Problem(what, fix, file, instance=name if self._count == 1 else None)]


UNIT_RATIO = 300.0
"""Values this many times larger or smaller than the other instances' suggest another unit (milli against whole)."""

ODD_RATIO = 8.0
"""Where the other instances are alike, this ratio suggests another unit too (mmol/L of glucose against mg/dL: 18)."""

ODD_DEVIATIONS = 8.0
"""They are alike if the difference is more than this many median absolute deviations of their logarithms."""

ODD_GAP = 5.0
"""Between an odd one and the usual sizes nothing lies for this factor; sizes that differ by nature lie all the way."""

FEWEST_OTHERS = 5
"""With fewer instances it is unknown how much they differ by nature."""

LARGEST_EXPONENT = 700.0
"""Beyond it a float overflows; the ratio is only printed."""


class PartlyObserved:
    """Outputs that some instances of a table have and others lack; often a name is misspelt."""

    def __init__(self) -> None:
        self._count = 0
        self._having = Counter[str]()

    def add(self, instances: Sequence[Instance]) -> None:
        """Take note of more instances of the same table."""
        self._count += len(instances)
        for instance in instances:
            self._having.update(dict(zip(instance.outputs, instance.mask.any(axis=1).astype(int), strict=True)))

    def notices(self, file: str) -> list[Problem]:
        """One for each such output."""
        fix = "Check how its name is written, if it should be in all."
        return [
            Problem(f"The output {output!r} has values in {having} of {self._count} instances.", fix, file)
            for output, having in self._having.items()
            if having < self._count and self._count > 1
        ]


class InstanceChecks:
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
            for name, difference in itertools.compress(zip(by_instance, logs - usual, strict=True), suspect):
                ratio = f"{np.exp(min(abs(difference), LARGEST_EXPONENT)):.3g}"
                times = f"{ratio} times {'larger' if difference > 0 else 'smaller'}"
                what = f"Values of {output!r} are {times} than the other instances'."
                fix = "Check the unit: mend the values if this instance is in another one."
                notices.append(Problem(what, fix, file, column=output, instance=name))
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
    # A rounding of the logarithms must not decide on exactly this ratio.
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
