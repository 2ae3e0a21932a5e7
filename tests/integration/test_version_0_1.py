"""What version 0.1 left on disks opens today and gives the numbers that it gave then; `make.py` beside it made it."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm import Operator, Store, fit, load_fit
from distlfm.config import load
from distlfm.errors import UsageError
from distlfm.federated.audit import verify
from distlfm.federated.refused import Refused
from distlfm.federated.setup import provision
from distlfm.federated.setup.enrolment import enrol, pin, read_roster
from distlfm.federated.setup.homes import LinkHome, SiteHome
from distlfm.federated.site import policy as policies
from distlfm.federated.site.ledger import Ledger
from distlfm.federated.site.policy import check_local, check_package, load_policy
from distlfm.mechanisms import REGISTRY
from distlfm.mechanisms.build import import_plugins
from distlfm.runs.settings import FitConfig
from tests.support.importing import ROOT, import_environment

GOLDEN = ROOT / "tests" / "golden" / "v0.1"
NUMBERS: dict[str, Any] = json.loads((GOLDEN / "numbers.json").read_text())
TEXTS = (".yaml", ".json", ".jsonl")


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    """The files of version 0.1, as if they had been written to this folder."""
    with lzma.open(GOLDEN / "files.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        archive.extractall(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.suffix in TEXTS:
            path.write_text(path.read_text().replace("@FOLDER@", str(tmp_path)))
    yield tmp_path
    REGISTRY.pop("infusion", None)
    sys.modules.pop("infusion", None)


def distlfm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "distlfm", *map(str, arguments)]
    return subprocess.run(command, env=import_environment(), capture_output=True, text=True, timeout=200)


def same(found: Any, known: Any, relative: float = 1e-9) -> None:
    """To a share of the largest number: files are read to the bit, and another processor may round otherwise."""
    assert np.shape(found) == np.shape(known)
    np.testing.assert_allclose(found, known, rtol=0, atol=relative * np.nanmax(np.abs(known)))


def same_store(path: Path, known: dict[str, list[float]], relative: float = 0.0) -> None:
    store = Store.open(path)
    assert store.missing() == []
    for name, numbers in known.items():
        same(store.read(name, 0, min(3, store.spec.instances)).ravel(), numbers, relative)


def test_the_files_are_small_and_hold_no_secret(old: Path) -> None:
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) <= 300_000
    assert not [path for path in old.rglob("*") if path.suffix in (".key", ".token", ".secret")]
    assert not [path for path in old.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


def test_stores_are_read(old: Path) -> None:
    same_store(old / "genes.zarr", NUMBERS["genes.zarr"])
    same_store(old / "field" / "store.zarr", NUMBERS["field"])


@pytest.mark.slow
def test_the_archive_of_a_field_is_read(old: Path) -> None:
    (archive,) = (old / "field" / "fits").iterdir()
    same(load_fit(archive).grid.force.mean.ravel(), NUMBERS["field archive"])


def test_an_archive_with_an_equation_of_its_own_predicts(old: Path) -> None:
    archive = sorted((old / "series" / "fits").iterdir())[0]
    with pytest.raises(UsageError, match="infusion"):
        load_fit(archive)
    import_plugins([str(old / "infusion.py")])
    same(load_fit(archive).predict([5.0, 12.0]).outputs.mean.ravel(), NUMBERS["series archive"], 1e-6)


def test_an_equation_as_the_documents_taught_it_is_fitted(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(old)
    run = fit(load(FitConfig, Path("series.yaml")), data="patients.npz")
    assert [one.status for one in run.results] == ["converged"] * 3
    known = np.reshape(NUMBERS["series"]["solution_mean"], (3, -1))
    for one, numbers in list(zip(run.results, known, strict=True))[1:]:
        same(one.outputs.mean.ravel(), numbers, 1e-4)
    # Weights of the first one's draws are not to be trusted, so more are drawn than version 0.1 had.
    assert (
        np.abs(run.results[0].outputs.mean.ravel() - known[0]) < 0.7 * run.results[0].outputs.sd.ravel() + 1e-9
    ).all()


def test_an_operator_answers(old: Path) -> None:
    operator = Operator.load(old / "operator" / "operator.pt")
    answers = operator(Store.open(old / "genes.zarr").instances(0, 2))
    same([one.mean.ravel() for one in answers], NUMBERS["operator"], 1e-5)


@pytest.mark.slow
def test_a_fit_goes_on(old: Path) -> None:
    """Blocks of version 0.1 stay as they are, those that are missing are fitted now."""
    store = Store.open(old / "series" / "store.zarr")
    before = {path: path.read_bytes() for path in store.block_files(0)}
    assert store.missing() == [1]
    assert "2/3 instances done" in distlfm("status", old / "series").stdout
    done = distlfm("resume", old / "series")
    assert done.returncode == 0, done.stderr
    assert "2 of 3 instances are there already" in done.stdout + done.stderr
    same_store(old / "series" / "store.zarr", NUMBERS["series"], 1e-4)
    assert {path: path.read_bytes() for path in before} == before
    assert distlfm("store", "verify", old / "series" / "store.zarr").returncode == 0


@pytest.mark.slow
def test_a_training_goes_on(old: Path) -> None:
    done = distlfm("resume", old / "training")
    assert done.returncode == 0, done.stderr
    assert "4 of 18 steps are done already" in done.stdout + done.stderr
    lines = [json.loads(line) for line in (old / "training" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["validation_loss"] for line in lines if line["event"] == "epoch"]
    same(losses, NUMBERS["training"], 1e-4)


def test_a_policy_keeps_what_it_said_and_what_is_new_in_it_is_closed(old: Path) -> None:
    policy = load_policy(old / "sites" / "north")
    found = policy.model_dump(mode="json", exclude={"signing_key", "state", "audit"})
    known = NUMBERS["policy"]
    assert {key: found[key] for key in known} == known
    assert (policy.local, policy.exact) == ((), ())
    with pytest.raises(Refused, match=r"task\.local"):
        check_local(policy, ["head.weight"])


def test_a_policy_of_another_version_answers_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "__version__", "0.2.0")
    with pytest.raises(Refused, match=r"0\.2\.0 is installed, and 0\.1\.0 is agreed on"):
        check_package(load_policy(old / "sites" / "north"))


def test_what_a_site_has_logged_and_spent_is_known(old: Path) -> None:
    north = SiteHome(old / "sites" / "north")
    log = verify(north.audit)
    assert (log.flaws, log.head) == ([], NUMBERS["audit"])
    assert north.config().name == "north"
    # The same charges, added up more tightly than by the Rényi divergences of then.
    assert 0.85 < Ledger(north.path / "ledger.jsonl", 4.0, 1e-5).spent / NUMBERS["spent"] <= 1


def test_a_site_joins_with_a_kit_of_then(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are made now; the coordinator enrols them among those of then, and the site pins all of them."""
    monkeypatch.setattr(provision, "__version__", "0.1.0")
    link, east = LinkHome(old / "link"), old / "sites" / "east"
    known = set(read_roster(link.roster).sites)
    enrol(link.path, [provision.make_site(link.kits / "east.kit.json", east)])
    assert set(pin(east, link.peers, sites=[*known, "east"])) == {*known, "east"}
    assert load_policy(east).local == ()


def test_a_kit_of_another_version_is_refused_with_the_fix(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "__version__", "0.2.0")
    with pytest.raises(UsageError) as caught:
        provision.make_site(old / "link" / "kits" / "east.kit.json", old / "sites" / "east")
    assert "distlfm[federated]==0.1.0" in str(caught.value)
