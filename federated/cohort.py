"""Which patients take part: chosen once, and the same ever after.

If a patient could join between two questions, the difference of the answers would be about that patient alone. So the
cohort is written down when it is first used, and only whoever runs the site makes a new one, by removing the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distlfm.errors import UsageError
from distlfm.federated.site_data import patient_of
from distlfm.store.files import put_all, storing

FILE = "cohort.json"

Index = NDArray[np.intp]


@dataclass(frozen=True)
class Cohort:
    """Patients that are learned from, and patients that measure the model; a patient is one or the other."""

    train: tuple[str, ...]
    test: tuple[str, ...]

    @staticmethod
    def open(folder: Path, ids: Sequence[str], test: float, seed: int) -> Cohort:
        """The cohort that was written down, or, the first time, one of all patients that have a window in `ids`."""
        path = folder / FILE
        if path.exists():
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                found = Cohort(tuple(told["train"]), tuple(told["test"]))
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{path} is damaged.", "Restore it, or remove it to choose the cohort anew.") from None
            lost = {*found.train, *found.test} - {patient_of(name) for name in ids}
            if lost:
                raise UsageError(
                    f"{len(lost)} patients of the cohort have no fit any more.",
                    f"Restore them, or remove {path} to choose the cohort anew: that is a new cohort for all budgets.",
                )
            return found
        found = Cohort.choose(sorted({patient_of(name) for name in ids}), test, seed)
        text = json.dumps({"train": found.train, "test": found.test}, indent=2)
        with storing(FILE, folder):
            put_all({path: f"{text}\n".encode()})
            path.chmod(0o600)
        return found

    @staticmethod
    def choose(patients: Sequence[str], test: float, seed: int) -> Cohort:
        """Sort patients by a hash; the first ones measure."""
        ranked = sorted(patients, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
        number = min(len(ranked) - 1, max(1, round(test * len(ranked)))) if test else 0
        return Cohort(tuple(sorted(ranked[number:])), tuple(sorted(ranked[:number])))

    def rows(self, ids: Sequence[str], patients: Sequence[str]) -> Index:
        """Where the windows of these patients are among `ids`."""
        chosen = set(patients)
        return np.flatnonzero([patient_of(name) in chosen for name in ids])


def groups(ids: Sequence[str]) -> dict[str, list[int]]:
    """Numbers of the windows of each patient."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(ids):
        found.setdefault(patient_of(name), []).append(row)
    return found
