"""The first mistakes of somebody new, with every verb: one short sentence with the fix, the right exit code.

Told elsewhere: what the operating system refuses (test_first_refusals), a port in use (test_serve_guard), no Slurm
(test_submit), unknown keys and verbs (test_cli), and data that are damaged (test_data_bad_input, test_data_damage).
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from distlfm.cli import main
from distlfm.cli.fit import tell
from distlfm.inference.findings.scores import Tally
from distlfm.lfo.schema import SCHEMA
from distlfm.optional import install_line
from distlfm.runs.settings import FitConfig
from distlfm.runtime.reporting import reporter_for
from distlfm.store import Store
from distlfm.verbs.fit import FitRun
from tests.support.cli_verbs import verbs as all_verbs
from tests.support.query_factories import genes
from tests.support.result_factories import make_result, make_rows
from tests.support.store_factories import make_spec

PROJECT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NO_CONFIG = "There is no config file none.yaml. Shipped ones are in configs/; give the path of one."
NO_STORE = "There is no store none. Give the path of a run, or of a store."
EMPTY_STORE = "empty is not a store: it has no zarr.json, and no store.zarr. Give the path of a run, or of a store."
NO_CHECKPOINT = "There is no checkpoint none.pt. `distlfm train` makes one."
NO_OPERATOR = "empty has no operator.pt. Give a checkpoint, or the folder of a finished training run."
NO_RUN = "is not a run: it has no config.yaml. Give the --out folder of `distlfm fit`, `train` or `tune`, or the store"
NO_DATA = "There is no such file or folder."
EMPTY_DATA = "The folder has no file that can be read (0 other entries). Put files in it that end in one of: .csv"
NO_LINK = "is not a coordinator's folder: it has no link.yaml. Make one: distlfm federated provision link FOLDER"
NO_SITE = "Make one from the coordinator's kit: distlfm federated provision site KIT FOLDER"
NO_COLUMN = "good.csv, column 'hours': There is no column 'hours'. Set columns.time. The file has: time, output, value."
HOURS = ("data.columns.time=hours", "data.columns.values=[value]")
OLD = f"old.pt has version {SCHEMA - 1} of the checkpoint's form, and this distlfm reads {SCHEMA}. Use the distlfm that"
OLD_STORE = "older version"
DENIED = "Choose another --out directory."

MISSING: dict[str, str] = {
    "generate none.yaml": NO_CONFIG,
    "fit none.yaml": NO_CONFIG,
    "fit fit.yaml --data none.csv": NO_DATA,
    "train none.yaml": NO_CONFIG,
    "train train.yaml --data none --out t": "There is no store",
    "tune none.yaml": NO_CONFIG,
    "tune tune.yaml --data none --out t": "There is no store",
    "evaluate none.pt none": NO_CHECKPOINT,
    "query none.pt good.csv": NO_CHECKPOINT,
    "serve none.pt --port 0": NO_CHECKPOINT,
    "resume none": f"none {NO_RUN}",
    "status none": NO_STORE,
    "submit fit none.yaml --time 10": NO_CONFIG,
    "data check none.csv": NO_DATA,
    "config show none.yaml": NO_CONFIG,
    "config equations mine --plugin none": "The plugin 'none' cannot be imported",
    "store ls none": NO_STORE,
    "store verify none": NO_STORE,
    "store merge none other --out m.zarr": NO_STORE,
    "store export none --out x.npz --format npz": NO_STORE,
    "operator show none.pt": NO_CHECKPOINT,
    "operator export none.pt --out x": NO_CHECKPOINT,
    "federated link none": f"none {NO_LINK}",
    "federated prepare none": f"none is not a site's folder: it has no site.yaml. {NO_SITE}",
    "federated site none": f"none is not a site's folder: it has no node.yaml. {NO_SITE}",
    "federated run none.yaml": NO_CONFIG,
    "federated query size": "Neither a site nor a programme is given. Give --site FOLDER, or --programme CONFIG and",
    "federated status none": "none is neither a coordinator's nor a site's folder. Make one: distlfm",
    "federated simulate none.yaml": NO_CONFIG,
    "federated audit none": "Cannot read the audit log none: No such file or directory. Give the path of one.",
    "federated provision site none.kit here": "Give the file that the other side sent.",
    "federated provision local here --operator none.pt": NO_CHECKPOINT,
    "federated provision enrol none keys": f"none {NO_LINK}",
    "federated provision pin none keys": "Give the file that the other side sent.",
    "federated provision revoke none north": f"none {NO_LINK}",
    "federated provision kit none north": f"none {NO_LINK}",
    "federated provision renew none": f"none {NO_LINK}",
    "federated provision token none anna": f"none {NO_LINK}",
}
NOTHING_TO_MISS = {"doctor", "simulate", "demo", "data ls", "config schema", "federated provision link"} | {
    "federated drill"
}
"""Verbs that are given no file."""

EMPTY: dict[str, str] = {
    "fit empty": "empty is a folder. Give the path of a config file in it.",
    "fit empty.yaml": "empty.yaml holds no settings. A config is a mapping of keys to values, such as `verb: fit`.",
    "fit fit.yaml --data empty": EMPTY_DATA,
    "fit fit.yaml --data empty.csv": "empty.csv: The file is empty. Give a table with a header line and rows.",
    "train train.yaml --data empty --out t": EMPTY_STORE,
    "tune tune.yaml --data empty --out t": EMPTY_STORE,
    "evaluate empty none": NO_OPERATOR,
    "query empty good.csv": NO_OPERATOR,
    "serve empty --port 0": NO_OPERATOR,
    "resume empty": f"empty {NO_RUN}",
    "status empty": EMPTY_STORE,
    "data check empty": EMPTY_DATA,
    "config show empty": "empty is a folder. Give the path of a config file in it.",
    "store ls empty": EMPTY_STORE,
    "store verify empty": EMPTY_STORE,
    "store merge empty empty --out m.zarr": EMPTY_STORE,
    "store export empty --out x.npz --format npz": EMPTY_STORE,
    "operator show empty": NO_OPERATOR,
    "federated link empty": f"empty {NO_LINK}",
    "federated prepare empty": f"empty is not a site's folder: it has no site.yaml. {NO_SITE}",
    "federated site empty": f"empty is not a site's folder: it has no node.yaml. {NO_SITE}",
    "federated provision token empty anna": f"empty {NO_LINK}",
}
WRONG: dict[str, str] = {
    f"fit fit.yaml --data good.csv {' '.join(HOURS)}": NO_COLUMN,
    "data check good.csv time=hours values=[value]": NO_COLUMN,
    f"query {{operator}} good.csv {' '.join(HOURS)}": NO_COLUMN,
    f"serve {{operator}} --port 0 --data good.csv {' '.join(HOURS)}": NO_COLUMN,
    f"submit fit fit.yaml --data good.csv --time 10 --out f {' '.join(HOURS)}": NO_COLUMN,
    "fit train.yaml --data good.csv": "'verb' should be 'fit', not 'train'. Give a config whose verb is fit.",
    "train fit.yaml --out t": "fit.yaml: 'verb' should be 'train', not 'fit'. Give a config whose verb is train.",
    "federated simulate fit.yaml --out s": "'verb' should be 'federated', not 'fit'. Give a config whose verb",
    "query good.csv good.csv": "good.csv is not a checkpoint, or a damaged one. Give one of `distlfm train`.",
    "fit good.pt": "Cannot read the config file good.pt: it is not text. Give the path of one.",
    "train train.yaml --data good.csv --out t": "good.csv is not a store",
    "simulate transcription --out toy.csv": "toy.csv is not an .npz file. Give --out a name that ends in .npz.",
}
AGED: dict[str, str] = {
    "query old.pt good.csv": OLD,
    "evaluate old.pt old.zarr": OLD,
    "serve old.pt --port 0": OLD,
    "operator show old.pt": OLD,
    "operator export old.pt --out x": OLD,
    "train train.yaml --data other --start old.pt --out t": OLD,
    "federated provision local f --operator old.pt": OLD,
    "status old.zarr": OLD_STORE,
    "resume old.zarr": OLD_STORE,
    "store verify old.zarr": OLD_STORE,
    "store export old.zarr --out x.npz --format npz": OLD_STORE,
    "train train.yaml --data old.zarr --out t": OLD_STORE,
    "tune tune.yaml --data old.zarr --out t": OLD_STORE,
    "fit fit.yaml --data old.zarr --out f": OLD_STORE,
    "store merge old.zarr old.zarr --out m.zarr": OLD_STORE,
}
A_FILE_IN_THE_WAY: dict[str, str] = {
    "fit fit.yaml --data good.csv --out good.csv": f"Cannot write to good.csv: File exists. {DENIED}",
    "generate generate.yaml --out good.csv": "good.csv is not empty. Choose a new place for the store.",
    "simulate transcription --out good.csv/toy.npz": "Cannot write to good.csv/toy.npz: ",
    "demo --out good.csv": f"Cannot write to good.csv: File exists. {DENIED}",
    "federated provision local good.csv": "Cannot make the folder good.csv/link: Not a directory. Choose",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each: good, empty, of another verb, and of an older version."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "empty").mkdir()
    (folder / "empty.yaml").touch()
    (folder / "empty.csv").touch()
    (folder / "fit.yaml").write_text("verb: fit\nmechanism: {kind: transcription}\n")
    (folder / "generate.yaml").write_text(
        "verb: generate\nmechanism: {kind: transcription}\ninstances: 2\nnum_outputs: 1\nrun: {executor: serial}\n"
    )
    (folder / "train.yaml").write_text("verb: train\n")
    space = "{optimiser.lr: {kind: uniform, low: 0.1, high: 0.2}}"
    (folder / "tune.yaml").write_text(f"verb: tune\ntrain: {{}}\nspace: {space}\n")
    rows = [f"{t},output_{p},{1 + t / 10}" for p in range(2) for t in range(8)]
    (folder / "good.csv").write_text("\n".join(["time,output,value", *rows]))
    torch.save({"format": "distlfm operator", "version": SCHEMA - 1}, folder / "old.pt")
    (folder / "good.pt").write_bytes(bytes(range(256)))
    Store.create(folder / "old.zarr", make_spec())
    for path in (folder / "old.zarr").rglob("zarr.json"):
        content = json.loads(path.read_text())
        if "schema" in content.get("attributes", {}):
            content["attributes"]["schema"] -= 1
            path.write_text(json.dumps(content))
    return folder


@pytest.fixture(autouse=True)
def _there(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that folder."""
    monkeypatch.chdir(files)


