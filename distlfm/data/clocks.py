"""Times that are dates in disguise: numbers that a clock counts from a far-off day, in a unit that nobody chose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distlfm.errors import Doubt, Problem
from distlfm.instance import FloatArray, Instance

YEARS_OF_SECONDS = (631152000.0, 2208988800.0)
"""Unix seconds of 1990 and 2040: the years in which observations are looked for."""

SHORT = 0.05
"""A series is a clock's only if it spans less than this share of what the clock shows: two years of seconds."""

SHORT_DAYS, LONGEST_GAP = 0.01, 1.0
"""For days: a year, with most gaps of a day or less. A late part of a long series in minutes looks much the same."""


@dataclass(frozen=True)
class _Clock:
    """low, high: what it shows from 1990 to 2040. to_hours: what makes hours of it."""

    name: str
    low: float
    high: float
    to_hours: str

    def shows(self, times: FloatArray) -> bool:
        first, last = times[0], times[-1]
        return bool(self.low <= first and last <= self.high and last - first < SHORT * first)


class _Days(_Clock):
    def shows(self, times: FloatArray) -> bool:
        brief = times[-1] - times[0] < SHORT_DAYS * times[0]
        return bool(super().shows(times) and brief and np.median(np.diff(np.unique(times))) <= LONGEST_GAP)


class _Digits(_Clock):
    """Year, month and day as one number."""

    def shows(self, times: FloatArray) -> bool:
        month, day = times // 100 % 100, times % 100
        real = (times % 1 == 0) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
        return super().shows(times) and bool(real.all())


def _unix(unit: str, ticks: float) -> _Clock:
    low, high = YEARS_OF_SECONDS
    return _Clock(f"Unix {unit}, counted from 1970", low * ticks, high * ticks, f"divide by {3600 * ticks:.15g}")


CLOCKS = (
    _unix("seconds", 1.0),
    _unix("milliseconds", 1e3),
    _unix("microseconds", 1e6),
    _unix("nanoseconds", 1e9),
    _Days("day numbers of Excel, counted from 1900", 32874.0, 51136.0, "multiply by 24"),
    _Days("day numbers of Matlab, counted from the year 0", 726834.0, 745097.0, "multiply by 24"),
    _Digits("dates written as one number", 19900101.0, 20400101.0, ""),
)


@dataclass
class _Found:
    """first: the first instance with such times, and `time` its first one."""

    first: str
    time: float
    count: int = 0


class Clocks:
    """Looks for such times while instances go by one at a time."""

    def __init__(self) -> None:
        self._found: dict[_Clock, _Found] = {}

    def add(self, instance: Instance) -> None:
        """Take note of one more."""
        for clock in CLOCKS:
            if clock.shows(instance.times):
                found = self._found.setdefault(clock, _Found(instance.id, float(instance.times[0])))
                found.count += 1

    def notices(self, file: str) -> list[Problem]:
        """One for each clock."""
        return [_notice(file, clock, found) for clock, found in self._found.items()]


def _notice(file: str, clock: _Clock, found: _Found) -> Doubt:
    single = found.count == 1
    first = f"{found.time:.15g} is the first" + ("" if single else f" of {found.first!r}")
    fix = "Write how many days or hours they are after each instance's first one."
    if clock.to_hours:
        fix = f"Subtract each instance's first time, and {clock.to_hours} to have hours."
    return Doubt(
        f"Times{'' if single else f' of {found.count} instances'} look like {clock.name}: {first}. They were read as "
        "they are, as numbers in the unit of your priors.",
        fix,
        file,
        instance=found.first if single else None,
    )
