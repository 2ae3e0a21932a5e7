"""Inside a fresh installation: every module can be imported, and every version is the one in constraints.txt."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import import_all

PROJECT = Path(__file__).resolve().parents[2]
# A CUDA build of torch brings these, at versions that its own metadata fixes.
FIXED_BY_TORCH = re.compile(r"^(nvidia-.*|cuda-.*|triton)$")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(lines: list[str]) -> dict[str, str]:
    """Names and versions of `name==version` lines; a local tag such as +cpu names a build, not a version."""
    pairs = (line.strip().split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonical(name): version.partition("+")[0] for name, version in pairs}


def differences(pinned: dict[str, str], installed: dict[str, str], seen: dict[str, str]) -> list[str]:
    """One line for each package that is not as pinned.

    `installed` is in the environment itself; `seen` also counts what the system brings.
    """
    unpinned = [
        f"{name} {version} is installed and not in constraints.txt"
        for name, version in installed.items()
        if name not in pinned and not FIXED_BY_TORCH.match(name)
    ]
    other = [
        f"{name} should be {version} and is {seen.get(name, 'missing')}"
        for name, version in pinned.items()
        if seen.get(name) != version
    ]
    return sorted(unpinned + other)


def main() -> int:
    freeze = [sys.executable, "-m", "pip", "freeze", "--local", "--all", "--exclude-editable"]
    installed = versions(subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines())
    installed.pop("pip", None)  # Debian's
    pinned = versions((PROJECT / "constraints.txt").read_text().splitlines())
    seen: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():  # the first on the path is the one that is imported
        seen.setdefault(canonical(distribution.name), distribution.version.partition("+")[0])
    faults = differences(pinned, installed, seen)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    sys.stdout.write(f"{len(installed)} packages, {len(faults)} not as pinned\n")
    return max(bool(faults), import_all.main([]))


if __name__ == "__main__":
    sys.exit(main())
