"""`distlfm store`: what is said, the exit codes, and that an export goes straight into a fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distlfm.cli import main
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.store import STATUSES, Store, StoreSpec, pack

PROJECT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).parent / "distlfm"


def generated(path: Path, count: int = 5, block: int = 2, seed: int = 1, tag: str = "") -> Store:
    """A store of simulated instances with their truth."""
    config = SimulateConfig(mechanism={"kind": "transcription"}, instances=count, seed=seed, truth_points=31)
    instances = simulate_from(config)
    first = instances[0].truth
    assert first is not None
    assert first.force is not None
    names = [
        name if len(values) == 1 else f"{name}[{i}]"
        for name, values in first.parameters.items()
        for i in range(len(values))
    ]
    spec = StoreSpec(
        kind="generate",
        instances=count,
        block=block,
        outputs=instances[0].outputs,
        forces=tuple(f"force{i}" for i in range(len(first.force))),
        parameters=tuple(names),
        parameter_kinds=("mechanism",) * len(names),
        samples=len(instances[0].times),
        steps=len(first.times),
        times=tuple(first.times.tolist()),
        attributes={"mechanism": "transcription", "config_hash": f"hash{seed}"},
    )
    store = Store.create(path, spec)
    for index in range(spec.num_blocks):
        part = [instances[i] for i in store.block_range(index)]
        truths = [one.truth for one in part]
        arrays = pack(spec, part)
        arrays["id"] = np.array([tag + one.id for one in part], dtype=np.object_)
        arrays["status"] = np.full(len(part), STATUSES["generated"])
        arrays["force_mean"] = np.stack([truth.force for truth in truths])  # type: ignore[union-attr, misc]
        arrays["solution_mean"] = np.stack([truth.outputs for truth in truths])  # type: ignore[union-attr, misc]
        arrays["params_mean"] = np.stack(
            [np.concatenate(list(truth.parameters.values())) for truth in truths]  # type: ignore[union-attr]
        )
        store.write_block(index, arrays, [{"id": tag + one.id, "status": "generated"} for one in part])
    return store


def test_ls_shows_every_store_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generated(tmp_path / "one.zarr")
    generated(tmp_path / "run" / "store.zarr", count=3)
    (tmp_path / "one.zarr" / "markers" / "00001.json").unlink()
    assert main(["store", "ls", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "transcription" in shown
    assert "time=31" in shown
    assert main(["store", "ls", str(tmp_path), "--json"]) == 0
    one, run = json.loads(capsys.readouterr().out)
    assert (one["done"], one["failed"], one["instances"]) == (3, 0, 5)
    assert (run["done"], run["kind"], run["config_hash"]) == (3, "generate", "hash1")


def test_ls_tells_of_what_it_cannot_read_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generated(tmp_path / "good.zarr", count=2)
    bad = generated(tmp_path / "bad.zarr", count=2)
    file = bad.path / "zarr.json"
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    assert main(["store", "ls", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "good.zarr" in shown
    assert "has the schema 2, and this version of distlfm reads 1" in shown
    assert main(["store", "ls", str(tmp_path / "nowhere")]) == 2
    assert "There is no store" in capsys.readouterr().err


def test_verify_is_silent_about_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = generated(tmp_path / "s.zarr")
    assert main(["store", "verify", str(store.path)]) == 0
    assert "whole; 3 of 3 blocks, 5 instances" in capsys.readouterr().out
    shard = store.path / "force_mean" / "c.1.0.0"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert main(["store", "verify", str(store.path)]) == 1
    shown = capsys.readouterr().out
    assert "Block 1: the shard of force_mean (force_mean/c.1.0.0) is damaged" in shown
    assert "damaged (1 flaws)" in shown


def test_merge_makes_one_of_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generated(tmp_path / "a.zarr", seed=1)
    generated(tmp_path / "b.zarr", seed=2, count=4)
    command = ["store", "merge", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), "--out", str(tmp_path / "ab.zarr")]
    assert main(command) == 2
    assert "--prefix" in capsys.readouterr().err
    assert main([*command, "--prefix"]) == 0
    assert f"9 instances are in {tmp_path / 'ab.zarr'}" in capsys.readouterr().out
    assert main(["store", "verify", str(tmp_path / "ab.zarr")]) == 0
    assert main([*command, "--prefix"]) == 2
    assert "there already" in capsys.readouterr().err


def test_exports_are_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generated(tmp_path / "s.zarr")
    for form, name in (("npz", "s.npz"), ("well", "s.h5")):
        assert main(["store", "export", str(tmp_path / "s.zarr"), "--format", form, "--out", str(tmp_path / name)]) == 0
        assert f"5 instances are in {tmp_path / name}" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "s.npz")]) == 0
    assert main(["store", "export", str(tmp_path / "s.zarr"), "--format", "csv", "--out", str(tmp_path / "s.csv")]) == 2
    assert "There is no format 'csv'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["ls", "verify", "merge", "export"])
def test_help_shows_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", verb, "--help"]) == 0
    assert f"distlfm store {verb} " in capsys.readouterr().out.split("xample")[1]


@pytest.mark.slow
def test_exported_store_can_be_fitted(tmp_path: Path) -> None:
    generated(tmp_path / "s.zarr", count=2)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(COMMAND), *arguments], capture_output=True, text=True, timeout=280, cwd=PROJECT, env=dict(os.environ)
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    run("store", "export", str(tmp_path / "s.zarr"), "--format", "npz", "--out", str(tmp_path / "s.npz"))
    out = tmp_path / "run"
    shown = run(
        *("fit", "configs/fit/transcription_toy.yaml", "--data", str(tmp_path / "s.npz"), "--out", str(out)),
        *("mechanism.fixed={sensitivity: {output_0: 1.0}}", "inference.restarts=1"),
    )
    assert "sim-000001" in shown
