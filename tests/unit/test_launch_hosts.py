"""`launch.ray_cluster --hosts`: a fleet over hosts that are reached by ssh, without any Slurm.

The stand-in for ssh runs the command on this machine, in as bare an environment as a login on another one has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet_runs import all_gone, assert_same, command, driving, write_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INSTANCES = 8
SSH = """#!/bin/sh
echo "$@" >> {folder}/ssh.called
[ "$3" = elsewhere ] || exit 255
exec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$4"
"""


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh on the PATH, and a scratch directory with a short name, which is given."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH.format(folder=tmp_path))
    ssh.chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "DISTLFM_"))]:
        monkeypatch.delenv(name)
    scratch = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DISTLFM_SCRATCH", str(scratch))
    yield scratch
    shutil.rmtree(scratch)


def over(hosts: str, words: list[str]) -> list[str]:
    """A verb's command, on a Ray over these hosts."""
    return [sys.executable, "-m", "distlfm.launch.ray_cluster", "--hosts", hosts, "--cpus", "1", *words[3:]]


def test_a_fit_over_a_list_of_hosts_has_the_numbers_of_one_process_and_leaves_nothing(
    surroundings: Path, tmp_path: Path
) -> None:
    write_fleet(tmp_path, INSTANCES)
    with driving(over("localhost,elsewhere", command(tmp_path, tmp_path / "run")), tmp_path / "log") as driver:
        assert driver.wait() == 0, driver.text
        assert all_gone(driver.family)
    assert f"its own logs: {surroundings}/dlfm-" in driver.text
    assert re.search(r"Ray: 2 workers on the cluster at \S+ \(2 nodes, 2 CPUs\)", driver.text), driver.text
    [called] = (tmp_path / "ssh.called").read_text().splitlines()
    assert called.startswith("-o BatchMode=yes elsewhere env -C ")
    assert called.endswith(" -m distlfm.cluster.ray.node"), "its token goes another way"
    assert list(surroundings.iterdir()) == []
    subprocess.run(command(tmp_path, tmp_path / "calm", "--executor", "serial"), check=True, capture_output=True)
    assert_same(tmp_path / "run", tmp_path / "calm", INSTANCES)


def test_a_host_that_cannot_be_reached_is_named_and_nothing_is_begun(surroundings: Path, tmp_path: Path) -> None:
    write_fleet(tmp_path, INSTANCES)
    with driving(over("nowhere,localhost", command(tmp_path, tmp_path / "run")), tmp_path / "log") as driver:
        assert driver.wait() == 1, driver.text
        assert all_gone(driver.family)
    assert "nowhere could not start Ray." in driver.text
    assert not (tmp_path / "run").exists()
    assert list(surroundings.iterdir()) == []
