"""The numbers of the code as it is, recorded so that a change which should change none can be checked.

    python -m tests.support.golden record --reason "why they changed"
    python -m tests.support.golden record --out /tmp/before.npz
    python -m tests.support.golden compare --exact --against /tmp/before.npz

`record --only NAME` replaces one case and keeps the others. Cases go through the public verbs and read the files that
these leave (stores, summaries, checkpoints), whose names stay when modules move. Long arrays are kept as their first
entries, a few random projections and a digest of all bits, which only `--exact` looks at.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import distlfm
from tests.support.golden_cases import CASES, ONE_THREAD, PROJECT, Array, Numbers

RECORDED = PROJECT / "tests" / "golden" / "numbers.npz"

WHOLE = 32
"""Arrays up to this many entries are kept as they are."""

PROJECTIONS = 6
SMALLEST = float(np.finfo(np.float64).tiny)
DIGEST = "#digest"
ABOUT = "about"

BITS_ONLY = ("force_draws",)
"""Draws of a posterior: which ones they are follows from the signs of eigenvectors, which rounding decides."""


def summarised(numbers: Numbers) -> Numbers:
    """The same in few numbers: short arrays whole, of long ones first entries and projections, and a digest of each."""
    found: Numbers = {}
    for name, given in numbers.items():
        array = np.ascontiguousarray(given)
        digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).digest()
        found[name + DIGEST] = np.frombuffer(digest[:12], dtype=np.uint8)
        if name in BITS_ONLY:
            continue
        flat = array.ravel().astype(np.float64)
        if flat.size <= WHOLE:
            found[name] = flat
            continue
        found[f"{name}#first"] = flat[:8]
        known = np.nan_to_num(flat)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(PROJECTIONS, flat.size))
        norm = np.sqrt(np.square(known).mean())
        # The norm stands beside the projections, so that one that happens to be small is not measured by itself.
        found[f"{name}#projections"] = np.append((signs * known).sum(1) / np.sqrt(flat.size), norm)
    return found


def numbers_of(name: str, folder: Path) -> Numbers:
    """Work on a case and summarise it."""
    return summarised(CASES[name].work(folder))


def deviation(found: Array, known: Array) -> float:
    """Largest difference as a share of the largest entry; infinite where sizes differ, or where values are missing."""
    if found.shape != known.shape or not np.array_equal(np.isnan(found), np.isnan(known)):
        return float("inf")
    gap = np.abs(np.nan_to_num(found) - np.nan_to_num(known)).max(initial=0.0)
    scale = np.abs(np.nan_to_num(known)).max(initial=0.0)
    return 0.0 if gap == 0 else float(gap / max(scale, SMALLEST))


def compared(found: Numbers, known: Numbers, exact: bool = False) -> tuple[float, str]:
    """The largest deviation of a case, and where it is. With `exact`, anything but the same bits is a deviation."""
    worst, where = 0.0, ""
    for name in sorted({*found, *known}):
        is_digest = name.endswith(DIGEST)
        if name not in found or name not in known:
            one = float("inf")
        elif is_digest:
            one = SMALLEST if exact and not np.array_equal(found[name], known[name]) else 0.0
        else:
            one = deviation(found[name], known[name])
        if one > worst:
            worst, where = one, name
    return worst, where


def read(path: Path) -> tuple[dict[str, Numbers], dict[str, Any]]:
    """A recording: numbers by case, and what is told about each case."""
    cases: dict[str, Numbers] = {}
    with np.load(path) as content:
        about = json.loads(str(content[ABOUT]))
        for name, told in about.items():
            ends = np.cumsum(list(told["entries"].values()))
            digests = content[f"{name}{DIGEST}"]
            cases[name] = dict(zip(told["entries"], np.split(content[name], ends)[:-1], strict=True))
            cases[name] |= {one + DIGEST: row for one, row in zip(told["digests"], digests, strict=True)}
    return cases, about


def write(path: Path, cases: Mapping[str, Numbers], about: Mapping[str, Any]) -> None:
    """Replace a recording. Numbers of a case are one array whose parts `about` names: a thousand arrays take more."""
    packed, told = {}, {}
    for name, numbers in cases.items():
        digests = {key: array for key, array in sorted(numbers.items()) if key.endswith(DIGEST)}
        values = {key: array for key, array in sorted(numbers.items()) if key not in digests}
        packed[name] = np.concatenate(list(values.values()))
        packed[f"{name}{DIGEST}"] = np.stack(list(digests.values()))
        told[name] = {
            **about[name],
            "entries": {key: array.size for key, array in values.items()},
            "digests": [key.removesuffix(DIGEST) for key in digests],
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{ABOUT: np.array(json.dumps(told))}, **packed)


def main() -> int:
    """Exit code 1 on a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.golden", description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("record", "compare"):
        one = verbs.add_parser(verb)
        one.add_argument("--only", action="append", choices=sorted(CASES), help="this case; may be repeated")
        if verb == "record":
            one.add_argument("--out", type=Path, default=RECORDED)
            one.add_argument("--reason", default="", help="why numbers are recorded anew; kept with them")
        else:
            one.add_argument("--against", type=Path, default=RECORDED)
            one.add_argument("--exact", action="store_true", help="the same bits, for one machine")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != one for name, one in ONE_THREAD.items()):
        # Libraries read the number of threads when they are loaded.
        again = [sys.executable, "-m", "tests.support.golden", *sys.argv[1:]]
        return subprocess.run(again, env={**os.environ, **ONE_THREAD}).returncode
    torch.set_num_threads(1)
    chosen = [name for name in CASES if not arguments.only or name in arguments.only]
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        if arguments.verb == "record":
            return _record(chosen, arguments.out, arguments.reason, Path(folder))
        return _compare(chosen, arguments.against, arguments.exact, Path(folder))


def _say(line: str) -> None:
    sys.stdout.write(f"{line.rstrip()}\n")
    sys.stdout.flush()


def _record(chosen: Sequence[str], out: Path, reason: str, folder: Path) -> int:
    cases, about = read(out) if out.exists() else ({}, {})
    for name in chosen:
        start = time.perf_counter()
        found = numbers_of(name, folder)
        worst, where = compared(found, cases[name], exact=True) if name in cases else (float("nan"), "new")
        _say(f"{name:32} {time.perf_counter() - start:6.1f} s  changed by {worst:.1e}  {where}")
        cases[name], about[name] = found, {"reason": reason, "version": distlfm.__version__}
    # Cases that are not registered any more go; the others stand in the order of the registry.
    write(out, {name: cases[name] for name in CASES if name in cases}, about)
    return 0


def _compare(chosen: Sequence[str], against: Path, exact: bool, folder: Path) -> int:
    cases, _ = read(against)
    differ = False
    for name in chosen:
        start = time.perf_counter()
        worst, where = compared(numbers_of(name, folder), cases.get(name, {}), exact)
        good = worst <= (0.0 if exact else CASES[name].relative)
        differ |= not good
        word = "same" if good else "DIFFERS"
        _say(f"{name:32} {time.perf_counter() - start:6.1f} s  {worst:.1e}  {word}  {where}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
