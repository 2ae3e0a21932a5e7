"""The layout: modules, lines, rooms, and how many modules a fit or a query goes through.

Modules are the Python files of `distlfm/`, `launch/` and `federated/`, each counted once. Code lines are lines with a
token that is neither a comment nor part of a docstring. A module is imported by another one if that names it, or
something in it, in an import statement, at any depth; `__init__.py` counts like any other.

A hop is a module of which at least one function was executed by a verb, typed as a user would: on the command line,
with a serial executor and a run directory. All threads of its process and forks of it count; separate programs, such as
the service that assembles with FEniCS, do not. What runs only because a module is imported (class bodies, decorators,
comprehensions at its top) does not count either: a reader of the call does not pass there.

A module changes with the likelihood, or with the time scheme, if it stands outside the contract and names what belongs
to those that are shipped: their modules, options or parameters, or the weights of a step. Keys of a config in sentences
for a user do not count. A module changes with the operator's head if it is the head's own, or names a weight of it.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.goals import at_most

PROJECT = Path(__file__).resolve().parents[1]
CONFIGS = PROJECT / "configs"
ROOTS = ("distlfm", "launch", "federated")

BASELINE_MODULES, BASELINE_LINES = 481, 39_692
BASELINE_HOPS = {"fit of a series": 89, "fit of a field": 111, "query": 54}
"""Of version 0.1, as `python -m benchmarks house` counts them."""

SHARE = 0.95
CHANGING = {"the likelihood": 3, "the time scheme": 3, "the operator's head": 2}
MODULES, MODULES_OF_A_FOLDER, LINES_OF_A_MODULE = 350, 20, 400
SINCE = {
    "distlfm/inference/findings/equation.py": "an equation that is not the one that was solved",
    "distlfm/inference/findings/innovations.py": "innovations that are not white",
    "distlfm/inference/findings/mirror.py": "a force whose sign may be turned",
    "distlfm/inference/findings/predictive.py": "drawn curves that do not describe the data",
    "distlfm/inference/findings/rerun.py": "an equation that is not the one that was solved",
    "distlfm/inference/findings/trust.py": "the status `unreliable`",
    "distlfm/inference/findings/values.py": "values that are clipped or filled in",
    "distlfm/inference/findings/wander.py": "an error of the sensor taken for a force",
    "distlfm/inference/series/changing.py": "changing coefficients can be solved in closed form",
    "distlfm/inference/series/circles.py": "integrated out by waves",
    "distlfm/inference/series/fourier.py": "integrated out by waves",
    "distlfm/inference/series/joint/__init__.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/density.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/fit.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/flow.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/grid.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/method.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/metric.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/modes.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/posterior.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/sampler.py": "`inference.method=joint`",
    "distlfm/inference/series/joint/waves.py": "`inference.method=joint`",
    "distlfm/inference/series/reference/__init__.py": "`inference.method=reference`",
    "distlfm/inference/series/reference/method.py": "`inference.method=reference`",
    "distlfm/inference/series/reference/nuts.py": "`inference.method=reference`",
    "distlfm/inference/series/stiffness.py": "An equation that is stiff",
    "distlfm/inference/series/variational/chord.py": "a structured q",
    "distlfm/inference/series/variational/structured.py": "a structured q",
    "distlfm/likelihoods/drift.py": "`likelihood.drift`",
    "distlfm/serve/parquet_size.py": "a Parquet file in a process of its own",
    "distlfm/solvers/changing.py": "changing coefficients can be solved in closed form",
    "distlfm/solvers/kalman/loops.py": "compiled by numba",
    "distlfm/solvers/kalman/moves.py": "compiled by numba",
    "distlfm/solvers/kalman/smoothing.py": "compiled by numba",
    "distlfm/verbs/estimate.py": "What a fleet costs is known before it runs",
    "federated/secure/cover.py": "covering noise",
    "federated/secure/discrete.py": "discrete Gaussian",
    "federated/secure/epochs.py": "Rosters are compared in epochs",
    "federated/secure/noise.py": "shared noise",
    "federated/site/contract.py": "limits of its policy",
    "federated/site/receipts.py": "has a receipt",
    "federated/site/votes.py": "Sites vote",
    "federated/site/worktime.py": "after `task.seconds`",
    "federated/drill/__init__.py": "`distlfm federated drill`",
    "federated/drill/coordinator.py": "`distlfm federated drill`",
    "federated/drill/ground.py": "`distlfm federated drill`",
    "federated/drill/run.py": "`distlfm federated drill`",
    "federated/drill/weights.py": "`distlfm federated drill`",
    "federated/link/logs.py": "`--logs json`",
}
"""Modules of capabilities that version 0.1 has not and that were added after its rooms were laid out, with words that
the list of changes has for each. A module that replaces or splits what 0.1 has is not among them, even if it does more:
`adam`, `ascent`, `accounting` and `sizes`, the package of the filter without its compiled files. The front door in
Python counts as what 0.1 has too. Goals hold without these and without the lines of `GROWN`; all is printed beside.
"""

GROWN = {
    "distlfm/answer/base.py": (12, "what cannot be meant is refused in a sentence"),
    "distlfm/answer/draws.py": (30, "Draws are had by name and as a table"),
    "distlfm/answer/picture.py": (10, "`plot` takes `ax`"),
    "distlfm/answer/tables.py": (14, "Draws are had by name and as a table"),
    "distlfm/cli/federated.py": (30, "Votes are signed"),
    "distlfm/cli/fit.py": (15, "`distlfm fit --estimate`"),
    "distlfm/cli/jobs.py": (13, "What a fleet costs is known before it runs"),
    "distlfm/cli/provision.py": (13, "Tokens have a role"),
    "distlfm/data/assemble.py": (43, "Rows of several patients whose column nobody named"),
    "distlfm/data/base.py": (17, "Values that NumPy masks"),
    "distlfm/data/doubts.py": (34, "Gaps in series that are even elsewhere"),
    "distlfm/data/frames.py": (9, "Values that NumPy masks"),
    "distlfm/inference/curvature.py": (8, "the same mode and circle of waves alone and in any batch"),
    "distlfm/inference/fit.py": (12, "changing coefficients can be solved in closed form"),
    "distlfm/inference/model.py": (7, "Each of several forces may have priors"),
    "distlfm/inference/optimise.py": (9, "the same mode and circle of waves alone and in any batch"),
    "distlfm/inference/posterior.py": (63, "sampling goes on in further stages"),
    "distlfm/inference/result.py": (13, "what cannot be meant is refused in a sentence"),
    "distlfm/inference/series/collapsed.py": (18, "changing coefficients can be solved in closed form"),
    "distlfm/inference/series/forward.py": (44, "Each instance is solved with steps of its own"),
    "distlfm/inference/series/layers.py": (10, "a structured q"),
    "distlfm/inference/series/statespace.py": (10, "compiled by numba"),
    "distlfm/inference/series/variational/method.py": (219, "`inference.method=variational` fits a structured q"),
    "distlfm/instance.py": (23, "Values that NumPy masks"),
    "distlfm/likelihoods/base.py": (26, "`likelihood.drift`"),
    "distlfm/queries/asking.py": (7, "a spreadsheet would run as formulas"),
    "distlfm/report/federation.py": (18, "Sites vote"),
    "distlfm/runs/folder.py": (17, "`summary.json` of a fit has mean and deviation"),
    "distlfm/serve/app.py": (5, "Files are measured before they are unpacked"),
    "distlfm/serve/guard.py": (11, "opens by a token"),
    "distlfm/serve/server.py": (12, "opens by a token"),
    "distlfm/serve/sizes.py": (39, "Files are measured before they are unpacked"),
    "distlfm/solvers/kalman/__init__.py": (19, "compiled by numba"),
    "distlfm/solvers/linear.py": (8, "changing coefficients can be solved in closed form"),
    "distlfm/study/model.py": (35, "names the modules of its own likelihood, method and scheme"),
    "distlfm/study/parts.py": (25, "Each of several forces may have priors"),
    "distlfm/verbs/fit.py": (33, "`summary.json` of a fit has mean and deviation"),
    "federated/audit.py": (31, "signs the head of its audit log"),
    "federated/client_app.py": (64, "Work ends with the round's deadline"),
    "federated/link/authn.py": (45, "Tokens have a role"),
    "federated/link/control.py": (7, "Tokens have a role"),
    "federated/link/gate.py": (32, "Tokens have a role"),
    "federated/link/service.py": (7, "`--logs json`"),
    "federated/link/supernode.py": (17, "A stopped run's work ends"),
    "federated/refused.py": (3, "limits of its policy"),
    "federated/rounds.py": (64, "Sites vote"),
    "federated/secure/grid.py": (14, "covering noise"),
    "federated/secure/member.py": (35, "covering noise"),
    "federated/secure/memory.py": (52, "Rosters are compared in epochs"),
    "federated/secure/messages.py": (21, "signs the head of its audit log"),
    "federated/secure/mod.py": (131, "Rosters are compared in epochs"),
    "federated/secure/records.py": (10, "Sites vote"),
    "federated/server_app.py": (23, "Sites vote"),
    "federated/settings.py": (18, "shared noise"),
    "federated/setup/provision.py": (34, "limits of its policy"),
    "federated/simulation/sites.py": (21, "limits of its policy"),
    "federated/site/accounting.py": (22, "counted by privacy loss distributions"),
    "federated/site/cohort.py": (12, "keyed hash of that patient's own name"),
    "federated/site/policy.py": (48, "limits of its policy"),
    "federated/site/privacy.py": (36, "counted by privacy loss distributions"),
    "federated/site/work.py": (42, "limits of its policy"),
    "federated/strategy.py": (34, "Sites vote"),
}
"""Code lines that such capabilities added to modules which 0.1 has too, with words that the list of changes has for the
greatest of them: counted from commit d2c158b, where rooms were laid out and the share was 0.950, to 1bd828e. Where a
module was split, the lines of all parts count, less those of the whole. What grows elsewhere, or further, counts as
lines of 0.1 until it is recorded here with its capability.
"""

LIKELIHOODS, SCHEME = "distlfm/likelihoods/", "distlfm/solvers/field/scheme.py"
NAMING_OPTIONS = ("distlfm/config/", "distlfm/study/")
"""What turns a user's words into a section `likelihood` of a config."""

