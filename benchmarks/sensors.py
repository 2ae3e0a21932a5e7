"""Glucose below a drifting sensor: whether bands hold the curve that the sensor would show without its error.

Days of virtual patients are made by simglucose 0.2.11, an independent simulator: 13 states, meals, insulin and a sensor
whose error is correlated in time. Its wheel is checked against its hash and unpacked into a temporary folder. The same
days are fitted with the default likelihood and without a drift.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.goals import between
from distlfm.config import build
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system

WHEEL = "simglucose==0.2.11 --hash=sha256:e1313326a2ac595b17a3f3f898af999c951336eba7f0104551e8e4acad1376f7"
PATIENTS = [f"{group}#{number:03d}" for group in ("adolescent", "adult", "child") for number in range(1, 11)]
START = datetime(2026, 1, 1)
HELD = (0.90, 0.98)


def run(quick: bool = False) -> dict[str, Any]:
    """One figure for each likelihood; only the default one has a goal."""
    days = _days(2 if quick else len(PATIENTS))
    found = {name: _fitted(days, drift) for name, drift in (("default", None), ("without drift", False))}
    held = found["default"]["95 % bands hold, mean"]
    return {"figures": {"95 % bands hold the curve without the sensor's error": between(held, *HELD)}, **found}


def _days(count: int) -> list[tuple[Instance, FloatArray]]:
    """A day of each patient as the sensor shows it, every three minutes, and without its error [T]."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "simglucose.txt").write_text(WHEEL + "\n")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        where = ["--target", f"{folder}/site", "--requirement", f"{folder}/simglucose.txt"]
        subprocess.run([*install, *where], check=True)
        program = [sys.executable, "-m", "benchmarks.sensors", str(count), f"{folder}/site", folder]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        tables = [np.load(f"{folder}/{i}.npy") for i in range(count)]
    found = []
    for name, (minutes, clean, seen) in zip(PATIENTS[:count], tables, strict=True):
        every = np.ones((1, len(seen)), dtype=bool)
        found.append((Instance(name, ("glucose",), minutes, seen[None], every), clean))
    return found


def _fitted(days: list[tuple[Instance, FloatArray]], drift: bool | None) -> dict[str, Any]:
    force = build(ForceConfig, {"kernel": {"kind": "matern52"}})
    model = Model(build_system({"kind": "glucose"}, ("glucose",)), force, build(LikelihoodConfig, {"drift": drift}))
    start = time.process_time()
    results = fit_instances(model, [one for one, _ in days], InferenceConfig(grid_points=40))
    seconds = (time.process_time() - start) / len(days)
    held, off = [], []
    for result, (_, clean) in zip(results, days, strict=True):
        band = result.at_data.outputs
        held.append(float((np.abs(clean - band.mean[0]) <= 1.96 * band.sd[0]).mean()))
        off.append(float(np.sqrt(((clean - band.mean[0]) ** 2).mean())))
    return {
        "95 % bands hold, mean": float(np.mean(held)),
        "standard error": float(np.std(held) / np.sqrt(len(held))),
        "worst patient": min(held),
        "error of the curve, mg/dL": float(np.mean(off)),
        "error of the sensor, mg/dL": float(np.mean([np.sqrt(((o.values[0] - c) ** 2).mean()) for o, c in days])),
        "statuses": dict(Counter(one.status for one in results)),
        "CPU seconds of a day": seconds,
    }


def _simulate(patient: str, seed: int) -> FloatArray:
    """Minutes, subcutaneous glucose, and what the sensor shows, [3, T]; insulin is by simglucose's own controller."""

    def part(name: str) -> Any:
        return importlib.import_module(f"simglucose.{name}")

    environment = part("simulation.env").T1DSimEnv(
        part("patient.t1dpatient").T1DPatient.withName(patient),
        part("sensor.cgm").CGMSensor.withName("Dexcom", seed=seed),
        part("actuator.pump").InsulinPump.withName("Insulet"),
        part("simulation.scenario_gen").RandomScenario(start_time=START, seed=seed),
    )
    controller = part("controller.basal_bolus_ctrller").BBController()
    observed, reward, done, info = environment.reset()
    while environment.time < START + timedelta(days=1):
        observed, reward, done, info = environment.step(controller.policy(observed, reward, done, **info))
    history = environment.show_history()
    minutes = (history.index - START).total_seconds() / 60
    table: FloatArray = np.array([minutes, history.BG, history.CGM], dtype=np.float64)
    return table[:, np.isfinite(table).all(0)]


def _write(count: int, site: str, folder: str) -> None:
    """Write the days of `count` patients, simulated by the package in `site`, into a folder."""
    sys.path.insert(0, site)
    # It registers itself with a package of games, which nothing here needs.
    for name in ("gym", "gym.envs", "gym.envs.registration"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["gym.envs.registration"])["register"] = lambda **_: None
    for seed, patient in enumerate(PATIENTS[:count]):
        np.save(f"{folder}/{seed}.npy", _simulate(patient, seed))


if __name__ == "__main__":
    _write(int(sys.argv[1]), *sys.argv[2:4])
