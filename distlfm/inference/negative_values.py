"""Whether an output has negative values though its equation is of something that is never negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distlfm.instance import Instance
from distlfm.mechanisms.system import System


@dataclass
class _Seen:
    """Of one output. lowest: of its values, and the instance `where` it is."""

    values: int = 0
    negative: int = 0
    lowest: float = 0.0
    where: str = ""


class Negatives:
    """Counts negative values while instances go by; simulated ones are passed over, as their noise knows no bound."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._seen: dict[str, _Seen] = {}

    def add(self, instances: Sequence[Instance]) -> None:
        """Take note of some more."""
        if not self.system.never_negative:
            return
        for one in instances:
            if one.truth is not None and one.truth.force is not None:
                continue
            for output, row, mask in zip(one.outputs, one.values, one.mask, strict=True):
                seen, values = self._seen.setdefault(output, _Seen()), row[mask]
                seen.values += len(values)
                seen.negative += int((values < 0).sum())
                if len(values) and (low := float(values.min())) < seen.lowest:
                    seen.lowest, seen.where = low, one.id

    def notice(self) -> str:
        """A sentence for the user if there are any; nothing otherwise."""
        told = [
            f"{seen.negative} of {seen.values} values of {output!r} (down to {seen.lowest:.4g}, in {seen.where!r})"
            for output, seen in self._seen.items()
            if seen.negative
        ]
        if not told:
            return ""
        return (
            f"{' and '.join(told)} are negative, and no output of {self.system.options.kind} can be. "
            "Leave a cell empty where nothing was observed, and give values as they were measured, "
            "not their logarithms or changes."
        )