def told(call: str | list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """What a call that fails says: one line, without a traceback."""
    assert main(call.split() if isinstance(call, str) else call) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distlfm: ")
    assert line.endswith((".", "?", ")")) or "distlfm" in line.rsplit(":", 1)[-1], "a whole sentence, or a command"
    assert "Errno" not in line
    assert "fault of distlfm" not in line
    return line


@pytest.mark.parametrize("call", MISSING)
def test_a_file_that_is_not_there(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert MISSING[call] in told(call, 2, capsys)


def test_every_verb_is_tried_with_a_file_that_is_not_there() -> None:
    verbs = {" ".join(command) for command in all_verbs()}
    tried = {verb for verb in verbs if any(call.startswith(f"{verb} ") for call in MISSING)}
    assert verbs - tried == NOTHING_TO_MISS


@pytest.mark.parametrize("call", EMPTY)
def test_a_folder_or_file_with_nothing_in_it(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert EMPTY[call] in told(call, 2, capsys)


@pytest.mark.parametrize("call", WRONG)
def test_a_file_or_column_of_another_kind(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert WRONG[call] in told(call.format(operator=genes()[0]), 2, capsys)


@pytest.mark.parametrize("call", AGED)
def test_a_checkpoint_or_store_of_an_older_version(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert AGED[call] in told(call, 2, capsys)


def test_a_store_of_an_older_version_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "ls", "old.zarr"]) == 1
    assert "warning: old.zarr has the schema 0" in capsys.readouterr().out


@pytest.mark.parametrize("call", A_FILE_IN_THE_WAY)
def test_results_that_would_go_where_a_file_is(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert A_FILE_IN_THE_WAY[call] in told(call, 2, capsys)


@pytest.mark.parametrize("call", ["fit none.yaml", "query old.pt good.csv", "federated site empty"])
def test_debug_shows_where_it_was(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", *call.split()]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


# ---- a disk that is full, also where nobody can mount one ------------------------------------------------------------


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes files whose path holds some text refuse to be opened, for reading or for writing."""
    real = builtins.open

    def refuse(text: str, number: int, *, writing: bool) -> None:
        def fake(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if text in str(file) and writing == any(letter in mode for letter in "wxa+"):
                raise OSError(number, os.strerror(number), str(file))
            return real(file, mode, *rest, **more)

        monkeypatch.setattr(builtins, "open", fake)
        monkeypatch.setattr(io, "open", fake)

    return refuse


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("simulate transcription --out full/toy.npz", 2),
        ("generate generate.yaml --out full.zarr", 1),
        ("federated provision local full", 1),
    ],
)
def test_a_disk_that_is_full(call: str, code: int, refusing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    refusing("full", errno.ENOSPC, writing=True)
    assert "No space left on device" in told(call, code, capsys)


# ---- parts that are not installed ------------------------------------------------------------------------------------


ABSENT = [
    ("ray", "fit fit.yaml --data good.csv --out absent --executor ray", "ray"),
    ("flwr", "federated status empty", "federated"),
    ("flwr", "federated simulate fit.yaml --out s", "federated"),
    ("cryptography", "federated status empty", "federated"),
    ("uvicorn", "serve old.pt --port 0", "serve"),
    ("starlette", "serve old.pt --port 0", "serve"),
    ("h5py", "store export {store} --format well --out x.h5", "export"),
    ("optuna", "tune tune.yaml --data {store} --out u", "ray"),
    ("tensorboardX", "train train.yaml --data {store} --out unlogged run.tensorboard=true", "train"),
]
"""A module, a verb that needs it, and the extra that brings it."""


@pytest.mark.parametrize(("module", "call", "extra"), ABSENT)
def test_a_part_that_is_not_installed(
    module: str, call: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    call = call.format(store=genes()[1])
    assert told(call, 1, capsys).endswith(f'{module} is not installed. Install it with: pip install "distlfm[{extra}]"')


def test_every_extra_is_tried_when_it_is_missing() -> None:
    (everything,) = EXTRAS["full"]
    extras = everything.removeprefix("distlfm[").removesuffix("]").split(",")
    assert {extra for _, _, extra in ABSENT} | {"fem"} == set(extras)


def test_without_fenics_an_equation_in_space_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dolfin.py").write_text("raise ModuleNotFoundError('No module named dolfin', name='dolfin')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PROJECT}")
    line = told("simulate reaction_diffusion --out field.npz", 1, capsys)
    assert line == f"distlfm: dolfin is not installed. Install it with: {install_line('fem')}"


# ---- values in another unit ------------------------------------------------------------------------------------------


def test_values_in_another_unit_are_unlike_what_an_operator_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{t / 2},output_{p},{1000 * (1 + t / 10)}" for p in range(2) for t in range(21)]
    (tmp_path / "big.csv").write_text("\n".join(["time,output,value", *rows]))
    assert main(["query", str(genes()[0]), str(tmp_path / "big.csv")]) == 0
    shown = capsys.readouterr().out
    assert "warning: big is unlike the data that the operator was trained on" in shown
    assert "Do not rely on this answer; fit the instance instead." in shown


def test_fits_that_are_worse_than_a_constant_ask_for_the_units() -> None:
    rows = make_rows([make_result(name, num_outputs=1) for name in ("good", "off", "further")])
    rows[1]["output_q2"], rows[2]["output_q2"] = -0.5, -13000.0
    run = FitRun(FitConfig(mechanism={"kind": "transcription"}), tally=Tally(rows), held_rows=rows)
    said = io.StringIO()
    assert tell(run, reporter_for(said)) == 0
    warned = [line for line in said.getvalue().splitlines() if line.startswith("warning: ")]
    assert warned == [
        "warning: 2 of 3 fits describe their data worse than a constant does (output_q2 below 0): check the units of "
        "times and values against the priors of the config, and whether it leaves enough observations for the fit "
        "(data.stride, data.fraction)"
    ]
    assert said.getvalue().endswith("nothing was written: --out FOLDER keeps the results, with a report\n")


def test_scores_that_nobody_can_know_are_not_listed() -> None:
    rows = make_rows([make_result("mine", num_outputs=1, truth=False)], truth=False)
    run = FitRun(FitConfig(mechanism={"kind": "transcription"}), tally=Tally(rows), held_rows=rows)
    said = io.StringIO()
    assert tell(run, reporter_for(said)) == 0
    assert said.getvalue().splitlines()[0].split() == ["instance", "status", "output_q2", "seconds"]
