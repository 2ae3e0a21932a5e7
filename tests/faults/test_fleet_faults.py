"""Whatever is killed, a fleet's run ends with every instance once and with the numbers of an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from distlfm.cli import main
from distlfm.store import Store
from tests.support.fleet_runs import (
    INSTANCES,
    Driver,
    all_gone,
    assert_same,
    command,
    descendants,
    driving,
    events,
    wait_for,
    write_fleet,
)

pytestmark = pytest.mark.slow

WORKERS_KILLED, DRIVERS_KILLED, RAYLETS_KILLED = 3, 2, 2
RAY = ("--executor", "ray", "--workers", "2")


def finish(fleet: Path, out: Path, log: Path) -> None:
    """The same command again goes on and ends well."""
    with driving(command(fleet, out, *RAY), log) as again:
        assert again.wait() == 0, again.text
        assert "are there already" in again.text


def test_workers_killed_at_any_moment_change_no_number(fleet: Path, tmp_path: Path) -> None:
    moments, out = random.Random(11), tmp_path / "run"
    killed: set[int] = set()
    with driving(command(fleet, out, *RAY), tmp_path / "log") as driver:
        for number in range(WORKERS_KILLED):
            started = wait_for(out, "block_started", 1 + 2 * number, driver)
            worker = next(
                pid
                for event in reversed(started)
                if (pid := int(event["worker"].rpartition(":")[2])) not in killed and Path(f"/proc/{pid}").exists()
            )
            time.sleep(moments.uniform(0, 0.3))
            os.kill(worker, signal.SIGKILL)
            killed.add(worker)
            wait_for(out, "worker_lost", number + 1, driver)
        assert driver.wait() == 0, driver.text
    assert_same(out, fleet / "calm")
    assert all_gone(driver.family)


def test_drivers_killed_at_any_moment_leave_nothing_behind_and_the_same_command_finishes(
    fleet: Path, tmp_path: Path
) -> None:
    moments, out = random.Random(12), tmp_path / "run"
    for number in range(DRIVERS_KILLED):
        with driving(command(fleet, out, *RAY), tmp_path / "log") as driver:
            wait_for(out, "block_done", 1 + 2 * number, driver)
            time.sleep(moments.uniform(0, 0.3))
            driver.kill()
            assert all_gone(driver.family), "a process outlives its driver"
        assert Store.open(out).missing(), "it was killed too late to prove anything"
    finish(fleet, out, tmp_path / "log")
    assert_same(out, fleet / "calm")


def test_raylets_killed_at_any_moment_end_their_drivers_and_the_same_command_finishes(
    fleet: Path, tmp_path: Path
) -> None:
    moments, out = random.Random(13), tmp_path / "run"
    for number in range(RAYLETS_KILLED):
        with driving(command(fleet, out, *RAY), tmp_path / "log") as driver:
            wait_for(out, "block_done", 1 + 2 * number, driver)
            driver.watch()
            time.sleep(moments.uniform(0, 0.3))
            os.kill(raylet_of(driver), signal.SIGKILL)
            assert driver.wait() != 0
            assert all_gone(driver.family), "a process outlives its driver"
        assert Store.open(out).missing(), "it was killed too late to prove anything"
    finish(fleet, out, tmp_path / "log")
    assert_same(out, fleet / "calm")


def raylet_of(driver: Driver) -> int:
    for pid in descendants(driver.process.pid):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet":
            return pid
    raise AssertionError("there is no raylet")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on_and_does(fleet: Path, tmp_path: Path, which: signal.Signals) -> None:
    out = tmp_path / "run"
    with driving(command(fleet, out, *RAY), tmp_path / "log") as driver:
        wait_for(out, "block_done", 1, driver)
        if which == signal.SIGINT:
            os.killpg(driver.process.pid, which)  # as a terminal does
        else:
            os.kill(driver.process.pid, which)
        began = time.monotonic()
        assert driver.wait(60) == 128 + which, driver.text
        assert time.monotonic() - began < 30
        assert all_gone(driver.family)
        assert f"Stopped by {which.name} after" in driver.text
        assert f"distlfm resume {out}" in driver.text
        assert "Traceback" not in driver.text
    done = sum(marker.count for marker in Store.open(out).markers().values())
    assert 0 < done < INSTANCES
    assert main(["-q", "status", str(out)]) == 1
    assert main(["-q", "resume", str(out), "--executor", "serial"]) == 0
    assert main(["-q", "status", str(out)]) == 0
    assert_same(out, fleet / "calm")
    again = [event for event in events(out) if event["event"] == "block_done"]
    assert len({event["block"] for event in again}) == len(again), "a block was done twice"


def test_a_second_driver_is_refused_and_told_who_is_the_first(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with driving(command(fleet, out, *RAY), tmp_path / "log") as driver:
        wait_for(out, "block_started", 1, driver)
        assert main(command(fleet, out)[3:]) == 2
        assert f"process {driver.process.pid}" in capsys.readouterr().err
        assert main(["status", str(out), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], told["driver"]["pid"]) == ("running", driver.process.pid)
        assert driver.wait() == 0, driver.text
    assert_same(out, fleet / "calm")


def test_a_run_begun_with_other_settings_or_data_is_refused_and_left_as_it_is(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    base = ["-q", *command(fleet, out, "--executor", "serial")[3:]]
    write_fleet(tmp_path, 6)
    small = [text.replace(str(fleet), str(tmp_path)) for text in base]
    assert main(small) == 0
    before = {path: path.stat().st_mtime_ns for path in sorted(out.rglob("*")) if path.name != "lock"}
    for refused, why in (
        ([*small, "run.seed=6"], "run.seed=5, and it is 6 now"),
        ([*small, "inference.posterior.draws=17"], "inference.posterior.draws=16, and it is 17 now"),
        ([*small, "run.batch=3"], "in blocks of 4 instances, not 3"),
        (base, "other data: they have changed since"),
    ):
        assert main(refused) == 2
        assert f"{out / 'store.zarr'} was begun" in (said := capsys.readouterr().err)
        assert why in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert main(small) == 0
