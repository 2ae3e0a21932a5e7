"""The text of a Slurm batch script: a pure function of what is asked for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distlfm.errors import UsageError

WARNING_SECONDS = 120
"""So long before the end of a job's time its program is warned, to write a checkpoint; of a short job it is a fifth of
its time. Slurm may be a minute early."""

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d{1,2}){0,2})")
_ARRAY = re.compile(r"(?P<tasks>[1-9]\d*)(?P<atonce>%[1-9]\d*)?")
_MEMORY = re.compile(r"[1-9]\d*[KMGT]?")
_JOBS = r"\d+(_\d+)?(\+\d+)?"
_AFTER = re.compile(rf"(after|afterany|afterok|afternotok|aftercorr)(:{_JOBS})+|singleton")
_OPTION = re.compile(r"--(?P<name>[a-z][a-z-]*)(=[^\x00-\x1f\x7f]*)?")
_PLAIN = re.compile(r"[\w./:%@=+,-]*")


@dataclass(frozen=True)
class Resources:
    """What a job asks of Slurm. cpus: of a task; gpus: of a node; memory: of a node, else memory_per_cpu.

    time: a limit, as Slurm writes it.
    array: the number of tasks, `16`, or `16%4` for four at once. dependency: a job's number, or as Slurm writes it.
    others: any other option of sbatch, such as `--qos=long`.
    """

    nodes: int
    time: str
    tasks_per_node: int = 1
    cpus: int = 1
    gpus: int = 0
    memory: str = ""
    memory_per_cpu: str = "2G"
    partition: str = ""
    account: str = ""
    array: str = ""
    dependency: str = ""
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seconds_of(self.time)
        if self.array and not _ARRAY.fullmatch(self.array):
            raise UsageError(f"--array {self.array!r} is not a number of tasks.", "Give 16, or 16%4 for four at once.")
        if self.array and (self.nodes, self.tasks_per_node) != (1, 1):
            raise UsageError("The tasks of an array are one process each, on one node.", "Leave --nodes out.")
        if self.memory and not _MEMORY.fullmatch(self.memory):
            raise UsageError(f"--memory {self.memory!r} is not an amount of memory.", "Give 64G, or 800M.")
        if not all(_AFTER.fullmatch(one) for one in _after(self.dependency)):
            raise UsageError(
                f"--dependency {self.dependency!r} is not known to Slurm.", "Give a job's number, or afterany:17:18."
            )


@dataclass(frozen=True)
class BatchScript:
    """A job. command: what Python runs after `-m`; python: unless the site's file sets DISTLFM_PYTHON.

    folder: where it works; logs: where its log goes; site: a file that is sourced first. survives: whether it goes on
    when one of its nodes is lost. variables: names and values that it sets.
    """

    name: str
    resources: Resources
    command: tuple[str, ...]
    python: str
    folder: Path
    logs: Path
    site: Path | None = None
    survives: bool = False
    variables: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The script."""
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in self._options()), ""]
        if self.site is not None:
            # In a function the file does not see the arguments of a script. One that is gone must not be passed over.
            lines += [
                f"site={shlex.quote(str(self.site))}",
                'if [ ! -f "$site" ]; then echo "There is no site file $site." >&2; exit 2; fi',
                "# shellcheck disable=SC1090",
                'read_site() { . "$site"; }',
                "read_site",
            ]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.variables]
        # Unquoted: it may be several words, such as `apptainer exec image.sif python3`.
        lines.append(f"exec ${{DISTLFM_PYTHON:-{shlex.quote(self.python)}}} -m {shlex.join(self.command)}")
        return "\n".join(lines) + "\n"

    def log(self, job: str) -> Path:
        """Where the log of the job is; that of an array has the task's number in place of the star."""
        return self.logs / f"{self.name}-{job}{'_*' if self.resources.array else ''}.log"

    def _options(self) -> Iterator[str]:
        asked = self.resources
        number, array = ("%A_%a", _ARRAY.fullmatch(asked.array)) if asked.array else ("%j", None)
        after = ",".join(_after(asked.dependency))
        options = {
            "job-name": self.name,
            "chdir": str(self.folder),
            "output": f"{without_patterns(self.logs)}/%x-{number}.log",
            "open-mode": "append",
            "requeue": "",
            "signal": f"B:USR1@{min(WARNING_SECONDS, seconds_of(asked.time) // 5)}",
            "time": asked.time,
            "nodes": str(asked.nodes),
            "ntasks-per-node": str(asked.tasks_per_node),
            "cpus-per-task": str(asked.cpus),
            "mem": asked.memory or None,
            "mem-per-cpu": None if asked.memory else asked.memory_per_cpu,
            # Of the node: each task sees them all, and takes the one of its number.
            "gpus-per-node": str(asked.gpus) if asked.gpus else None,
            "no-kill": "" if self.survives else None,
            "array": f"0-{int(array['tasks']) - 1}{array['atonce'] or ''}" if array else None,
            "partition": asked.partition or None,
            "account": asked.account or None,
            "dependency": after or None,
            # What waits for a job that has failed would wait for ever.
            "kill-on-invalid-dep": "yes" if after else None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        yield from (f"--{name}={_quoted(value)}" if value else f"--{name}" for name, value in given.items())
        for option in asked.others:
            match = _OPTION.fullmatch(option)
            if match is None:
                raise UsageError(f"{option!r} is not an option of sbatch.", "Write --name=value, such as --qos=long.")
            if match["name"] in given:
                raise UsageError(f"--{match['name']} is set already.", f"Leave {option!r} out.")
            yield f"--{match['name']}={_quoted(option.partition('=')[2])}" if "=" in option else option


def bytes_of(memory: str) -> int:
    """An amount as Slurm writes it: megabytes, or with K, M, G or T behind it."""
    unit = 1 << 10 * ("KMGT".find(memory[-1]) + 1 or 2)
    return int(memory.rstrip("KMGT")) * unit


def seconds_of(time: str) -> int:
    """A limit as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, …"""
    match = _TIME.fullmatch(time)
    if match is None or not time.strip("0:-"):  # Slurm takes zero for no limit at all
        raise UsageError(f"--time {time!r} is not a time.", "Give 90 (minutes), 12:00:00 (hours) or 2-00:00 (days).")
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return ((int(match["days"]) * 24 + hours) * 60 + minutes) * 60 + seconds
    hours, minutes, seconds = (0, *parts, 0) if len(parts) == 1 else (0, *parts)[-3:]
    return (hours * 60 + minutes) * 60 + seconds


def ends_awaited(dependency: str) -> set[str]:
    """Numbers of the jobs that have ended before one with this dependency begins; `after` awaits a beginning only."""
    named = (one for one in _after(dependency) if not one.startswith("after:"))
    return {number for one in named for number in re.findall(r":(\d+)", one)}


def _after(dependency: str) -> list[str]:
    parts = [one for one in dependency.split(",") if one]
    return [f"afterok:{one}" if re.fullmatch(_JOBS, one) else one for one in parts]


def _quoted(value: str) -> str:
    """A value as sbatch reads it from a #SBATCH line."""
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise UsageError(f"{value!r} has a character that no batch script can hold.", "Choose another name.")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return value if _PLAIN.fullmatch(value) else f'"{escaped}"'


def without_patterns(path: Path) -> str:
    """Slurm takes %j and others in the name of a log for the number of the job, and so on."""
    return str(path).replace("%", "%%")
