"""The page of a federation's run: what its rounds brought, as far as sums over all sites tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distlfm.report.page import Cell, Provenance, Section, Table, write_page

SHOWN_LAST = ("seconds", "bytes")


def rounds_page(path: Path, told: Mapping[str, Any], provenance: Provenance) -> Path:
    """Write the page. told: `rounds`, `kept_round` and `history`, a mapping a round, as a run gives them."""
    history: Sequence[Mapping[str, Any]] = told["history"]
    text = (
        f"{told['rounds']} rounds were run, and the weights of round {told['kept_round']} were kept. Every figure is a "
        "mean over the patients of all sites that were in the sum, and belongs to the model that the round began with; "
        "nothing is known here of one site alone. – is what was not measured: figures are told only if all sites "
        "answer. How much better a model is for other patients, no single figure says: compare it with the scatter "
        "from round to round."
    )
    names = list(dict.fromkeys(name for line in history for name in line))
    names = [name for name in names if name not in SHOWN_LAST] + [name for name in SHOWN_LAST if name in names]
    rows: list[list[Cell]] = [[line.get(name) for name in names] for line in history]
    table = Table("Round by round.", tuple(name.replace("_", " ") for name in names), rows)
    return write_page(
        path, "A run of a federation", [Section("What the rounds brought", text, tables=[table])], provenance
    )
