"""What a fleet will cost, from a probe of a few of its instances."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from distlfm.cli import main
from distlfm.cluster.slurm.script import Resources, bytes_of
from distlfm.data import write_npz
from distlfm.verbs.estimate import EFFICIENCY, START_SECONDS, Estimate, estimate, of_job
from tests.support.fit_toy import make_instances

FOUND = Estimate(10_000, 1000, 20, 8, seconds=1.8, least=1.5, most=2.0, worker_bytes=10**9, store_bytes=10**8)
CONFIG = """
mechanism: {kind: transcription, fixed: {sensitivity: {a: 1.0}}}
inference: {posterior: {stages: [8], draws: 8}, grid_points: 9}
"""


def test_the_work_is_shared_by_cores_and_no_core_without_a_block_helps() -> None:
    assert FOUND.core_hours == pytest.approx(5.0)
    assert FOUND.hours(1, 1, start=0.0) == pytest.approx(5.0)
    assert FOUND.hours(2, 10) == pytest.approx(START_SECONDS / 3600 + 5.0 / 20 / EFFICIENCY)
    assert FOUND.hours(100, 32) == FOUND.hours(1000, 32)
    one_block = replace(FOUND, blocks=1)
    assert one_block.hours(4, 32, start=0.0) == pytest.approx(5.0)


def test_nodes_are_the_fewest_that_end_in_time() -> None:
    nodes = FOUND.nodes(hours=0.05, cores=8)
    assert nodes is not None
    assert FOUND.hours(nodes, 8) <= 0.05 < FOUND.hours(nodes - 1, 8)
    assert replace(FOUND, blocks=1).nodes(hours=4.0) is None


def test_a_job_is_told_what_it_lacks() -> None:
    enough = of_job(FOUND, Resources(nodes=2, cpus=8, time="2:00:00"))
    assert enough == ["this job: about 26 min on 2 nodes of 8 cores; its limit is 2:00:00"]
    short = of_job(FOUND, Resources(nodes=2, cpus=8, time="10", memory="4G"))
    assert "give --time 32" in short[1]
    assert short[2] == "a worker needs 1.0 GB and would have 537 MB: give --memory 10G"
    array = of_job(FOUND, Resources(nodes=1, cpus=1, time="2:00:00", array="64%16"))
    assert array[0].startswith("this job: about 26 min on 16 tasks of 1 core;")


def test_amounts_of_memory_are_read_as_slurm_does() -> None:
    assert [bytes_of(one) for one in ("800", "800M", "2G", "5K")] == [800 << 20, 800 << 20, 2 << 30, 5 << 10]


def test_a_probe_says_what_the_fleet_costs_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "toy.npz", make_instances(6))
    Path("fit.yaml").write_text(CONFIG)
    before = sorted(tmp_path.iterdir())
    assert main(["fit", "fit.yaml", "--data", "toy.npz", "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["instances"], found["nodes"]) == (6, 1)
    assert found["probed"] >= 2
    assert 0 < found["least"] <= found["seconds"] <= found["most"]
    assert found["core_hours"] == pytest.approx(6 * found["seconds"] / 3600)
    assert found["worker_bytes"] > 1e7
    assert estimate("fit.yaml", make_instances(3), {"run.seed": 1}, seconds=0.1).instances == 3
    arguments = ["submit", "fit", "fit.yaml", "--data", "toy.npz", "--out", "run", "--time", "60", "--estimate"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "of 6 instances fitted, none kept" in said
    assert "on 1 node of 8 cores; its limit is 60" in said
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fit", "fit.yaml", "--estimate"], "There are no data to probe."),
        (["fit", "fit.yaml", "--data", "none.csv", "--estimate"], "none.csv"),
        (["fit", "fit.yaml", "--data", "toy.npz", "--json"], "--json is for --estimate."),
        (
            ["submit", "generate", "generate.yaml", "--out", "x.zarr", "--time", "9", "--estimate"],
            "--estimate is for fits on one core each.",
        ),
    ],
)
def test_what_cannot_be_estimated_is_refused(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "toy.npz", make_instances(1))
    Path("fit.yaml").write_text(CONFIG)
    Path("generate.yaml").write_text(
        "verb: generate\nmechanism: {kind: transcription, outputs: [a, b]}\ninstances: 2\n"
    )
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
