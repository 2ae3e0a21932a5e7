"""What a quantity is measured in, as powers of the units of the data: of values, of times and of positions.

An equation says it of its parameters and its force (`VALUE / TIME`); which units these are, the data say.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_SPELLED = {
    "s": ("sec", "secs", "second", "seconds"),
    "min": ("mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
}
_SHORT = {word: short for short, words in _SPELLED.items() for word in words}
_WORDS, _COMPOUND = re.compile(r"\s"), re.compile(r"[\s/*·^]")


@dataclass(frozen=True)
class Dimension:
    """Powers of each unit; all zero is a pure number. others: of units that data do not have, by their names."""

    value: int = 0
    time: int = 0
    position: int = 0
    others: tuple[tuple[str, int], ...] = ()

    def __mul__(self, other: Dimension) -> Dimension:
        powers = Counter(dict(self.others))
        powers.update(dict(other.others))
        return Dimension(
            self.value + other.value,
            self.time + other.time,
            self.position + other.position,
            tuple(sorted((name, power) for name, power in powers.items() if power)),
        )

    def __truediv__(self, other: Dimension) -> Dimension:
        return self * other**-1

    def __pow__(self, power: int) -> Dimension:
        others = tuple((name, one * power) for name, one in self.others if power)
        return Dimension(self.value * power, self.time * power, self.position * power, others)

    def unit(self, units: Mapping[str, str | None]) -> str | None:
        """In words, such as `mg/dL/min`, from the units of `value`, `time` and `position`.

        None for a pure number, and where one that is needed is not known.
        """
        powers = {"value": self.value, "time": self.time, "position": self.position}
        needed = {name: power for name, power in powers.items() if power}
        if any(not units.get(name) for name in needed):
            return None
        factors = [(str(units[name]).strip(), power) for name, power in needed.items()] + [*self.others]
        factors = [(text, power) for text, power in factors if text != "1"]
        common = math.gcd(*(power for _, power in factors))
        if len(factors) > 1 and common > 1:
            return _raised(_product([(text, power // common) for text, power in factors]), common)
        return _product(factors) if factors else None


def same_unit(one: str, other: str) -> bool:
    """Whether two names are of one unit, as `hours` and `h`, or `mg/dl` and `mg/dL`. Nothing else is known of units."""
    return _plain(one) == _plain(other)


def _plain(unit: str) -> str:
    parts = re.split(r"([/*·^()])", "".join(unit.split()).casefold())
    return "".join(_SHORT.get(part, part) for part in parts)


def _product(factors: Sequence[tuple[str, int]]) -> str:
    alone = len(factors) == 1
    above = [_raised(text, power, alone=alone) for text, power in factors if power > 0]
    below = [_raised(text, -power, below=True) for text, power in factors if power < 0]
    return "/".join(["·".join(above) or "1", *below])


def _raised(text: str, power: int, *, alone: bool = False, below: bool = False) -> str:
    """A unit to a power, in brackets where it would be read in another way."""
    doubtful = _COMPOUND if power != 1 or below else _WORDS
    whole = f"({text})" if doubtful.search(text) and not (alone and power == 1) else text
    return whole if power == 1 else f"{whole}{str(power).translate(_RAISED)}"


NUMBER = Dimension()
VALUE, TIME, POSITION = Dimension(value=1), Dimension(time=1), Dimension(position=1)
RATE = VALUE / TIME
"""How fast an output changes."""


def named(unit: str) -> Dimension:
    """A unit that data do not have: `named("L")` of a volume, `named("mg") / TIME` of a rate of infusion."""
    return Dimension(others=((unit, 1),))
