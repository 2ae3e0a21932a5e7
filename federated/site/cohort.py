"""Which patients take part: chosen once, and the same ever after.

If a patient could join between two questions, the difference of the answers would be about that patient alone. So the
cohort is written down when it is first used, and only whoever runs the site makes a new one, by removing the file.

`prepared` says how far a site's patients are fitted, from its folder alone: nothing is computed, and no records are
read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.config import load
from distlfm.errors import DistlfmError, OtherWork, UsageError
from distlfm.federated.settings import SiteConfig
from distlfm.federated.setup.homes import replace_secret
from distlfm.store import STATUSES, Store, find_store, is_store
from distlfm.store.files import storing
from distlfm.store.layout import FAILED, UNLEARNED

FITS = "fits"
GROUP = "/"
"""Between a patient's name and the number of a window."""


def patient_of(name: str) -> str:
    """The patient of a window."""
    return name.split(GROUP)[0]


def prepared(folder: Path) -> dict[str, Any]:
    """fits: `done`, `begun`, `not yet`, or what is in the way; and once there are any: windows, how many of them have a
    fit (`windows_fitted`), have one that failed a check (`windows_unreliable`), from which nothing is learned, or could
    not be fitted (`windows_failed`), and of how many patients those with a fit are."""
    try:
        config = load(SiteConfig, folder / "site.yaml")
        place = folder / (FITS if config.store is None else config.store)
        if config.store is None and not is_store(place):
            return {"fits": f"not yet: distlfm federated prepare {folder}"}
        return _fit_counts(Store.open(find_store(place)))
    except DistlfmError as error:  # the rest of a site's status does not hang on it
        return {"fits": f"not known: {error}"}


def _fit_counts(store: Store) -> dict[str, Any]:
    marks = store.markers().values()
    lost, doubted = ([STATUSES[name] for name in names] for names in (UNLEARNED, set(UNLEARNED) - set(FAILED)))
    fitted: list[str] = []
    unreliable = 0
    for mark in marks:
        names, statuses = (store.read(name, mark.first, mark.first + mark.count) for name in ("id", "status"))
        fitted += [patient_of(str(name)) for name, status in zip(names, statuses, strict=True) if status not in lost]
        unreliable += int(np.isin(statuses, doubted).sum())
    return {
        "fits": "begun" if store.missing() else "done",
        "windows": store.spec.instances,
        "windows_fitted": len(fitted),
        "windows_unreliable": unreliable,
        "windows_failed": sum(mark.count for mark in marks) - len(fitted) - unreliable,
        "patients_fitted": len(set(fitted)),
    }


FILE = "cohort.json"
PARTS = ("train", "choose", "test")

Index = NDArray[np.intp]


@dataclass(frozen=True)
class Cohort:
    """Patients that are learned from, that choose between models, and that measure; each is one of these.

    Whoever measures must not choose: the best of several models looks better than it is to those who chose it.
    """

    train: tuple[str, ...]
    choose: tuple[str, ...]
    test: tuple[str, ...]

    @staticmethod
    def open(
        folder: Path,
        ids: Sequence[str],
        choose: float,
        test: float,
        seed: int,
        others: Callable[[], Iterable[str]] = tuple,
    ) -> Cohort:
        """The cohort that was written down, or, the first time, one of all patients that have a window in `ids`.

        others: windows without a fit. A question about records may have come first; their patients are not lost.
        """
        path = folder / FILE
        if path.exists():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                found = Cohort(*(tuple(content[part]) for part in PARTS))
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{path} is damaged.", "Restore it, or remove it to choose the cohort anew.") from None
            lost = {*found.train, *found.choose, *found.test} - {patient_of(name) for name in ids}
            if lost and (lost := lost - {patient_of(name) for name in others()}):
                raise OtherWork(
                    f"{len(lost)} patients of the cohort have no fit any more.",
                    f"Restore them, or remove {path} to choose the cohort anew: that is a new cohort for all budgets.",
                )
            return found
        found = Cohort.draw(sorted({patient_of(name) for name in ids}), choose, test, seed)
        text = json.dumps({part: getattr(found, part) for part in PARTS}, indent=2)
        with storing(FILE, folder):
            replace_secret(path, f"{text}\n".encode())
        return found

    @staticmethod
    def draw(patients: Sequence[str], choose: float, test: float, seed: int | str) -> Cohort:
        """Each patient's part follows from the patient's own name alone, by a hash with the seed as its key.

        So whoever joins or leaves moves nobody else. The price is that shares are kept on average, and that a part may
        have nobody: then what it is for is refused, as filling it from the others would depend on who else is there.
        """
        found: dict[str, list[str]] = {part: [] for part in PARTS}
        for name in sorted(patients):
            place = _place(name, seed)
            found["test" if place < test else "choose" if place < test + choose else "train"].append(name)
        return Cohort(*(tuple(found[part]) for part in PARTS))

    def rows(self, ids: Sequence[str], patients: Sequence[str]) -> Index:
        """Where the windows of these patients are among `ids`."""
        chosen = set(patients)
        return np.flatnonzero([patient_of(name) in chosen for name in ids])


def _place(name: str, seed: int | str) -> float:
    """A number from 0 to 1 that belongs to a patient's name, and that nobody can foretell without the seed."""
    digest = hmac.new(f"distlfm cohort {seed}".encode(), name.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def groups(ids: Sequence[str]) -> dict[str, list[int]]:
    """Numbers of the windows of each patient."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(ids):
        found.setdefault(patient_of(name), []).append(row)
    return found
