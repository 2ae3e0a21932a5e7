"""Runs whose disk is full or read-only, or whose instances cannot be fitted: a sentence, and nothing is damaged."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.data import read, write_npz
from distlfm.store import Store
from distlfm.store.inspection import verify
from tests.support.fleet_runs import BATCH, INSTANCES, assert_same, command, write_fleet

pytestmark = pytest.mark.slow

mounts = pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can mount")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def serial(folder: Path, out: Path) -> list[str]:
    return command(folder, out, "--executor", "serial")[3:]


@mounts
def test_a_full_disk_stops_the_run_with_a_sentence_and_it_goes_on_when_there_is_space(
    fleet: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small / "run"
    (small / "ballast").write_bytes(bytes(150_000))
    for executor in ("ray", "serial"):  # what is full for the one is so for the other
        assert main(command(fleet, out, "--executor", executor)[3:]) == 1
        said = capsys.readouterr().err
        assert "No space left" in said
        assert "same command" in said
        assert "Traceback" not in said
        store = Store.open(out)
        assert verify(store).flaws == []
        assert 0 < len(store.missing()) < store.spec.num_blocks, "the disk was too large or too small for this test"
    subprocess.run(["mount", "-o", "remount,size=20m", str(small)], check=True)
    assert main(["-q", *serial(fleet, out)]) == 0
    assert_same(out, fleet / "calm")


@mounts
def test_a_directory_that_cannot_be_written_is_refused_before_any_work(
    fleet: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    assert main(serial(fleet, small / "run")) == 2
    assert "Read-only file system" in capsys.readouterr().err


def test_a_store_of_another_schema_is_refused_and_left_as_it_is(fleet: Path, tmp_path: Path) -> None:
    write_fleet(tmp_path, 4)
    assert main(["-q", *serial(tmp_path, tmp_path / "run")]) == 0
    metadata = tmp_path / "run" / "store.zarr" / "zarr.json"
    content = json.loads(metadata.read_text())
    content["attributes"]["schema"] += 1
    metadata.write_text(json.dumps(content))
    before = metadata.read_bytes()
    assert main(["-q", *serial(tmp_path, tmp_path / "run")]) == 2
    assert main(["-q", "status", str(tmp_path / "run")]) == 2
    assert metadata.read_bytes() == before


def write_counts(fleet: Path, folder: Path, bad: int) -> str:
    """A small fleet of counts, but for one instance, whose id is given; quick to fit."""
    instances = read(fleet / "data.npz").instances[: 2 * BATCH]
    counts = [replace(one, values=np.rint(10 + 3 * one.values).clip(0)) for one in instances]
    counts[bad] = replace(counts[bad], values=counts[bad].values + 0.5)
    write_npz(folder / "data.npz", counts)
    content = json.loads((fleet / "config.yaml").read_text())
    content["likelihood"] = {"kind": "poisson"}
    content["inference"] = {"method": "preestimate"}
    (folder / "config.yaml").write_text(json.dumps(content))
    return counts[bad].id


@pytest.mark.parametrize("executor", ["serial", "ray"])
def test_an_instance_that_cannot_be_fitted_is_set_aside_alone_with_its_reason(
    fleet: Path, tmp_path: Path, executor: str
) -> None:
    """Counts are asked for, and one instance has none: its block is tried again and split until it is alone."""
    bad, out = write_counts(fleet, tmp_path, 2), tmp_path / "run"
    assert main(["-q", *command(tmp_path, out, "--executor", executor)[3:]]) == 1
    summary = json.loads((out / "summary.json").read_text())
    assert [one["id"] for one in summary["failures"]] == [bad]
    assert "which is not a count" in summary["failures"][0]["reason"]
    assert sum(row["output_q2"] is not None for row in summary["instances"]) == 2 * BATCH - 1
    assert "which is not a count" in (out / "report.html").read_text()
    assert len(Store.open(out).read("id")) == 2 * BATCH <= INSTANCES


def test_a_bad_instance_with_a_block_of_its_own_ends_no_run_though_it_is_the_first_or_the_last_left(
    fleet: Path, tmp_path: Path
) -> None:
    bad, out = write_counts(fleet, tmp_path, 0), tmp_path / "run"
    again = ["-q", *serial(tmp_path, out), "run.batch=1"]
    for _ in range(2):
        assert main(again) == 1
        summary = json.loads((out / "summary.json").read_text())
        assert [one["id"] for one in summary["failures"]] == [bad]
        assert Store.open(out).missing() == []
        (out / "store.zarr" / "markers" / "00000.json").unlink()
