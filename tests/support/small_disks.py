"""Disks that take little or nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

mounts = pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can mount")


@contextmanager
def disk(place: Path, kilobytes: int, *, read_only: bool = False) -> Iterator[Path]:
    """A file system of that size at a place, which is made; the place is gone afterwards."""
    place.mkdir()
    options = f"size={kilobytes}k,mode=0777{',ro' if read_only else ''}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def enlarge(place: Path, kilobytes: int) -> None:
    """Make room on a disk."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(place)], check=True)


def use_up(place: Path) -> Path:
    """Use up what is left on a disk. Gives the file that takes it, to be removed."""
    ballast = place / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast
