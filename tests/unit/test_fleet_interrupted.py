"""Signals and damage outside a fleet's blocks: a sentence that says how to go on, and nothing is lost."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from distlfm.config import build
from distlfm.errors import Stopped, StorageError, UsageError
from distlfm.fleets import fit_plan
from distlfm.fleets.driver import Fleet, _pool, resumable
from distlfm.inference.archive import load_fit
from distlfm.runs import folder as rundir
from distlfm.runs.settings import FitConfig, WorkConfig
from distlfm.runtime.process import SIGNALS
from distlfm.runtime.reporting import Plain, Silent
from distlfm.verbs import fit as fit_module
from distlfm.verbs.fit import FitRun, fit, resume
from distlfm.verbs.status import status
from tests.support.fleet_runs import CONFIG, events, write_fleet

pytestmark = pytest.mark.slow

COUNT = 4


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, COUNT)
    return folder


def fit_in(out: Path, data: Path, **run: Any) -> FitRun:
    content = {**CONFIG, "run": {**CONFIG["run"], "executor": "serial", "dir": str(out), **run}}
    return fit(build(FitConfig, content), data)


def send(which: signal.Signals) -> None:
    os.kill(os.getpid(), which)
    time.sleep(0.01)


@pytest.mark.parametrize("which", SIGNALS)
def test_a_signal_while_data_are_read_is_told_with_what_to_do(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: signal.Signals
) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    monkeypatch.setattr(fit_plan, "open_source", lambda *_: send(which))
    with pytest.raises(Stopped) as found:
        fit_in(tmp_path / "run", fleet / "data.npz")
    said = f"Stopped by {which.name} before the first block was begun. To go on: give the same command again."
    assert str(found.value) == said
    assert found.value.exit_code == (75 if which is signal.SIGUSR1 else 128 + which)
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert not (tmp_path / "run" / "store.zarr").exists()


def test_a_signal_while_the_report_is_written_is_told_and_the_run_goes_on(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(fit_module, "write_summary", lambda *_: send(signal.SIGTERM))
    with pytest.raises(Stopped) as found:
        fit_in(out, fleet / "data.npz")
    monkeypatch.undo()
    when = f"after all {COUNT} instances, before summary and report were written"
    assert str(found.value) == f"Stopped by SIGTERM {when}. To go on: distlfm resume {out}"
    assert status(out).state == "stopped"
    resume(out)
    assert status(out).state == "complete"


def test_a_second_ctrl_c_says_how_to_go_on_too(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="Stopped by SIGINT") as found, resumable(tmp_path / "no.zarr", "again"):
        raise KeyboardInterrupt
    assert found.value.exit_code == 130


def test_a_kept_posterior_that_is_damaged_costs_its_picture_only(fleet: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "run", io.StringIO()
    fit_in(out, fleet / "data.npz", keep="all")
    kept = sorted((out / "fits").iterdir())
    assert len(kept) == COUNT
    whole = kept[1].read_bytes()
    for damaged in (b"", b"no archive", whole[:-200], whole[:400] + bytes(100) + whole[500:]):
        kept[1].write_bytes(damaged)
        with pytest.raises(UsageError, match="is not a saved fit"):
            load_fit(kept[1])
    (out / "report.html").unlink()
    found = resume(out, reporter=Plain(said))
    assert found.tally.count == COUNT
    assert "warning: sim-000001 is not drawn in the report: " in said.getvalue()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Instance sim-000001" not in page
    assert "Instance sim-000002" in page


def test_an_event_that_was_cut_short_does_not_spoil_the_next(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit_in(out, fleet / "data.npz")
    with (out / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"time": "2026')
    (out / "store.zarr" / "markers" / "00000.json").unlink()
    fit_in(out, fleet / "data.npz")
    assert [one["event"] for one in events(out)].count("started") == 2
    lines = (out / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum(not line.endswith("}") for line in lines) == 1
    assert json.loads(lines[-1])["event"] == "ended"


def test_a_disk_that_became_read_only_is_told_as_such(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    fit_in(tmp_path / "run", fleet / "data.npz")
    monkeypatch.setattr(rundir.tempfile, "TemporaryFile", refused)
    with pytest.raises(StorageError, match=r"Read-only file system. Mount it for writing.*same command goes on"):
        resume(tmp_path / "run")
    with pytest.raises(UsageError, match=r"Read-only file system. Choose another --out directory"):
        fit_in(tmp_path / "new", fleet / "data.npz")


def test_a_driver_keeps_no_mesh_open_while_ray_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed: list[bool] = []

    def session(_: object) -> None:
        assert closed
        raise UsageError("no Ray here")

    monkeypatch.setattr("distlfm.fleets.driver.close_helper_groups", lambda: closed.append(True))
    monkeypatch.setattr("distlfm.cluster.ray.session.ray_session", session)
    nothing: Any = None
    fleet = Fleet("fit", nothing, nothing, "", tmp_path)
    with pytest.raises(UsageError, match="no Ray"), _pool(fleet, 4, WorkConfig(executor="ray"), Silent()):
        raise AssertionError("there is no pool")
