"""An ordinary user's folder, with something for every verb to work on."""

from __future__ import annotations

import builtins
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distlfm.cli import main
from distlfm.store.metadata import FOLDER as MARKERS
from tests.support.query_factories import genes

NOBODY = 65534
"""An ordinary user: nothing refuses root."""

SMALL = "{layers: 1, width: 4, modes: 2, head: 4, pooled: 2, regressions: 0}"
SPACE = "{optimiser.lr: {kind: choice, values: [0.01]}}"
CONFIGS = {
    "fit": "verb: fit\nmechanism: {kind: transcription}\nrun: {executor: serial}\n",
    "generate": "verb: generate\nmechanism: {kind: transcription}\ninstances: 8\npoints: 11\nnum_outputs: 2\n"
    "run: {executor: serial, block: 2}\n",
    "train": f"verb: train\ndata: {{stores: [genes.zarr]}}\noperator: {SMALL}\nloop: {{epochs: 1}}\n",
    "tune": f"verb: tune\ntrain: {{data: {{stores: [genes.zarr]}}, operator: {SMALL}}}\nspace: {SPACE}\n",
    "programme": "verb: programme\nrounds: 1\noperator: operator/operator.pt\n",
    "job": "verb: generate\nmechanism: {kind: transcription}\ninstances: 8\n",
}
SITE = "name: north\nfit: {verb: fit, data: {path: good.csv}, mechanism: {kind: transcription}}\n"
FILLED = "fed/sites/north"
"""A site that says where its patients are."""


def users_folder() -> Path:
    """A folder that others can enter, as those of pytest cannot be. Whoever asks for it removes it."""
    fast = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="distlfm-refusals-", dir=fast if fast.is_dir() else None))
    folder.chmod(0o755)
    return folder


def fill(folder: Path) -> None:
    """Good configs, data, stores, an operator and a federation. The current directory has to be the folder."""
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text)
    rows = [f"{t / 2},output_{p},{1 + t / 10}" for p in range(2) for t in range(21)]
    (folder / "good.csv").write_text("\n".join(["time,output,value", *rows]))
    (folder / "infusion.py").write_text("")
    shutil.copytree(Path(__file__).resolve().parents[2] / "configs" / "federated", folder / "federated")
    (folder / "simulate.yaml").write_text("verb: simulate\nmechanism: {kind: transcription}\n")
    checkpoint, store = genes()
    (folder / "operator").mkdir()
    shutil.copyfile(checkpoint, folder / "operator" / "operator.pt")
    shutil.copytree(store, folder / "genes.zarr")
    assert main(["-q", "generate", "generate.yaml", "--out", "few.zarr"]) == 0
    shutil.copytree(folder / "few.zarr", folder / "stopped.zarr")
    (folder / "stopped.zarr" / MARKERS / "00001.json").unlink()
    sites = ("north", "south", "west")
    given = ["--sites", ",".join(sites), "--operator", "operator/operator.pt"]
    assert main(["-q", "federated", "provision", "local", "fed", *given]) == 0
    shutil.copytree(folder / "fed", folder / "plain")
    (folder / FILLED / "site.yaml").write_text(SITE.replace("good.csv", str(folder / "good.csv")))
    (folder / "bin").mkdir()
    (folder / "bin" / "sbatch").write_text("#!/bin/sh\necho 17\n")
    (folder / "bin" / "sbatch").chmod(0o755)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Let this process be one that the operating system refuses things to; it is root again afterwards.

    What it still imports is read as root: clone and environment may lie in a folder that only root can enter.
    """
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, 0)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        with _imports_as_root():
            yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(groups)


@contextmanager
def _imports_as_root() -> Iterator[None]:
    statement, function = builtins.__import__, importlib.import_module
    builtins.__import__, importlib.import_module = _as_root(statement), _as_root(function)
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = statement, function


def _as_root(importing: Callable[..., Any]) -> Callable[..., Any]:
    def imported(*arguments: Any, **named: Any) -> Any:
        user = os.geteuid()
        os.seteuid(0)
        try:
            return importing(*arguments, **named)
        finally:
            os.seteuid(user)

    return imported
