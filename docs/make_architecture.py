"""Write what docs/architecture.md says of rooms, layers and roads, from the repository itself.

python docs/make_architecture.py            write these parts of the page
python docs/make_architecture.py --check    exit code 1 if the committed page is not what this program writes
"""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "architecture.md"
PACKAGES = ("distlfm", "federated", "launch")

ROADS: dict[str, dict[str, str]] = {
    "fit of a series": {
        "distlfm/cli/fit.py": "the options of `distlfm fit`",
        "distlfm/verbs/fit.py": "the verb: from a config to a run folder",
        "distlfm/runs/settings.py": "the config is checked",
        "distlfm/data/npz.py": "a reader makes instances of the file",
        "distlfm/fleets/fit_plan.py": "instances become blocks, a store is opened, a job is made",
        "distlfm/fleets/driver.py": "blocks go to workers, progress comes back",
        "distlfm/cluster/blocks/serial.py": "the worker in this process; `distlfm/cluster/ray/pool.py` has the others",
        "distlfm/fleets/fit_job.py": "a worker fits a block and writes it",
        "distlfm/inference/model.py": "mechanism, kernels and likelihood with the vector of all unknowns",
        "distlfm/solvers/linear.py": "the equation is probed for linearity; a linear one needs no steps",
        "distlfm/inference/fit.py": "the method that suits the mechanism is chosen",
        "distlfm/inference/series/fourier.py": "waves on a circle stand for a smooth force, where that is exact enough",
        "distlfm/inference/collapsed.py": "the mode of the unknowns, the force integrated out",
        "distlfm/inference/optimise.py": "L-BFGS for a batch",
        "distlfm/inference/posterior.py": "the posterior of the unknowns",
        "distlfm/inference/result.py": "force and outputs with their bands, parameters with intervals",
        "distlfm/inference/findings/trust.py": "the answer is checked, and may become `unreliable`",
        "distlfm/store/store.py": "the block is written, then its marker",
        "distlfm/report/fit_page.py": "`report.html`",
    },
    "fit of a field": {
        "distlfm/verbs/fit.py": "the same verb",
        "distlfm/mechanisms/field.py": "a weak form as a mechanism",
        "distlfm/equations/base.py": "equation, mesh, boundary conditions and start, as plain data",
        "distlfm/solvers/field/meshed.py": "the engine is chosen by the size of the mesh",
        "distlfm/solvers/fem/group/owner.py": "a helper process with FEniCS assembles the matrices once",
        "distlfm/solvers/field/dense.py": "time steps of a small mesh, for a batch",
        "distlfm/inference/field/settings.py": "mesh, steps and inducing points follow from the data",
        "distlfm/inference/field/fit.py": "instances on one mesh, refined until the answer stays the same",
        "distlfm/inference/field/map.py": "observations as a linear map of the force",
        "distlfm/inference/field/marginal.py": "the force integrated out",
        "distlfm/inference/posterior.py": "as for a series, and so is the rest",
        "distlfm/report/field_section.py": "maps and profiles in the report",
    },
    "training": {
        "distlfm/cli/train.py": "the options of `distlfm train`",
        "distlfm/verbs/train.py": "the verb: stores in, `operator.pt` out",
        "distlfm/training/settings.py": "the config is checked",
        "distlfm/training/work.py": "what each rank does, and what the first one writes",
        "distlfm/cluster/ranks/group.py": "the ranks join, if there are several",
        "distlfm/lfo/dataset.py": "examples from the stores",
        "distlfm/lfo/model.py": "the network",
        "distlfm/lfo/loss.py": "what it minimises",
        "distlfm/lfo/loop.py": "epochs, checkpoints, and going on from one",
        "distlfm/lfo/calibrate.py": "widths of the bands, from instances held out",
        "distlfm/lfo/checkpoint.py": "`operator.pt`",
        "distlfm/verbs/evaluate.py": "how good it is on instances that it has not seen",
        "distlfm/report/operator_page.py": "`report.html`",
    },
    "query": {
        "distlfm/cli/query.py": "the options of `distlfm query`",
        "distlfm/verbs/query.py": "the verb: an operator and data in, answers out",
        "distlfm/queries/asking.py": "the checkpoint and its names; answers as CSV and JSON",
        "distlfm/lfo/checkpoint.py": "it is read, and nothing in it is executed",
        "distlfm/fleets/sources.py": "instances, a few at a time",
        "distlfm/lfo/operator.py": "an instance in, an answer out",
        "distlfm/lfo/novelty.py": "the warning, if the data are unlike those of the training",
    },
    "secure round": {
        "distlfm/cli/federated.py": "the options of `distlfm federated`",
        "federated/rounds.py": "the coordinator's rounds: ask, join, keep",
        "federated/strategy.py": "how the answers of the sites become one operator",
        "federated/secure/grid.py": "the messages of one secure sum",
        "federated/client_app.py": "a message arrives at a site",
        "federated/site/policy.py": "the site's policy answers first",
        "federated/site/work.py": "the site tunes the operator on its patients",
        "federated/codec.py": "weights become one vector",
        "federated/secure/mod.py": "the vector leaves the site masked",
        "federated/secure/member.py": "the site's side of the sum: state in, state out",
        "federated/secure/memory.py": "what the site remembers until the next message",
        "federated/secure/gatherer.py": "the coordinator's side: only the sum is unmasked",
        "federated/audit.py": "every step is a line of the log",
    },
}
"""Where a reader should stop on each road of `benchmarks.house.traced`, in order, and what happens there."""


def rooms() -> Iterator[tuple[str, str]]:
    """Every package with the first sentence of its docstring."""
    for root in PACKAGES:
        for path in sorted((PROJECT / root).rglob("__init__.py")):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            first = " ".join(text.partition("\n\n")[0].split())
            yield str(path.parent.relative_to(PROJECT)), first


def layers() -> Iterator[list[str]]:
    """From the top; those of one layer import nothing of each other."""
    contracts = configparser.ConfigParser()
    contracts.read(PROJECT / ".importlinter")
    for line in contracts["importlinter:contract:layers"]["layers"].strip().splitlines():
        yield [name.strip(" ()") for name in line.split("|")]


def parts() -> dict[str, str]:
    """What stands between the marks of the page, by their name."""
    tree = ["| room | what is in it |", "|---|---|", *(f"| `{room}/` | {told} |" for room, told in rooms())]
    order = [f"{number}. {', '.join(f'`{name}`' for name in names)}" for number, names in enumerate(layers(), 1)]
    found = {"rooms": tree, "layers": order}
    for road, stops in ROADS.items():
        found[road] = [f"{number}. `{path}`: {what}" for number, (path, what) in enumerate(stops.items(), 1)]
    return {name: "\n".join(lines) for name, lines in found.items()}


def written(page: str) -> str:
    """The page with all parts as they should be."""
    for name, text in parts().items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"{PAGE} needs one {begin} and one {end}.")
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"
    gone = [path for path in re.findall(r"`([\w/]+\.py)`", page) if not (PROJECT / path).is_file()]
    if gone:
        raise SystemExit(f"The page names files that do not exist: {', '.join(gone)}.")
    return page


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    new = written(page)
    if "--check" in sys.argv[1:]:
        if page != new:
            sys.stderr.write(f"{PAGE} is not what the repository is; run: python docs/make_architecture.py\n")
        return int(page != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
