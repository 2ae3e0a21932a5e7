"""Lists of hosts, as Slurm writes them."""

from __future__ import annotations

import itertools
import re

from distlfm.errors import UsageError


def expand_hosts(names: str) -> tuple[str, ...]:
    """The hosts of a list as Slurm writes it: of `gpu[08-10,12],login` five."""
    hosts: list[str] = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", names):
        parts = re.split(r"\[([^\]]*)\]", word.strip())
        choices = [[part] if place % 2 == 0 else list(_numbers(part, names)) for place, part in enumerate(parts)]
        hosts += ["".join(chosen) for chosen in itertools.product(*choices)]
    if not hosts or not all(hosts):
        raise UsageError(f"The list of hosts is {names!r}, which names none.", "Write it as host1,host2 or node[1-4].")
    return tuple(dict.fromkeys(hosts))


def _numbers(ranges: str, names: str) -> list[str]:
    """Of `08-10,12` the four numbers, with their leading zeros."""
    found: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"The list of hosts {names!r} has a range {part!r}.", "Write ranges as [1-4] or [01,03].")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return found