WEIGHTS = {f"scheme.{name}" for name in ("old", "new", "pulse")}

HEAD = "distlfm/lfo/heads.py"
STAGES = ("first", "second", "stage")
"""What stages of the head are called where they are used."""

HOPS = {"fit of a series": 70, "fit of a field": 85, "query": 40}

NOT_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)

TRACER = """
import os, sys, threading

# Taken away, so that programs which this process starts are not traced.
trace, given = os.environ.pop("HOUSE_TRACE", None), os.environ.pop("HOUSE_ROOTS", "")
roots = tuple(os.path.realpath(one) + os.sep for one in given.split(os.pathsep))
inside, seen = {}, set()
FUNCTION = 1  # inspect.CO_OPTIMIZED: bodies of modules and of classes are not

def is_inside(name):
    if name not in inside:
        path = os.path.realpath(name)
        inside[name] = path if path.startswith(roots) else ""
    return inside[name]

def imported(frame):
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and is_inside(code.co_filename) and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False

def called(frame, event, _):
    if event != "call":
        return
    code = frame.f_code
    path = is_inside(code.co_filename)
    if not path or path in seen or not code.co_flags & FUNCTION or imported(frame):
        return
    seen.add(path)
    # At once, as a process may be killed.
    with open(os.path.join(trace, str(os.getpid())), "a") as file:
        file.write(path + "\\n")

if trace:
    threading.setprofile(called)
    sys.setprofile(called)
"""


