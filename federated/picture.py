"""One picture of a federation: what each site gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.typing import FillStyleType

from distlfm.report.style import BAND68, INFERRED, MEASURED, QUIET, house, new_figure, plain

MODELS: tuple[tuple[str, str, str, str, FillStyleType], ...] = (
    ("base", "before tuning", QUIET, "x", "full"),
    ("local", "the site alone", MEASURED, "o", "full"),
    ("federated", "federated", INFERRED, "D", "full"),
    ("pooled", "all data pooled", BAND68, "s", "full"),
)
PERSONAL: tuple[str, str, str, str, FillStyleType] = ("personal", "personalised", INFERRED, "^", "none")
"""Names, label, colour, marker and its filling."""


def draw(told: Mapping[str, Any], path: Path) -> None:
    """Two panels of a summary, with standard errors: on the other sites' patients, and on a site's own."""
    names = list(told["local"])
    at = np.arange(len(names))
    with house():
        figure = new_figure(2.8)
        errors = told["standard_errors"]
        panels = (("other sites' patients", told, errors), ("the site's own patients", told["own"], errors["own"]))
        for panel, (title, content, unsure) in enumerate(panels):
            axes = figure.add_subplot(1, 2, panel + 1)
            shown = [*MODELS, *([PERSONAL] if content.get("personal") else [])]
            for number, (model, label, colour, marker, style) in enumerate(shown):
                axes.errorbar(
                    at + 0.12 * (number - 1.5),
                    [content[model][name] for name in names],
                    [unsure[model][name] or 0.0 for name in names],
                    fmt=marker,
                    color=colour,
                    label=label,
                    markersize=4.5,
                    elinewidth=0.8,
                    fillstyle=style,
                )
            axes.set_xticks(at, [plain(name) for name in names])
            axes.set_title(title)
            axes.set_ylabel("loss of held-out patients")
            axes.grid(axis="y", linewidth=0.4, color="#DDDDDD")
            axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        figure.savefig(path, format=path.suffix.removeprefix("."))
