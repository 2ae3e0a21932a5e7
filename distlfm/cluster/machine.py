"""What of this machine a process may use: cores and memory.

Also how another Python process finds the modules of this one.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from distlfm import version
from distlfm.runtime.process import number_in

MEBIBYTE = 2**20
SMALLEST_STORE = 80 * MEBIBYTE
"""Ray takes no object store below 75 MiB."""

LARGEST_STORE = 256 * MEBIBYTE
"""Results go to disk from the workers themselves, so that little passes through the object store."""

STORE_SHARE = 0.05

OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cpus(
    environment: Mapping[str, str] = os.environ, control_groups: Path = Path("/sys/fs/cgroup"), own: Path | None = None
) -> int:
    """Cores that this process may use: the least of its affinity, its control groups' quota and Slurm's allotment.

    own: the file that names this process's control group.
    """
    limits = [float(len(os.sched_getaffinity(0)))]
    for group in _groups(control_groups, own or OWN_GROUPS, "cpu"):
        limits += _quota(group)
    allotted = number_in(environment, "SLURM_CPUS_PER_TASK", number_in(environment, "SLURM_CPUS_ON_NODE", -1))
    if allotted >= 0:
        limits.append(float(allotted))
    return max(1, int(min(limits)))


def _groups(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """The control groups above this process, of either version, that limit what the controller deals out."""
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base = root
        elif controller in controllers.split(","):
            base = root / controller
        else:
            continue
        below = Path(place.lstrip("/"))
        yield from (base / below, *(base / parent for parent in below.parents))


def _quota(group: Path) -> Iterator[float]:
    """A group's quota in cores, if it has one."""
    with suppress(OSError, ValueError):
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)


def free_bytes(
    table: Path = Path("/proc/meminfo"), control_groups: Path = Path("/sys/fs/cgroup"), own: Path | None = None
) -> int | None:
    """Memory that this process and its children could still take: the least that the machine and its control groups
    have. None if nothing tells."""
    limits = [*_available(table)]
    for group in _groups(control_groups, own or OWN_GROUPS, "memory"):
        limits += _allowed(group)
    return min(limits, default=None)


def _available(table: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in table.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _allowed(group: Path) -> Iterator[int]:
    """What a group with a limit has left; pages of files that are not in use would be given up for it."""
    limit, used, idle = ("memory.max", "memory.current", "inactive_file ")
    if not (group / limit).exists():
        limit, used, idle = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    with suppress(OSError, ValueError, IndexError):
        allowed = (group / limit).read_text().strip()
        if allowed == "max":
            return
        lines = (group / "memory.stat").read_text().splitlines()
        files = sum(int(line.split()[1]) for line in lines if line.startswith(idle))
        yield max(0, int(allowed) - int((group / used).read_text()) + files)


def object_store_bytes() -> int:
    """Size of a local object store: a small share of memory, and less than half of what /dev/shm has free."""
    limits = [LARGEST_STORE, int(STORE_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    shared = Path("/dev/shm")  # noqa: S108 (asked for its size only)
    if shared.is_dir():
        limits.append(shutil.disk_usage(shared).free // 2)
    return max(SMALLEST_STORE, min(limits))


def import_environment() -> dict[str, str]:
    """Environment with which a new Python imports this very distlfm; nothing where it is installed anyway."""
    root = str(Path(version.__file__).resolve().parent.parent)
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if root in installed:
        return {}
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != root]
    return {"PYTHONPATH": os.pathsep.join([root, *known])}


def import_path() -> list[str]:
    """The places that this process imports from, as absolute paths."""
    return [os.path.abspath(entry) for entry in sys.path]


def adopt_import_path(path: Sequence[str]) -> None:
    """Import from these places, in this order, and after them from those known here only.

    A process that Ray starts looks into the working directory first, where a `queue.py` may lie by chance.
    """
    own = [entry for entry in import_path() if entry not in path and entry != os.getcwd()]
    sys.path[:] = [*path, *own]
