"""Where a fleet's files are: nobody else's are touched, a run goes on wherever it lies, its data are what they were."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import build
from distlfm.data import read, write_npz
from distlfm.errors import StorageError, UsageError
from distlfm.fleets import sources, spool
from distlfm.instance import Instance, Truth
from distlfm.runs.settings import DataConfig, FitConfig, GenerateConfig
from distlfm.runtime.reporting import Plain, Reporter
from distlfm.simulation import block as generate_block
from distlfm.simulation.series import Drawn
from distlfm.store import Store, driver_lock
from distlfm.store.inspection import summarise
from distlfm.store.merge import merge
from distlfm.verbs.fit import FitRun, fit, resume
from distlfm.verbs.generate import generate, resume_generate
from distlfm.verbs.status import status
from tests.support.fleet_runs import CONFIG, events, numbers, write_fleet

pytestmark = pytest.mark.slow

COUNT = 4


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, COUNT)
    return folder


def fit_in(out: Path, data: Path, reporter: Reporter | None = None, **run: Any) -> FitRun:
    content = {**CONFIG, "run": {**CONFIG["run"], "batch": 2, "executor": "serial", "dir": str(out), **run}}
    return fit(build(FitConfig, content), data, reporter=reporter)


def generate_in(out: Path, **more: Any) -> Store:
    content = {"mechanism": CONFIG["mechanism"], "likelihood": CONFIG["likelihood"], "instances": 6, "points": 11}
    run = {"block": 3, "dir": str(out), "executor": "serial"}
    return generate(build(GenerateConfig, {**content, **more, "run": run}))


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "report.html"])
def test_a_run_does_not_write_over_files_that_are_not_its_own(fleet: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=f"would write over its {name}"):
        fit_in(tmp_path, fleet / "data.npz")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "000000.npz"])
def test_a_folder_called_input_keeps_its_files(fleet: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / name).write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=f"files of somebody else, such as {name}"):
        fit_in(tmp_path, fleet / "data.npz")
    assert (tmp_path / "input" / name).read_text(encoding="utf-8") == "mine"


def test_what_others_put_beside_the_copy_of_the_data_stays(tmp_path: Path, fleet: Path) -> None:
    folder = tmp_path / "input"
    sources.open_source(DataConfig(path=fleet / "data.npz"), None, folder)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    spool.clear_spool(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_run_is_resumed_where_it_lies_now_from_any_directory(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "data.npz").write_bytes((fleet / "data.npz").read_bytes())
    (home / "fleet_test_plugin.py").write_text("LOADED = True\n", encoding="utf-8")
    monkeypatch.chdir(home)
    content = {**CONFIG, "plugins": ["fleet_test_plugin"], "run": {**CONFIG["run"], "batch": 2, "executor": "serial"}}
    (home / "config.yaml").write_text(json.dumps(content), encoding="utf-8")
    fit("config.yaml", "data.npz", ["run.dir=run"])
    monkeypatch.delitem(sys.modules, "fleet_test_plugin")
    wanted = numbers(home / "run")
    (home / "run").rename(home / "moved")
    (home / "moved" / "store.zarr" / "markers" / "00001.json").unlink()
    monkeypatch.chdir(elsewhere)
    resume(home / "moved")
    for name, array in numbers(home / "moved").items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    assert sys.modules["fleet_test_plugin"].LOADED
    assert not (home / "run").exists()
    assert not list(elsewhere.iterdir())


def test_a_generated_store_is_resumed_from_any_directory_with_its_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet_test_plugin.py").write_text("", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    generate_in(Path("store"), plugins=["fleet_test_plugin"])
    monkeypatch.delitem(sys.modules, "fleet_test_plugin")
    (tmp_path / "store" / "markers" / "00001.json").unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume_generate(tmp_path / "store").missing() == []
    monkeypatch.delitem(sys.modules, "fleet_test_plugin")


def test_a_run_of_instances_in_memory_says_how_it_goes_on(fleet: Path, tmp_path: Path) -> None:
    content = {**CONFIG, "run": {**CONFIG["run"], "executor": "serial", "dir": str(tmp_path / "run")}}
    config, instances = build(FitConfig, content), read(fleet / "data.npz").instances
    fit(config, instances)
    (tmp_path / "run" / "store.zarr" / "markers" / "00000.json").unlink()
    with pytest.raises(UsageError, match=r"begun by a Python program.* Call `fit` again"):
        resume(tmp_path / "run")
    assert fit(config, instances).tally.count == COUNT


def test_instances_that_could_not_be_generated_are_set_aside_and_the_others_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = generate_block.Block.put

    def sometimes(
        self: generate_block.Block,
        place: int,
        drawn: Drawn,
        row: int,
        generator: np.random.Generator,
        attempt: int,
    ) -> None:
        if str(self.arrays["id"][place]) in ("gen-000000", "gen-000004"):
            self.refuse(place, "diverged", "It diverges.")
        else:
            put(self, place, drawn, row, generator, attempt)

    monkeypatch.setattr(generate_block.Block, "put", sometimes)
    generate_in(tmp_path / "holes")
    found = fit_in(tmp_path / "run", tmp_path / "holes")
    assert found.store is not None
    there = ["gen-000001", "gen-000002", "gen-000003", "gen-000005"]
    assert list(found.store.read("id")) == there
    assert [row["id"] for row in found.rows()] == there
    assert [problem.instance for problem in found.set_aside] == ["gen-000000", "gen-000004"]
    holes = Store.open(tmp_path / "holes")
    np.testing.assert_array_equal(found.store.read("observed"), holes.read("observed")[[1, 2, 3, 5]])


def test_a_fleet_in_which_only_some_have_a_noise_variance_is_refused_before_the_work(
    fleet: Path, tmp_path: Path
) -> None:
    instances = read(fleet / "data.npz").instances
    known = replace(instances[3], variance=np.full_like(instances[3].values, 0.01))
    write_npz(tmp_path / "mixed.npz", [*instances[:3], known])
    with pytest.raises(UsageError, match="Some instances have a noise variance and 'sim-000000' has none"):
        fit_in(tmp_path / "run", tmp_path / "mixed.npz")


def test_a_copy_of_the_data_that_was_cut_short_is_made_again(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while a piece of other data was written: neither it nor half of it stands in for the right one."""
    first = read(fleet / "data.npz").instances
    other = [replace(one, values=one.values + 1.0) for one in first]
    folder, nothing = tmp_path / "input", DataConfig()
    sources.open_source(nothing, first, folder)

    def killed(path: Path, instances: Any) -> None:
        write_npz(path, instances)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(spool, "write_npz", killed)
        with pytest.raises(KeyboardInterrupt):
            sources.open_source(nothing, other, folder)
    source, _ = sources.open_source(nothing, first, folder)
    for one, two in zip(source.read(0, COUNT), first, strict=True):
        np.testing.assert_array_equal(one.values, two.values)


