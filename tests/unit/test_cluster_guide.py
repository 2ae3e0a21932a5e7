"""What docs/cluster.md says of scripts and sizes is what the scripts ask for, and what the model gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.scaling import sizes
from distlfm.verbs.estimate import CORES, EFFICIENCY, START_SECONDS

PROJECT = Path(__file__).resolve().parents[2]
GUIDE = (PROJECT / "docs" / "cluster.md").read_text(encoding="utf-8")
SCRIPTS = sorted((PROJECT / "slurm").glob("*.sbatch"))


def rows(first: str) -> list[list[str]]:
    """The rows of the table whose header begins with a word."""
    lines = GUIDE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    table = lines[start + 2 : start + 2 + lines[start + 2 :].index("")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def asked(script: Path) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?", script.read_text(), re.MULTILINE)
    return dict(found)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_guide_tells_what_a_script_asks_for(script: Path) -> None:
    (row,) = (row for row in rows("script") if row[0] == f"`slurm/{script.name}`")
    options = asked(script)
    assert row[4:7] == [options["cpus-per-task"], options["mem-per-cpu"], options["time"]]
    tasks = options.get("ntasks-per-node", options.get("ntasks"))
    assert re.match(r"\d+", row[2])[0] == tasks  # type: ignore[index]
    nodes = re.search(r"(\d+) nodes", row[2])
    assert (nodes[1] if nodes else "1") == options["nodes"]
    if "array" in options:
        assert f"{int(options['array'].partition('-')[2]) + 1} jobs" in row[2]
    if script.stem != "pipeline":
        assert {"requeue", "signal", "open-mode"} <= options.keys()
        assert options["signal"] == "B:USR1@120"


def test_the_sizes_of_the_guide_are_those_of_the_model() -> None:
    assert f"{EFFICIENCY:.2f}" in GUIDE
    assert f"{START_SECONDS:.0f} s" in GUIDE
    assert f"{CORES} cores" in GUIDE
    table = rows("kind")
    assert len(table) == 3
    for _, seconds, rate, *told in table:
        assert rate == f"{1 / float(seconds):.2g}"
        for count, cell in zip((10**4, 10**6), told, strict=True):
            found = sizes(count, float(seconds))
            assert cell == f"{found['nodes']:.0f} nodes, {found['hours']:.1f} h".replace("1 nodes", "1 node")


@pytest.mark.parametrize(
    ("instances", "seconds", "nodes"), [(1, 1.0, 1), (10**6, 1.0, 3), (10**6, 0.1, 1), (10**7, 1.0, 30)]
)
def test_the_model_gives_as_few_nodes_as_end_within_four_hours(instances: int, seconds: float, nodes: int) -> None:
    found = sizes(instances, seconds)
    assert found["nodes"] == nodes
    assert found["hours"] <= 4.0
    if nodes > 1:
        alone = START_SECONDS + instances * seconds / EFFICIENCY / ((nodes - 1) * CORES)
        assert alone > 4 * 3600
