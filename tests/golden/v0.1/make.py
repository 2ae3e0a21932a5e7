"""Make `files.tar.xz` and `numbers.json` with the code of version 0.1, which was revision adc7737.

    git worktree add /tmp/old adc7737
    PYTHONPATH=/tmp/old python tests/golden/v0.1/make.py

The archive holds what people have from that version: runs of fits (of a series by an equation of their own, half done;
of a field), a store, an operator, a training that was stopped, and the folders of a federation without their secrets.
`numbers.json` is what version 0.1 itself read from these files, and how it went on with them. `@FOLDER@` in texts
stands for the folder that the archive is unpacked in.
"""

# ruff: noqa: I001  (some modules were there in version 0.1 only)

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import distlfm
from distlfm import Operator, Store, load_fit
from distlfm.federated.audit import verify
from distlfm.federated.ledger import Ledger
from distlfm.federated.policy import load_policy

HERE = Path(__file__).resolve().parent
CONFIGS = Path(distlfm.__file__).resolve().parents[1] / "configs"
PLACE = "@FOLDER@"
LEFT_OUT = ("report.html", "lock", "admin.token", "tokens.json", "superexec.secret")
SECRET = (".key",)

EQUATION = '''from distlfm.mechanisms import Mechanism, Parameter, register
from distlfm.mechanisms.priors import LogNormal


@register("infusion")
class Infusion(Mechanism):
    """ẏ = f / V − k y, from an empty start."""

    def parameters(self):
        return [
            Parameter("elimination", ("k",), LogNormal(median=0.3, spread=0.5), positive=True),
            Parameter("volume", ("V",), LogNormal(median=1.0, spread=0.5), positive=True),
        ]

    def vector_field(self, t, y, f, values):
        return f / values["volume"] - values["elimination"] * y

    def initial_state(self, values):
        return 0.0 * values["volume"]
'''
SERIES = """verb: fit
plugins: [infusion]
mechanism: {kind: infusion, fixed: {volume: {V: 1.0}}}
inference: {grid_points: 8, posterior: {stages: [8], draws: 8}}
run: {executor: serial, batch: 1, seed: 3}
"""
FIELD = """verb: fit
mechanism:
  kind: reaction_diffusion
  fixed: {sensitivity: 1.0}
  mesh: {kind: interval, size: 0.25}
inference: {posterior: {stages: [4], draws: 4}, field: {refinements: 0, shown_times: 4, shown_places: 4}}
run: {executor: serial}
"""
SMALLEST = (
    *("operator.layers=1", "operator.width=4", "operator.modes=2", "operator.points=8", "operator.head=4"),
    *("operator.pooled=2", "loop.epochs=6", "loop.batch=16", "loop.precision=float64"),
    *("run.launcher=inline", "run.tensorboard=false"),
)
SITES = ("north", "south", "west")


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="version-0.1-") as scratch:
        os.chdir(scratch)
        sys.path.insert(0, scratch)
        make()
        pack(Path(scratch), HERE / "files.tar.xz")
        (HERE / "numbers.json").write_text(json.dumps(numbers(), indent=1) + "\n")