def test_a_copy_of_the_data_that_is_damaged_is_noticed_and_not_fitted(fleet: Path, tmp_path: Path) -> None:
    instances = read(fleet / "data.npz").instances
    folder = tmp_path / "input"
    source, _ = sources.open_source(DataConfig(), instances, folder)
    (piece,) = folder.iterdir()
    write_npz(piece, [replace(instances[0], values=instances[0].values + 1.0), *instances[1:]])
    for content in (piece.read_bytes(), b"no archive"):
        piece.write_bytes(content)
        with pytest.raises(StorageError, match=rf"is damaged or gone. Remove {folder}"):
            source.read(0, 2)


def test_unobserved_values_and_everything_else_come_back_from_the_copy_of_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    times, mask = np.repeat(np.arange(3.0), 2), np.array([[True, False, True, True, False, True]])
    truth = Truth(times, rng.normal(size=(1, 6)), None, rng.normal(size=(6, 1)), {"decay": np.array([0.5, 0.25])})
    values = np.where(mask, rng.normal(size=(1, 6)), np.nan)
    one = Instance("a", ("y",), times, values, mask, rng.normal(size=(6, 1)), values**2, truth, {"time_unit": "h"})
    source, _ = sources.open_source(DataConfig(), [one], tmp_path / "input")
    (found,) = source.read(0, 1)
    np.testing.assert_array_equal(found.values, np.where(mask, values, 0.0))
    assert found.metadata == {"time_unit": "h"}


