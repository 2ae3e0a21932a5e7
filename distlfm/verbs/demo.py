"""`make demo`: the main job end to end, one act after the other; a failed act says what to do, and the rest goes on."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import yaml

from distlfm.config import build, digest, read_yaml
from distlfm.data import read, write_npz
from distlfm.equations.base import MeshConfig
from distlfm.errors import DistlfmError, OtherWork, Stopped, WorkError
from distlfm.inference.archive import SavedFits
from distlfm.mechanisms import FieldMechanism, build_system
from distlfm.report.demo import Played, Showing, demo_page, gradient_figure, simulated_figure
from distlfm.report.field_section import field_figures
from distlfm.report.operator_plots import as_answer, plot_beside
from distlfm.report.page import Provenance, embed
from distlfm.report.plots import plot_fit
from distlfm.runs import REPORT, SUMMARY
from distlfm.runs.folder import begin, versions
from distlfm.runs.settings import FitConfig, GenerateConfig, SimulateConfig
from distlfm.runtime.reporting import Reporter
from distlfm.simulation.instances import simulate_from
from distlfm.solvers.fem.group.client import PartitionedSolver
from distlfm.solvers.fem.group.owner import Group
from distlfm.store import Store
from distlfm.store.files import storing, unexpected
from distlfm.store.metadata import RUN_STORE
from distlfm.training.settings import TrainConfig
from distlfm.verbs.fit import fit
from distlfm.verbs.generate import generate
from distlfm.verbs.query import query
from distlfm.verbs.train import train

INDEX = "index.html"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Act:
    """A title, what plays it, and with which settings it does. folder: its own, if it leaves something."""

    title: str
    play: Callable[[], Showing]
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def play(acts: Sequence[Act], reporter: Reporter) -> list[Played]:
    """Play acts one after another."""
    played = []
    for number, act in enumerate(acts, 1):
        reporter.say(f"[{number}/{len(acts)}] {act.title}")
        start = time.perf_counter()
        showing, failure = None, ""
        try:
            showing = _showing(act, reporter)
        except Stopped:  # by a signal, which means all of it
            raise
        except DistlfmError as error:
            failure = str(error)
        except Exception as error:  # a fault of one act is reported as such, and keeps nobody from seeing the others
            _LOG.debug("an act failed", exc_info=True)
            failure = unexpected(error, "`distlfm -vv demo`")
        played.append(Played(act.title, time.perf_counter() - start, showing, failure))
        if showing is not None:
            reporter.say(f"      {showing.line} ({played[-1].seconds:.1f} s)")
        else:
            reporter.warn(f"this act failed: {failure}")
    return played


def _showing(act: Act, reporter: Reporter) -> Showing:
    """What an act shows. What another version of it has left, or with other data, is put aside: it begins anew."""
    try:
        return act.play()
    except OtherWork as other:
        if act.folder is None:
            raise
        names = (f"{act.folder.name}.before-{number}" for number in count(1))
        before = next(path for path in map(act.folder.with_name, names) if not path.exists())
        with storing("the folder of an act", act.folder.parent):
            act.folder.rename(before)
        reporter.warn(f"{other.cause} It is kept in {before}, which you may delete, and this act begins anew.")
        return act.play()


def write_index(folder: Path, acts: Sequence[Act], played: Sequence[Played], seed: int) -> Path:
    """The page of all acts."""
    settings = yaml.safe_dump({act.title: dict(act.settings) for act in acts}, sort_keys=False, allow_unicode=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    provenance = Provenance(config=settings, versions=versions(), seed=seed, hash=digest(settings), date=date)
    return demo_page(folder / INDEX, played, provenance)


GENES = 5
INSTANCES = 8
SETTINGS = read_yaml(Path(__file__).with_name("demo.yaml"))
MODEL, FIELD, LESSON, TEACHING = (SETTINGS[name] for name in ("model", "field", "lesson", "teaching"))
PRIORS = MODEL["mechanism"]["priors"]
SIMULATED = {"instances": INSTANCES, "num_outputs": GENES, **MODEL}

FIT, OPERATOR, FIELD_RUN = "fit", "operator", "field"
SQUARE = 48
"""Cells along a side of the mesh that is divided."""

SEED = 0
"""Every act has its own stream of random numbers from it."""


def run(out: Path, reporter: Reporter, more: Sequence[Act] = ()) -> int:
    """Play the acts, then `more` of them, and write one page about all; the exit code is 1 if one of them failed."""
    begin(out)
    data = out / "instances.npz"
    acts = [
        Act("simulate genes driven by a hidden transcription factor", lambda: _simulate(data), SIMULATED),
        Act(
            "infer the factor from the genes, in blocks shared among Ray's actors",
            lambda: _fit(data, out, reporter),
            MODEL,
            out / FIT,
        ),
        Act(
            "teach an operator the same from simulated genes, and ask it",
            lambda: _operator(data, out, reporter),
            {"generate": LESSON, "train": TEACHING},
            out / OPERATOR,
        ),
        Act(
            "infer what drives a field, through an equation that FEniCS assembles",
            lambda: _field(out / FIELD_RUN, reporter),
            FIELD,
            out / FIELD_RUN,
        ),
        Act(
            "solve it and its gradient on a mesh divided between two MPI processes", _divided, {"cells a side": SQUARE}
        ),
        *more,
    ]
    begun = time.perf_counter()
    played = play(acts, reporter)
    page = write_index(out, acts, played, SEED)
    reporter.say(f"All acts together took {(time.perf_counter() - begun) / 60:.1f} minutes.")
    reporter.say(f"Open {page.resolve()} in a browser: all acts, with pictures and what to do about what failed.")
    return 1 if any(one.showing is None for one in played) else 0


def _simulate(path: Path) -> Showing:
    instances = simulate_from(build(SimulateConfig, {**SIMULATED, "seed": SEED}))
    with storing("the instances", path.parent):
        write_npz(path, instances)
    line = f"{len(instances)} instances of {GENES} genes at {len(instances[0].times)} times, truth kept for scoring"
    return Showing(line, [simulated_figure(instances[0])])


def _fit(data: Path, out: Path, reporter: Reporter) -> Showing:
    _need(data)
    folder = out / FIT
    run = {"dir": str(folder), "batch": INSTANCES // 2, "seed": SEED}
    done = fit(build(FitConfig, {**MODEL, "data": {"path": str(data)}, "run": run}), reporter=reporter)
    mean, worst = done.summary["mean"], done.summary["worst"]
    line = (
        f"the hidden factor is found with Q² {mean['latent_q2']:.3f} (worst {worst['latent_q2']:.3f}); "
        f"its 95 % bands hold {100 * mean['latent_coverage_95']:.0f} % of the truth"
    )
    name = str(done.tally.worst()[0]["id"])
    shown = done[name]
    alt = f"Instance {name}: {len(shown.instance.outputs)} genes with bands, the inferred factor, and the parameters."
    caption = "The worst of them: data, inferred factor and parameters with their intervals; dashed is the truth."
    figures = [embed(plot_fit(shown), f"Instance {name}. {caption}", alt)]
    return Showing(line, figures, {"The report of these fits": folder / REPORT})


def _operator(data: Path, out: Path, reporter: Reporter) -> Showing:
    _need(data)
    folder = out / OPERATOR
    drawn = {**MODEL, **LESSON, "num_outputs": GENES, "seed": SEED, "run": {"dir": str(folder / "lesson.zarr")}}
    store = generate(build(GenerateConfig, drawn), reporter=reporter)
    content = {**TEACHING, "data": {"stores": [str(store.path)]}, "run": {"dir": str(folder / "training")}}
    trained = train(build(TrainConfig, content), reporter=reporter)
    assert trained.directory is not None
    asked = query(trained.directory, data, [f"run.dir={folder / 'answers'}", "plot=true"])
    instance, operator = read(data).instances[0], trained.operator
    answer = operator(instance)  # the first answer makes what the others share
    start = time.perf_counter()
    operator(instance)
    line = (
        f"taught by {store.spec.instances} others, it answers in {1000 * (time.perf_counter() - start):.0f} ms with Q² "
        f"{asked.overall['mean']['latent_q2']:.3f}"
    )
    figures = []
    if (out / FIT / SUMMARY).is_file():  # the act before may have failed
        fitted = json.loads((out / FIT / SUMMARY).read_text(encoding="utf-8"))["mean"]["latent_q2"]
        line += f"; the fits above have {fitted:.3f}"
        row = next(row for row in Store.open(out / FIT / RUN_STORE).rows() if row["id"] == instance.id)
        found = as_answer(SavedFits([out / FIT / row["kept"]])[0], answer.axes, operator.schema)
        caption = "The operator's answer in a blink, beside the fit that took its time; dashed is the truth."
        alt = f"Instance {instance.id}: the force by the operator and by the fit, each with a band, and the truth."
        beside = plot_beside(instance, answer, found, operator.schema)
        figures.append(embed(beside, f"Instance {instance.id}. {caption}", alt))
    pages = {"The report of its training": trained.directory / REPORT, "Its answers": folder / "answers" / REPORT}
    return Showing(line, figures, pages)


def _field(out: Path, reporter: Reporter) -> Showing:
    content = {**FIELD, "instances": 1, "stop": 1.0, "points": 13, "places": 13, "missing": 0.3, "seed": SEED}
    instances = simulate_from(build(SimulateConfig, content))
    begin(out)
    with storing("the field", out):
        write_npz(out / "instances.npz", instances)
    data, run = {"path": str(out / "instances.npz")}, {"dir": str(out), "seed": SEED}
    reporter.say("      FEniCS compiles the equation at first; that may take half a minute")
    done = fit(build(FitConfig, {**FIELD, "data": data, "run": run}), reporter=reporter)
    figures = done.figures[0]
    line = (
        f"{int(instances[0].mask.sum())} noisy points of a field give its unseen source with Q² "
        f"{figures['latent_q2']:.3f}; the 95 % band holds {100 * figures['latent_coverage_95']:.0f} % of the truth"
    )
    return Showing(line, field_figures(done.results[0])[:2], {"The report of this fit": out / REPORT})


def _divided() -> Showing:
    problem = build_system(FIELD["mechanism"])
    assert isinstance(problem, FieldMechanism)
    spec = problem.problem(MeshConfig(kind="rectangle", lower=(0.0, 0.0), upper=(1.0, 1.0), size=1 / SQUARE))
    theta = {"sensitivity": 1.0, "decay": 0.5, "diffusion": 0.02}
    lines = []
    for ranks in (1, 2):
        with Group.start(ranks) as group:
            solver = PartitionedSolver(group, spec)
            force = np.random.default_rng(SEED).normal(size=(1, 11, solver.num_nodes))
            look = sp.csr_array(np.eye(5, solver.num_nodes, k=solver.num_nodes // 2))
            observed, number = solver.forward(theta, None, force, 0.02, 10, look)
            lines.append(solver.adjoint(number, np.ones_like(observed)).force)
    apart = float(np.abs(lines[1] - lines[0]).max() / np.abs(lines[0]).max())
    line = f"{lines[0].shape[-1]} nodes on two ranks: the gradient is that of one rank to {apart:.0e}"
    alone, together = (one[0, 5].reshape(SQUARE + 1, SQUARE + 1) for one in lines)
    return Showing(line, [gradient_figure(alone, together)])


def _need(data: Path) -> None:
    if not data.is_file():
        raise WorkError("The instances of act 1 are not there.", "See why it failed, mend that, and run it all again.")
