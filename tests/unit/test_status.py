"""What `distlfm status` says of a run, from its files alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from distlfm.cli import main
from distlfm.store import Holder, Store, driver_lock, part_lock, write_progress
from distlfm.verbs.status import status
from tests.support.store_factories import make_block, make_spec


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    """A run whose blocks are all there, and whose driver died before it wrote the report."""
    store = Store.create(tmp_path / "run" / "store.zarr", make_spec())
    for block in range(store.spec.num_blocks):
        store.write_block(block, *make_block(store, block))
    return tmp_path / "run"


def test_a_run_is_complete_only_once_its_report_is_there(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(fitted).state == "stopped"
    assert main(["status", str(fitted)]) == 1
    assert "only its report is missing" in capsys.readouterr().out
    (fitted / "report.html").write_text("<html></html>")
    assert status(fitted).state == "complete"
    assert main(["status", str(fitted)]) == 0


def said(who: Holder, **more: Any) -> dict[str, Any]:
    return {"time": datetime.now(UTC).isoformat(), "host": who.host, "pid": who.pid, **more}


def test_what_an_earlier_driver_said_is_not_told_of_the_one_at_work(fitted: Path) -> None:
    store = Store.open(fitted)
    (store.path / "markers" / "00001.json").unlink()
    with driver_lock(fitted) as me:
        figures = {"workers": 7, "rate": 3.0, "left_s": 9.0, "running": [1]}
        for told in (
            said(me, **figures) | {"pid": me.pid + 1},
            said(me, **figures) | {"host": "elsewhere"},
            said(me, **figures) | {"time": "2020-01-01T00:00:00+00:00"},  # its number was given to another before
            figures,
        ):
            write_progress(store.path, told)
            found = status(fitted)
            assert (found.driver, found.workers, found.rate, found.left_s, found.running) == (me, None, None, None, 0)
        write_progress(store.path, said(me, **figures))
        found = status(fitted)
        assert (found.workers, found.rate, found.left_s, found.running) == (7, 3.0, 9.0, 4)


def test_drivers_of_parts_are_told_of_together(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(fitted)
    for block in (0, 1):
        (store.path / "markers" / f"0000{block}.json").unlink()
    with part_lock(fitted, "1/3") as one, part_lock(fitted, "2/3") as two:
        write_progress(store.path, said(one, workers=1, rate=0.5, left_s=4.0, running=[0]), "1/3")
        write_progress(store.path, said(two, workers=2, rate=1.5, left_s=None, running=[1]), "2/3")
        write_progress(store.path, said(two, workers=9, rate=9.0, left_s=9.0) | {"pid": -1}, "3/3")
        found = status(fitted)
        assert (found.workers, found.rate, found.left_s, found.running) == (3, 2.0, 4.0, 8)
        assert main(["status", str(fitted)]) == 0
        assert "and 1 more with their parts, 3 workers, 2 instances/s, 4 s left" in capsys.readouterr().out


def test_a_store_of_its_own_needs_no_report(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "made.zarr", make_spec(kind="generate"))
    assert status(store.path).state == "stopped"
    for block in range(store.spec.num_blocks):
        store.write_block(block, *make_block(store, block))
    assert status(store.path).state == "complete"
