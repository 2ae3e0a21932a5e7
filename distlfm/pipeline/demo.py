"""`make demo`: the main job end to end, one act after the other; a failed act says so and the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from distlfm.config import build
from distlfm.data import write_npz
from distlfm.errors import DistlfmError
from distlfm.pipeline.fit import fit
from distlfm.pipeline.settings import FitConfig, SimulateConfig
from distlfm.pipeline.simulate import simulate_from
from distlfm.runtime.reporting import Reporter

GENES = 5
INSTANCES = 8
PRIORS = {
    "basal": {"kind": "lognormal", "median": 0.1, "spread": 0.5},
    "sensitivity": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
    "decay": {"kind": "lognormal", "median": 0.4, "spread": 0.3},
}
MODEL = {
    "mechanism": {"kind": "transcription", "priors": PRIORS, "fixed": {"sensitivity": {"output_0": 1.0}}},
    "force": {
        "priors": {
            "lengthscale": {"kind": "lognormal", "median": 1.5, "spread": 0.3},
            "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
        }
    },
    "likelihood": {"shared": True, "prior": {"kind": "lognormal", "median": 0.05, "spread": 0.5}},
}


def run(out: Path, reporter: Reporter) -> int:
    """Play the acts; the exit code is 1 if one of them failed."""
    out.mkdir(parents=True, exist_ok=True)
    data = out / "instances.npz"
    acts: list[tuple[str, Callable[[], str]]] = [
        ("simulate genes driven by a hidden transcription factor", lambda: _simulate(data)),
        ("infer the factor from the genes", lambda: _fit(data, out / "fit", reporter)),
    ]
    failed = 0
    for number, (title, act) in enumerate(acts, 1):
        reporter.say(f"[{number}/{len(acts)}] {title}")
        start = time.perf_counter()
        try:
            reporter.say(f"      {act()} ({time.perf_counter() - start:.1f} s)")
        except DistlfmError as error:
            failed += 1
            reporter.warn(f"this act failed: {error}")
    reporter.say(f"Open {(out / 'fit' / 'report.html').resolve()} in a browser.")
    return 1 if failed else 0


def _simulate(path: Path) -> str:
    content = {**MODEL, "instances": INSTANCES, "num_outputs": GENES}
    instances = simulate_from(build(SimulateConfig, content))
    write_npz(path, instances)
    return f"{len(instances)} instances of {GENES} genes at {len(instances[0].times)} times, truth kept for scoring"


def _fit(data: Path, out: Path, reporter: Reporter) -> str:
    config = build(FitConfig, {**MODEL, "data": {"path": str(data)}, "run": {"dir": str(out)}})
    done = fit(config, reporter=reporter)
    mean, worst = done.summary["mean"], done.summary["worst"]
    return (
        f"the hidden factor is found with Q² {mean['latent_q2']:.3f} (worst {worst['latent_q2']:.3f}); "
        f"its 95 % bands hold {100 * mean['latent_coverage_95']:.0f} % of the truth"
    )
