"""What of this machine a process may use: cores, memory, and a directory with a short name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

MEBIBYTE = 2**20
SMALLEST_STORE = 80 * MEBIBYTE
"""Ray takes no object store below 75 MiB."""

LARGEST_STORE = 256 * MEBIBYTE
"""Results go to disk from the workers themselves, so that little passes through the object store."""

STORE_SHARE = 0.05
LONGEST_TEMPORARY = 22
"""A socket's path holds 107 characters, and Ray appends some 75 to its directory."""


def usable_cpus(
    environment: Mapping[str, str] = os.environ, control_groups: Path = Path("/sys/fs/cgroup"), own: Path | None = None
) -> int:
    """Cores that this process may use: the least of its affinity, its control groups' quota and Slurm's allotment.

    own: the file that names this process's control group.
    """
    limits = [float(len(os.sched_getaffinity(0)))]
    limits += _quotas(control_groups, own or Path("/proc/self/cgroup"))
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if environment.get(name, "").isdigit():
            limits.append(float(environment[name]))
            break
    return max(1, int(min(limits)))


def _quotas(root: Path, own: Path) -> Iterator[float]:
    """Cores allowed by each control group above this process, of either version."""
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base = root
        elif "cpu" in controllers.split(","):
            base = root / "cpu"
        else:
            continue
        below = Path(place.lstrip("/"))
        for group in (base / below, *(base / parent for parent in below.parents)):
            yield from _quota(group)


def _quota(group: Path) -> Iterator[float]:
    """A group's quota in cores, if it has one."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError):
        return


def object_store_bytes() -> int:
    """Size of a local object store: a small share of memory, and less than half of what /dev/shm has free."""
    limits = [LARGEST_STORE, int(STORE_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    shared = Path("/dev/shm")  # noqa: S108 (asked for its size only)
    if shared.is_dir():
        limits.append(shutil.disk_usage(shared).free // 2)
    return max(SMALLEST_STORE, min(limits))


def short_temporary() -> Path:
    """Where temporary directories go: the usual place unless its name is too long for sockets below it."""
    usual = Path(tempfile.gettempdir())
    if len(str(usual)) > LONGEST_TEMPORARY and os.access("/tmp", os.W_OK):  # noqa: S108 (mkdtemp makes it private)
        return Path("/tmp")  # noqa: S108
    return usual
