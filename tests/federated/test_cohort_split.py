"""Who is learned from, who chooses and who measures: each patient for themselves, whoever else is there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from distlfm.errors import UsageError
from distlfm.federated.settings import SiteConfig
from distlfm.federated.site.cohort import PARTS, Cohort
from distlfm.federated.site.work import Site, write_site
from tests.support.lfo_toy import make_store
from tests.support.site_toy import make_operator

NAMES = [f"patient {i}" for i in range(400)]


def parts_of(cohort: Cohort) -> dict[str, str]:
    return {name: part for part in PARTS for name in getattr(cohort, part)}


@pytest.mark.parametrize("seed", range(5))
def test_a_patient_who_is_added_moves_nobody_else(seed: int) -> None:
    """Ranked by their hashes, others changed their part in 60 % of cohorts when one joined."""
    for count in (1, 5, 20, 25, 399):
        before, after = (parts_of(Cohort.draw(NAMES[:many], 0.2, 0.3, seed)) for many in (count, count + 1))
        assert {name: after[name] for name in before} == before
        assert set(after) - set(before) == {NAMES[count]}


def test_shares_are_kept_on_average_and_another_seed_is_another_division() -> None:
    found = [Cohort.draw(NAMES, 0.2, 0.3, seed) for seed in range(10)]
    counts = np.sum([[len(one.train), len(one.choose), len(one.test)] for one in found], axis=0)
    assert chisquare(counts, np.array([0.5, 0.2, 0.3]) * 4000).pvalue > 1e-3
    assert len({one.test for one in found}) == 10
    everybody = Cohort.draw(NAMES, 0.0, 0.0, 0)
    assert (len(everybody.train), everybody.choose, everybody.test) == (400, (), ())


def test_what_a_part_without_patients_is_for_is_refused(tmp_path: Path) -> None:
    operator = make_operator(make_store(tmp_path / "base.zarr", 16))
    make_store(tmp_path / "site" / "pairs.zarr", 2)
    empty = next(seed for seed in range(100) if not Cohort.draw(["toy-0", "toy-1"], 0.2, 0.3, seed).choose)
    site = write_site(tmp_path / "site", SiteConfig(name="east", store=Path("pairs.zarr"), seed=empty), operator)
    assert site.count("pairs", "choose") == 0
    with pytest.raises(UsageError, match=r"no patients to choose.*another seed and no cohort\.json"):
        site.windows(part="choose")


def test_a_cohort_that_was_written_down_before_stays_as_it_is(tmp_path: Path) -> None:
    operator = make_operator(make_store(tmp_path / "base.zarr", 16))
    make_store(tmp_path / "site" / "pairs.zarr", 12)
    parts = {"train": [f"toy-{i}" for i in range(8)], "choose": ["toy-8", "toy-9"], "test": ["toy-10", "toy-11"]}
    write_site(tmp_path / "site", SiteConfig(name="east", store=Path("pairs.zarr")), operator)
    (tmp_path / "site" / "cohort.json").write_text(json.dumps(parts))
    site = Site(tmp_path / "site")
    assert {part: site.count("pairs", part) for part in PARTS} == {"train": 8, "choose": 2, "test": 2}  # type: ignore[arg-type]
