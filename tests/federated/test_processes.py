"""Processes of a role are kept running, and none outlives its supervisor."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distlfm.federated.link.processes import environment
from distlfm.federated.setup.homes import Home
from tests.support.fleet_runs import alive, all_gone
from tests.support.importing import import_environment
from tests.support.real_sites import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "state").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.supervised_program", "supervise", str(tmp_path)],
        env=import_environment(),
        stdout=subprocess.DEVNULL,
    )
    yield process
    process.kill()
    process.wait()


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_what_ends_is_started_again_and_what_lasts_is_left_alone(
    supervisor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    wait_until(lambda: len(pids(tmp_path / "end")) >= 2)
    assert len(pids(tmp_path / "last")) == 1
    told = json.loads(Home(tmp_path).status.read_text())["processes"]
    assert (told["end"]["last_exit"], told["last"]["pid"]) == (7, pids(tmp_path / "last")[0])
    assert stat.S_IMODE((tmp_path / "end.log").stat().st_mode) == 0o600


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_supervisor(
    how: signal.Signals, supervisor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    wait_until(lambda: bool(pids(tmp_path / "last")))
    [lasting] = pids(tmp_path / "last")
    assert alive(lasting)
    supervisor.send_signal(how)
    supervisor.wait(20)
    assert all_gone({lasting})


def test_a_processs_surroundings_are_quiet_and_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLWR_OIDC_ENABLED", "FLWR_INTERNAL_GRPC_CONTROL_API", "OTEL_EXPORTER_OTLP_ENDPOINT", "NO_PROXY"):
        monkeypatch.setenv(name, "1")
    found = environment(Home(tmp_path), EXTRA="x")
    flower = {name: value for name, value in found.items() if name.startswith(("FLWR_", "OTEL_"))}
    assert flower.keys() == {
        "FLWR_HOME",
        "FLWR_TELEMETRY_ENABLED",
        "FLWR_DISABLE_UPDATE_CHECK",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL",
    }
    assert flower["FLWR_HOME"] == str(Home(tmp_path).flower)
    assert (flower["FLWR_TELEMETRY_ENABLED"], found["NO_PROXY"]) == ("0", "1,127.0.0.1,localhost,::1")
    assert found["EXTRA"] == "x"
