"""An answer that failed a check is called unreliable wherever it is shown, with the reason; nobody learns from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.federated.site.cohort import prepared
from distlfm.lfo.dataset import kept_rows
from distlfm.store import STATUSES, Store
from distlfm.verbs.fit import resume
from tests.support.catalogue.linear import level
from tests.support.store_factories import make_block, make_spec

CONFIG = """
mechanism: {kind: transcription, initial: zero, outputs: [level], fixed: {sensitivity: 1.0, basal: 0.0}}
inference: {posterior: {draws: 16}, grid_points: 21}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config, and data of a tank that was empty at the start and of one that was not."""
    place = tmp_path_factory.mktemp("unreliable")
    (place / "tanks.yaml").write_text(CONFIG)
    rows = ["time,instance,output,value"]
    for name, start in (("empty", 0.0), ("full", 3.0)):
        made = level(np.random.default_rng(0), start=start)
        rows += [f"{t},{name},level,{value}" for t, value in zip(made.times, made.values[0], strict=True)]
    (place / "tanks.csv").write_text("\n".join(rows))
    return place


def test_every_place_that_shows_a_fit_says_that_it_is_unreliable(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "run"
    code = main(["fit", str(folder / "tanks.yaml"), "--data", str(folder / "tanks.csv"), "--out", str(out)])
    told = "".join(capsys.readouterr())
    assert code == 0
    assert "1 of 2 answers is unreliable" in " ".join(told.split())
    assert "full: unreliable." in told
    summary = json.loads((out / "summary.json").read_text())
    assert summary["statuses"] == {"converged": 1, "unreliable": 1}
    ((one),) = summary["unreliable"]
    assert one["id"] == "full"
    assert "start" in one["reason"]
    store = Store.open(out / "store.zarr")
    assert store.read("status").tolist() == [STATUSES["converged"], 7]
    assert kept_rows(store).tolist() == [0]
    page = (out / "report.html").read_text()
    assert "1 failed a check and is unreliable" in page
    assert "The fit settled, and its answer failed a check." in page
    run = resume(out)
    assert "1 unreliable" in repr(run)
    assert "unreliable" in repr(run["full"])
    assert not run["full"].trustworthy
    assert main(["status", str(out)]) == 0
    assert "1 unreliable" in capsys.readouterr().out


def test_a_site_counts_what_failed_a_check_and_does_not_learn_from_it(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("name: north\nfit: {mechanism: {kind: glucose}}\n")
    store = Store.create(tmp_path / "fits" / "store.zarr", make_spec(instances=4))
    arrays, rows = make_block(store, 0)
    arrays["status"][:2] = STATUSES["unreliable"]
    store.write_block(
        0, arrays, [{**row, "status": "unreliable" if i < 2 else row["status"]} for i, row in enumerate(rows)]
    )
    found = prepared(tmp_path)
    assert [found[f"windows_{name}"] for name in ("fitted", "unreliable", "failed")] == [2, 2, 0]
    assert kept_rows(store).tolist() == [2, 3]