def run(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` leaves out the verbs."""
    modules = {name: (PROJECT / name).read_text() for name in sorted(modules_of(PROJECT))}
    lines = {name: text.count("\n") for name, text in modules.items()}
    code = {name: code_lines(text) for name, text in modules.items()}
    since = sum(code[name] for name in SINCE)
    grown = sum(added for added, _ in GROWN.values())
    whole = sum(code.values())
    rooms = Counter(str(Path(name).parent) for name in modules)
    importers = importers_of(modules)
    alone = sorted(name for name, one in importers.items() if len(one) == 1)
    figures = {
        "modules of what version 0.1 has too": at_most(len(modules) - len(SINCE), MODULES),
        "code lines of what version 0.1 has too, share": at_most((whole - since - grown) / BASELINE_LINES, SHARE),
        "modules of a folder, most": at_most(max(rooms.values()), MODULES_OF_A_FOLDER),
        "lines of a module, most": at_most(max(lines.values()), LINES_OF_A_MODULE),
    }
    changing = changing_with(modules)
    figures |= {f"modules that change with {what}": at_most(len(changing[what]), n) for what, n in CHANGING.items()}
    touched = {} if quick else traced()
    for name, most in HOPS.items() if touched else ():
        figures[f"modules that a {name} goes through"] = at_most(len(set(touched[name]) - SINCE.keys()), most)
    return {
        "figures": figures,
        "modules": {"all": len(modules), "of capabilities since": len(SINCE)},
        "code lines": {
            "all": whole,
            "of modules since": since,
            "of capabilities since in other modules": grown,
            "all, share": whole / BASELINE_LINES,
            "without modules since, share": (whole - since) / BASELINE_LINES,
        },
        "version 0.1": {"modules": BASELINE_MODULES, "code lines": BASELINE_LINES, "gone through": BASELINE_HOPS},
        "modules with one importer": len(alone),
        "folders": dict(rooms.most_common()),
        "largest": dict(Counter(lines).most_common(10)),
        "one importer": alone,
        "changing": changing,
        "all modules that are gone through": {name: len(passed) for name, passed in touched.items()},
        "touched": touched,
    }


def modules_of(project: Path) -> Iterator[str]:
    """Paths of all modules in the project; links to the top-level folders are not followed."""
    for root in ROOTS:
        for folder, below, files in os.walk(project / root):
            below[:] = [one for one in below if not (Path(folder) / one).is_symlink()]
            for file in files:
                if file.endswith(".py"):
                    yield str((Path(folder) / file).relative_to(project))


@cache
def parsed(text: str) -> ast.Module:
    """The syntax of a module."""
    return ast.parse(text)


def code_lines(text: str) -> int:
    """Lines with code, of which docstrings (and other bare strings), comments and blank lines are none."""
    bare: set[int] = set()
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            bare.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - bare)


def module_name(path: str) -> str:
    """As it is imported."""
    parts = Path(path).with_suffix("").parts
    whole = parts if parts[0] == ROOTS[0] else (ROOTS[0], *parts)
    return ".".join(whole[:-1] if whole[-1] == "__init__" else whole)


def importers_of(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """For each module, which others import it."""
    paths = {module_name(path): path for path in modules}
    found: dict[str, set[str]] = {path: set() for path in modules}
    for path, text in modules.items():
        for name in _imported(text, path):
            if name in paths and paths[name] != path:
                found[paths[name]].add(path)
    return found


def _imported(text: str, path: str) -> Iterator[str]:
    """Names that import statements may mean: of `from a import b` both a.b and a, as b may be a module."""
    here = module_name(path).split(".")
    package = here if Path(path).name == "__init__.py" else here[:-1]
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def changing_with(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Modules that change with the likelihood, with the time scheme, and with the operator's head."""
    from distlfm.lfo.heads import Stage
    from distlfm.lfo.settings import OperatorConfig
    from distlfm.likelihoods import LIKELIHOODS as SHIPPED
    from distlfm.likelihoods import LikelihoodConfig

    own = {module_name(path) for path in modules if path.startswith(LIKELIHOODS)}
    options = LikelihoodConfig.model_fields.keys() - {"kind"}
    parameters = {name for one in SHIPPED.values() for name in one.keys}
    internals = own - {"distlfm.likelihoods", "distlfm.likelihoods.base"}
    internals |= {f"likelihood.options.{name}" for name in options}
    internals |= {f"likelihood.{name}" for name in options - {"drift"}}  # which is in the contract
    internals |= {repr(name) for name in (options | parameters) - {"noise", "prior", "shared"}}  # common words
    layers = "|".join(name for name, _ in Stage(8, 0, OperatorConfig(), 1, 1).named_children())
    weight = re.compile(rf"\b({'|'.join(STAGES)})\.({layers})\b")
    heads = [path for path, text in modules.items() if path == HEAD or any(map(weight.search, _named(text)))]
    return {
        "the likelihood": naming(modules, internals, (LIKELIHOODS, *NAMING_OPTIONS)),
        "the time scheme": naming(modules, WEIGHTS, (SCHEME,)),
        "the operator's head": heads,
    }


def naming(modules: Mapping[str, str], internals: Set[str], apart: tuple[str, ...]) -> list[str]:
    """Modules of `distlfm/`, but for those apart, that name one of these: imports, ends of dotted names, and strings in
    quotes.
    """
    return [
        path
        for path, text in modules.items()
        if path.startswith("distlfm/") and not path.startswith(apart)
        if not internals.isdisjoint({*_imported(text, path), *_named(text)})
    ]


def _named(text: str) -> Iterator[str]:
    """All ends of dotted names, of a.b.c both b.c and a.b.c, and strings in quotes."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield repr(node.value)
        end, above = "", node
        while isinstance(above, ast.Attribute):
            end, above = f".{above.attr}{end}", above.value
            yield end.removeprefix(".")
        if isinstance(above, ast.Name) and end:
            yield above.id + end


def traced() -> dict[str, list[str]]:
    """Modules that each verb goes through, with small data made for it."""
    with tempfile.TemporaryDirectory(prefix="house-") as scratch:
        folder = Path(scratch)
        sensitivity = "mechanism.fixed.sensitivity.output_0=1"
        genes, field, store = folder / "genes.npz", folder / "field.npz", folder / "genes.zarr"
        _distlfm("simulate", "transcription", "--instances", 1, "--out", genes, "num_outputs=2", sensitivity)
        where = ("mechanism.fixed.sensitivity=1", "stop=1", "points=9", "places=9")
        _distlfm("simulate", "reaction_diffusion", "--instances", 1, "--out", field, *where)
        drawn = ("--instances", 60, "--out", store, "points=12", "num_outputs=2", "run.executor=serial")
        _distlfm("generate", CONFIGS / "generate/transcription.yaml", *drawn)
        tiny = ("operator.layers=1", "operator.width=8", "operator.modes=4", "operator.points=12", "loop.epochs=1")
        learned = ("--data", store, "--out", folder / "operator", "run.launcher=inline", *tiny)
        training = _traced("train", CONFIGS / "train/transcription.yaml", *learned)
        few = ("inference.posterior.stages=[5]", "inference.posterior.draws=8", "run.executor=serial")
        series = ("--data", genes, "--out", folder / "series", *few)
        mesh = ("data.dataset=null", "data.fraction=1", "mechanism.mesh.size=0.1", "inference.field.refinements=0")
        fields = ("--data", field, "--out", folder / "fields", *mesh, *few)
        return {
            "fit of a series": _traced("fit", CONFIGS / "fit/transcription.yaml", *series),
            "fit of a field": _traced("fit", CONFIGS / "fit/reaction_diffusion_noisy.yaml", *fields),
            "training": training,
            "query": _traced("query", folder / "operator", genes, "--out", folder / "answers"),
            "secure round": _traced("federated", "simulate", *_one_round(folder / "federation", tiny)),
        }


def _one_round(folder: Path, tiny: Iterable[str]) -> tuple[object, ...]:
    """Run one round of four sites with generated patients; the sums are secure, and in one process."""
    small = ", ".join(("run.launcher=inline", *tiny))
    return (
        *(CONFIGS / "federated/glucose.yaml", "--out", folder, "data=generated", "patients=12", "personal=1"),
        *("programme.rounds=1", "programme.task.steps=2", "programme.task.batch=8"),
        *("base.generate_with=[instances=40, points=49, run.executor=serial]", f"base.train_with=[{small}]"),
    )


def _traced(*arguments: object) -> list[str]:
    """Run a verb; the modules that it went through, as paths in the project."""
    with tempfile.TemporaryDirectory(prefix="house-") as tracer, tempfile.TemporaryDirectory(prefix="house-") as trace:
        # Python imports a module of this name before any program.
        (Path(tracer) / "sitecustomize.py").write_text(TRACER)
        roots = os.pathsep.join(str(PROJECT / root) for root in ROOTS)
        path = os.pathsep.join([tracer, str(PROJECT)])
        _distlfm(*arguments, environment={"PYTHONPATH": path, "HOUSE_TRACE": trace, "HOUSE_ROOTS": roots})
        touched = {line for file in Path(trace).iterdir() for line in file.read_text().splitlines()}
    return sorted(str(Path(one).relative_to(PROJECT)) for one in touched)


def _distlfm(*arguments: object, environment: Mapping[str, str] | None = None) -> None:
    given = [str(one) for one in arguments]
    around = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", **(environment or {})}
    command = [sys.executable, "-m", "distlfm", *given]
    done = subprocess.run(command, cwd=PROJECT, env=around, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"distlfm {' '.join(given)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
