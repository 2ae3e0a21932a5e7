"""One picture of a federation: what each site gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.report.style import BAND68, INFERRED, MEASURED, QUIET, house, new_figure, plain

MODELS = (
    ("base", "before tuning", QUIET, "x"),
    ("local", "the site alone", MEASURED, "o"),
    ("federated", "federated", INFERRED, "D"),
    ("pooled", "all data pooled", BAND68, "s"),
)


def draw(told: Mapping[str, Any], path: Path) -> None:
    """Two panels of a summary: on the other sites' patients, and on a site's own; a column a site."""
    names = list(told["local"])
    at = np.arange(len(names))
    with house():
        figure = new_figure(2.8)
        for panel, (title, content) in enumerate(
            (("other sites' patients", told), ("the site's own patients", told["own"]))
        ):
            axes = figure.add_subplot(1, 2, panel + 1)
            for number, (model, label, colour, marker) in enumerate(MODELS):
                values = [content[model][name] for name in names]
                axes.plot(at + 0.12 * (number - 1.5), values, marker, color=colour, label=label, markersize=4.5)
            personal = content.get("personal")
            if personal:
                values = [personal[name] for name in names]
                axes.plot(at + 0.12 * 2.5, values, "^", color=INFERRED, fillstyle="none", label="personalised")
            axes.set_xticks(at, [plain(name) for name in names])
            axes.set_title(title)
            axes.set_ylabel("loss of held-out patients")
            axes.grid(axis="y", linewidth=0.4, color="#DDDDDD")
            axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        figure.savefig(path, format=path.suffix.removeprefix("."))