def test_data_that_are_refused_leave_no_copy_behind(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit_in(out, fleet / "data.npz")
    before = sorted(out.rglob("*"))
    instances = read(fleet / "data.npz").instances
    write_npz(tmp_path / "other.npz", [replace(one, values=one.values + 1.0) for one in instances])
    placed = [replace(one, positions=np.zeros((len(one.times), 1)), truth=None) for one in instances]
    write_npz(tmp_path / "placed.npz", placed)
    for name, why in (("other", "begun with other data"), ("placed", "observed at positions")):
        with pytest.raises(UsageError, match=why):
            fit_in(out, tmp_path / f"{name}.npz")
        assert sorted(out.rglob("*")) == before


def test_other_settings_are_refused_before_the_data_are_read(fleet: Path, tmp_path: Path) -> None:
    fit_in(tmp_path / "run", fleet / "data.npz")
    with pytest.raises(UsageError, match=r"begun with run.seed=5, and it is 6 now"):
        fit_in(tmp_path / "run", tmp_path / "nowhere.npz", seed=6)


def test_the_units_of_a_store_go_with_its_instances(tmp_path: Path) -> None:
    generate_in(tmp_path / "store", units={"time": "h", "a": "nM", "b": "nM"})
    found = fit_in(tmp_path / "run", tmp_path / "store")
    assert found.store is not None
    assert dict(found.store.spec.units) == {"time": "h", "a": "nM", "b": "nM"}


def test_a_list_of_stores_and_a_status_tell_who_works_on_a_run(fleet: Path, tmp_path: Path) -> None:
    fit_in(tmp_path / "a run", fleet / "data.npz")
    with driver_lock(tmp_path / "a run", "fit"):
        assert "fit on" in summarise(tmp_path / "a run").driver
        assert status(tmp_path / "a run").driver is not None
    assert not summarise(tmp_path / "a run").driver
    assert status(tmp_path / "a run" / "store.zarr").command == f"distlfm resume '{tmp_path / 'a run'}'"


def test_serial_needs_no_ray_even_if_the_config_names_a_cluster(fleet: Path, tmp_path: Path) -> None:
    found = fit_in(tmp_path / "run", fleet / "data.npz", address="127.0.0.1:1")
    assert found.tally.count == COUNT


def test_an_output_that_the_mechanism_does_not_know_costs_its_instance_only(fleet: Path, tmp_path: Path) -> None:
    instances = read(fleet / "data.npz").instances
    strange = replace(instances[3], outputs=("a", "c"), times=instances[3].times + 0.01, truth=None)
    write_npz(tmp_path / "data.npz", [*instances[:3], strange])
    said = io.StringIO()
    found = fit_in(tmp_path / "run", tmp_path / "data.npz", Plain(said))
    assert [row["status"] for row in found.figures] == ["converged", "converged", "converged", "failed"]
    assert "has an output 'c'" in found.tally.failures[0]["reason"]
    assert "sim-000003 (row 1 of block 1) is set aside: Instance 'sim-000003' has an output 'c'" in said.getvalue()
    (tmp_path / "run" / "store.zarr" / "markers" / "00000.json").unlink()
    resume(tmp_path / "run")
    # What failed before is counted on.
    assert [one["failed"] for one in events(tmp_path / "run") if one["event"] == "ended"] == [1, 1]


def test_a_store_merged_of_different_ones_cannot_be_resumed_and_says_so(tmp_path: Path) -> None:
    for seed in (0, 1):
        generate_in(tmp_path / str(seed), seed=seed)
    merge([tmp_path / "0", tmp_path / "1"], tmp_path / "both", prefix=True)
    with pytest.raises(UsageError, match="keeps no config"):
        resume_generate(tmp_path / "both")


def test_of_two_who_make_a_store_at_once_the_second_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(_: Path) -> None:
        (tmp_path / "store" / "markers").mkdir(parents=True)

    monkeypatch.setattr("distlfm.store.store.flush_tree", meanwhile)
    with pytest.raises(UsageError, match="was made by another process"):
        generate_in(tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
