"""Whoever goes on with a store knows what its blocks took, and whether the work has ever succeeded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distlfm.fleets.driver import past_of
from distlfm.store import STATUSES, Store
from tests.support.store_factories import make_block, make_spec


def test_seconds_come_from_markers_and_a_block_without_any_answer_proves_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", make_spec(), None)
    assert (past_of(store).seconds, past_of(store).answered) == ({}, False)
    arrays, rows = make_block(store, 1)
    arrays["status"] = np.full(len(rows), STATUSES["failed"])
    store.write_block(1, arrays, [{**row, "status": "failed"} for row in rows], 3.5)
    assert (past_of(store).seconds, past_of(store).answered) == ({1: 3.5}, False)
    store.write_block(0, *make_block(store, 0))
    assert (past_of(store).seconds, past_of(store).answered) == ({1: 3.5}, True)