def make() -> None:
    """All files, in the working directory."""
    Path("infusion.py").write_text(EQUATION)
    Path("series.yaml").write_text(SERIES)
    Path("field.yaml").write_text(FIELD)
    options = ("points=8", "truth_points=8", "mechanism.outputs=[blood]", "mechanism.fixed.volume.V=1")
    run("simulate", "infusion", "--plugin", "infusion", "--instances", 3, "--out", "patients.npz", *options)
    run("fit", "series.yaml", "--data", "patients.npz", "--out", "series", "--part", "1/2")
    options = ("stop=1", "points=5", "places=5", "mechanism.fixed.sensitivity=1", "mechanism.mesh.size=0.25")
    run("simulate", "reaction_diffusion", "--instances", 1, "--out", "field.npz", *options)
    run("fit", "field.yaml", "--data", "field.npz", "--out", "field")

    options = ("points=8", "num_outputs=1", "run.executor=serial", "mechanism.fixed.sensitivity.output_0=1")
    run("generate", CONFIGS / "generate/transcription.yaml", "--instances", 60, "--out", "genes.zarr", *options)
    train = ("train", CONFIGS / "train/transcription.yaml", "--data", "genes.zarr")
    run(*train, "--out", "operator", *SMALLEST)
    shutil.rmtree("operator/checkpoints")
    stopped(*train, "--out", "training", *SMALLEST)

    provision = ("federated", "provision")
    run(*provision, "link", "link", "--sites", ",".join((*SITES, "east")), "--host", "127.0.0.1", "--port", 8443)
    for site in SITES:
        run(*provision, "site", f"link/kits/{site}.kit.json", f"sites/{site}")
    run(*provision, "enrol", "link", *(f"sites/{site}/{site}.public.json" for site in SITES))
    run(*provision, "pin", "sites/north", "link/peers.json", "--sites", ",".join(SITES))
    Ledger(Path("sites/north/ledger.jsonl"), 4.0, 1e-5).charge("round 1", noise=3.85, rate=0.5, steps=20, run="one")
    for folder in ("sites/south", "sites/west", "link/kits/north.kit.json", "link/kits/south.kit.json"):
        shutil.rmtree(folder) if Path(folder).is_dir() else Path(folder).unlink()


def numbers() -> dict[str, Any]:
    """What version 0.1 reads, and how it goes on, after the files were packed."""
    found: dict[str, Any] = {"genes.zarr": arrays("genes.zarr", 3), "field": arrays("field/store.zarr", 1)}
    (field,) = Path("field/fits").iterdir()
    found["field archive"] = load_fit(field).grid.force.mean.ravel().tolist()
    import infusion  # noqa: F401  (registers its equation)

    series = load_fit(sorted(Path("series/fits").iterdir())[0])
    found["series archive"] = series.predict([5.0, 12.0]).outputs.mean.ravel().tolist()
    genes = Store.open("genes.zarr").instances(0, 2)
    found["operator"] = [one.mean.ravel().tolist() for one in Operator.load("operator/operator.pt")(genes)]
    run("resume", "series")
    found["series"] = arrays("series/store.zarr", 3)
    run("resume", "training")
    lines = [json.loads(line) for line in Path("training/metrics.jsonl").read_text().splitlines()]
    found["training"] = [line["validation_loss"] for line in lines if line["event"] == "epoch"]
    found["policy"] = load_policy(Path("sites/north")).model_dump(
        mode="json", exclude={"signing_key", "state", "audit"}
    )
    found["audit"] = verify(Path("sites/north/audit.jsonl")).head
    found["spent"] = Ledger(Path("sites/north/ledger.jsonl"), 4.0, 1e-5).spent
    return found


def arrays(store: str, count: int) -> dict[str, list[float]]:
    names = ("params_mean", "force_mean", "solution_mean")
    return {name: Store.open(store).read(name, 0, count).ravel().tolist() for name in names}


def run(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "distlfm", *map(str, arguments)], check=True)


def stopped(*arguments: object) -> None:
    """A training that a signal ends after its first epoch."""
    with subprocess.Popen([sys.executable, "-m", "distlfm", *map(str, arguments)]) as process:
        log = Path("training/metrics.jsonl")
        while not log.exists() or '"epoch"' not in log.read_text():
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
    if Path("training/operator.pt").exists():
        raise RuntimeError("The training was over before it was stopped: try again.")


def pack(folder: Path, target: Path) -> None:
    """Everything but pages, locks and secrets, without the names of this machine's folders."""
    with lzma.open(target, "wb", preset=9) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.name in LEFT_OUT or path.suffix in SECRET or "__pycache__" in path.parts:
                continue
            content = path.read_bytes().replace(str(folder).encode(), PLACE.encode())
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))


main()
