"""The page of a simulated federation: what each site gains, and what it gave for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distlfm.report.page import Cell, Figure, Provenance, Section, Table, cell_text, write_page

MODELS = {"base": "before tuning", "local": "the site alone", "federated": "federated", "pooled": "all data pooled"}


def federation_page(
    path: Path, told: Mapping[str, Any], picture: Path, config_text: str, versions: Mapping[str, str], seed: int | None
) -> Path:
    """Write the page. told: what summary.json says. picture: an SVG of what each site gains."""
    provenance = Provenance(
        config=config_text,
        versions=versions,
        seed=seed,
        hash=told.get("config_hash"),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        more={"strategy": told["strategy"], "data": told["data"], "rounds": told["rounds"]},
    )
    sections = [_worth(told, picture), _price(told)]
    return write_page(path, "A federation of sites, simulated", sections, provenance)


def sites_figure(told: Mapping[str, Any], picture: Path) -> Figure:
    """The picture of a federation, with words."""
    names = list(told["local"])
    better = sum(told["federated"][name] < told["local"][name] for name in names)
    caption = "Loss on held-out patients of the other sites, and of the site itself; less is better."
    alt = f"The loss of each model for {len(names)} sites; the federated one beats {better} of them tuned alone."
    return Figure(caption, alt, svg=picture.read_text(encoding="utf-8"))


def _worth(told: Mapping[str, Any], picture: Path) -> Section:
    text = (
        f"{len(told['local'])} sites tuned an operator together, and their patients stayed at home. The figure in the "
        f"tables is the {told['figure']}. A model before tuning, one that a site tuned alone, the federation's, and "
        "one tuned on everybody's data in one place are compared on patients whom none of them learned from. Means are "
        "given with their standard errors over those patients. The gain is how much less the loss of the federation's "
        "model is than that of the site alone, patient by patient: one that is below twice its error may be chance."
    )
    if told["data"] == "generated":
        text += " The patients of these sites are generated: real ones may gain less."
    gains = [_sure(one["mean"], one["standard_error"]) for one in told["advantage"].values()]
    elsewhere = _table("On patients of the other sites.", told, told["standard_errors"], gains)
    own = _table("On the site's own patients.", told["own"], told["standard_errors"]["own"])
    return Section("What a site gains", text, [sites_figure(told, picture)], [elsewhere, own])


def _table(
    caption: str, means: Mapping[str, Any], errors: Mapping[str, Any], gains: Sequence[str] | None = None
) -> Table:
    models = {**MODELS, **({"personal": "personalised"} if means.get("personal") else {})}
    rows: list[list[Cell]] = [
        [name, *(_sure(means[model].get(name), errors[model].get(name)) for model in models)] for name in means["local"]
    ]
    if gains is None:
        return Table(caption, ("site", *models.values()), rows)
    rows = [[*row, gain] for row, gain in zip(rows, gains, strict=True)]
    return Table(caption, ("site", *models.values(), "gain"), rows)


def _sure(mean: float | None, error: float | None) -> str:
    """A mean with as many digits as its standard error tells, two of it."""
    if mean is None or not error:
        return cell_text(mean)
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _price(told: Mapping[str, Any]) -> Section:
    text = (
        f"{told['rounds']} rounds sent {told['bytes'] / 1e6:.1f} MB both ways; the weights of round "
        f"{told['kept_round']} were kept. Sums of the sites' updates were seen, never one site's own. ε bounds what "
        "the result can tell about one patient: the smaller, the less; – is a site without a budget."
    )
    rows: list[list[Cell]] = [[name, told["patients"].get(name), told["epsilon"].get(name)] for name in told["local"]]
    table = Table("What the sites spent.", ("site", "held-out patients", "ε spent"), rows)
    return Section("What it took", text, tables=[table])
