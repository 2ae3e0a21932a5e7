"""From patients' records to a tuned operator, at one site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import read_yaml
from distlfm.errors import OtherWork, UsageError
from distlfm.federated.settings import RoundTask, SiteConfig
from distlfm.federated.simulation import run
from distlfm.federated.site import data as site_data
from distlfm.federated.site.data import fit_config, records
from distlfm.federated.site.work import Site, codec_of, write_site
from distlfm.instance import Instance
from distlfm.lfo import Calibration, Examples, FourierOperator, Operator, OperatorConfig
from distlfm.lfo.inputs import set_normal
from distlfm.runs.folder import ELSEWHERE
from distlfm.runs.settings import DataConfig, FitConfig, GenerateConfig
from distlfm.runtime.reporting import Plain, Silent
from distlfm.verbs.fit import FitRun
from distlfm.verbs.generate import generate

POINTS, WINDOW = 25, 240.0
SHIPPED = read_yaml(Path(run.__file__).with_name("demo") / "generate.yaml")
MECHANISM, NOISE = SHIPPED["mechanism"], SHIPPED["likelihood"]
FORCE = {"priors": {"lengthscale": {"kind": "lognormal", "median": 40, "spread": 0.5}}}
SMALL = OperatorConfig(layers=1, width=8, modes=4, head=8, pooled=4, regressions=0, slopes=(0.1,))


def make_operator(folder: Path) -> Operator:
    content: dict[str, Any] = {"instances": 24, "stop": WINDOW, "points": POINTS, "mechanism": MECHANISM}
    content |= {"force": FORCE, "likelihood": NOISE, "run": {"dir": folder, "executor": "serial"}}
    store = generate(GenerateConfig.model_validate(content))
    examples = Examples([store])
    model = FourierOperator(SMALL, examples.schema)
    set_normal(model.normal, examples.batch(range(len(examples))))
    none = Calibration.none(1, len(examples.schema.parameters))
    return Operator(examples.schema, SMALL, model.eval().requires_grad_(False), none)


def write_records(path: Path, patients: int = 4, days: int = 3) -> Path:
    """Glucose of some patients, a value each ten minutes, over several windows."""
    random = np.random.default_rng(0)
    lines = ["patient,time_min,glucose_mg_dl"]
    for patient in range(patients):
        times = np.arange(0.0, days * WINDOW, 10.0)
        values = 120 + 5 * patient + 30 * np.sin(times / 40 + patient) + random.normal(0, 2, len(times))
        lines += [f"p{patient},{t:g},{value:.1f}" for t, value in zip(times, values, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def site_config(data: Path, **more: Any) -> SiteConfig:
    columns = {"instance": "patient", "time": "time_min", "values": "glucose_mg_dl"}
    content = {
        "data": {"path": str(data), "window": WINDOW, "columns": columns},
        "mechanism": MECHANISM,
        "force": FORCE,
        "likelihood": NOISE,
        "run": {"executor": "serial", "keep": "none"},
    }
    return SiteConfig.model_validate({"name": "north", "fit": content, "windows": 2, "test": 0.25, **more})


def test_no_more_windows_and_patients_are_taken_than_asked_for(tmp_path: Path) -> None:
    data = DataConfig(path=write_records(tmp_path / "records.csv"), window=WINDOW, dataset="hall2018")
    assert [one.id for one in records(data, 2, 2)[0]] == ["p0/0", "p0/1", "p1/0", "p1/1"]
    assert len(records(data)[0]) == 12


def test_a_site_is_told_which_records_are_set_aside_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_records(tmp_path / "records.csv")
    path.write_text(path.read_text().replace("p1,10,", "p1,10,high"))
    fitted: list[str] = []

    def fit(config: FitConfig, data: list[Instance], **_: object) -> FitRun:
        fitted.extend(one.id for one in data)
        return FitRun(config)

    monkeypatch.setattr(site_data, "fit", fit)
    assert site_data.fit_patients(tmp_path / "site", site_config(path), Plain(sys.stderr)) == 1
    assert fitted == [f"p{patient}/{window}" for patient in (0, 2, 3) for window in range(2)]
    said = capsys.readouterr().err
    assert "set aside" in said
    assert "'p1'" in said
    assert "row 75" in said
    with pytest.raises(UsageError, match=r"There is no instance 'p9' in the data"):
        records(DataConfig(path=path, only=("p0", "p9")))


def test_units_of_a_sites_records_are_kept(tmp_path: Path) -> None:
    data = {"path": write_records(tmp_path / "records.csv"), "units": {"time": "min", "value": "mg/dL"}}
    assert records(DataConfig.model_validate(data))[0][0].metadata["value_unit"] == "mg/dL"


def test_a_site_that_is_not_prepared_says_so(tmp_path: Path) -> None:
    site = write_site(tmp_path / "site", site_config(tmp_path / "records.csv"), make_operator(tmp_path / "base.zarr"))
    with pytest.raises(UsageError, match=r"no fits of its patients yet\. Fit them first: distlfm federated prepare"):
        site.windows()


def test_a_site_whose_settings_changed_is_told_which_folder_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun_otherwise(*_: object, **__: object) -> None:
        raise OtherWork("The store was begun with another config.", ELSEWHERE)

    monkeypatch.setattr(site_data, "fit", begun_otherwise)
    config = site_config(write_records(tmp_path / "records.csv"))
    with pytest.raises(UsageError, match=r"begun with another config\. Take back .* delete .*site/fits"):
        site_data.fit_patients(tmp_path / "site", config, Silent())


def test_a_path_of_a_sites_data_counts_from_the_sites_folder(tmp_path: Path) -> None:
    given = site_config(Path("records.csv"))
    assert fit_config(tmp_path / "site", given).data.path == tmp_path / "site" / "records.csv"
    assert fit_config(tmp_path / "site", site_config(tmp_path / "records.csv")).data.path == tmp_path / "records.csv"
    write_records(tmp_path / "site.csv")
    site = write_site(tmp_path / "site", site_config(Path("../site.csv")), make_operator(tmp_path / "base.zarr"))
    assert site.windows("physics").ids


@pytest.mark.slow
def test_a_site_fits_its_patients_and_tunes_on_them(tmp_path: Path) -> None:
    data = write_records(tmp_path / "records.csv")
    # With this seed each part of the cohort has one of the four patients at least.
    site = write_site(tmp_path / "site", site_config(data, seed=1), make_operator(tmp_path / "base.zarr"))
    task = RoundTask(steps=25, batch=0, lr=3e-3)
    vector = codec_of(site.base.model, task).encode(site.base.model.state_dict())
    # Without fits the equation teaches.
    physics = task.model_copy(update={"kind": "physics"})
    before = site.evaluate(vector, physics)[0]["reconstruction"]
    assert site.evaluate(site.train(vector, physics).vector, physics)[0]["reconstruction"] < before
    assert not (site.folder / "fits").exists()
    site.prepare()
    site = Site(site.folder)
    assert sorted([name for part in ("train", "choose", "test") for name in site.windows(part=part).ids]) == sorted(
        f"p{patient}/{window}" for patient in range(4) for window in range(2)
    )
    tuned = site.train(vector, task).vector
    losses = [site.evaluate(one, task, part="train")[0]["loss"] for one in (vector, tuned)]
    assert losses[1] < losses[0]


def test_an_operator_of_another_equation_is_refused_before_patients_are_fitted(tmp_path: Path) -> None:
    config = site_config(write_records(tmp_path / "records.csv"))
    config.fit["mechanism"] = {"kind": "transcription"}
    site = write_site(tmp_path / "site", config, make_operator(tmp_path / "base.zarr"))
    with pytest.raises(UsageError, match=r"base\.pt is an operator of 'glucose', and site\.yaml fits .*transcription"):
        site.prepare()
    assert not (site.folder / "fits").exists()


def test_pairs_in_another_unit_of_time_than_the_operators_are_refused(tmp_path: Path) -> None:
    operator = make_operator(tmp_path / "base.zarr")
    content: dict[str, Any] = {"instances": 4, "stop": WINDOW / 60, "points": POINTS, "mechanism": MECHANISM}
    content |= {"force": FORCE, "likelihood": NOISE, "run": {"dir": tmp_path / "hours.zarr", "executor": "serial"}}
    generate(GenerateConfig.model_validate(content))
    site = write_site(tmp_path / "site", SiteConfig(name="north", store=tmp_path / "hours.zarr"), operator)
    for ask in (site.check, site.windows):
        with pytest.raises(UsageError, match=r"time runs from 0 .*hours\.zarr.* Give it in the operator's unit"):
            ask()
