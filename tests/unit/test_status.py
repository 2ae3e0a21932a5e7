"""What `distlfm status` says of a run, from its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_factories import make_block, make_spec

from distlfm.cli import main
from distlfm.pipeline.status import status
from distlfm.store import Store


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


def test_a_store_of_its_own_needs_no_report(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "made.zarr", make_spec(kind="generate"))
    assert status(store.path).state == "stopped"
    for block in range(store.spec.num_blocks):
        store.write_block(block, *make_block(store, block))
    assert status(store.path).state == "complete"
