"""What the page shows of one field: its figures with captions, and in words what is on them."""

from __future__ import annotations

from distlfm.inference.residuals import residuals
from distlfm.inference.result import FitResult
from distlfm.report.field_checks import plot_mesh, plot_residuals
from distlfm.report.field_profiles import NUM_PROFILES, plot_parameters, plot_profiles
from distlfm.report.field_view import FieldView
from distlfm.report.fields import plot_field
from distlfm.report.page import Figure, embed
from distlfm.report.words import assumed_words


def field_figures(result: FitResult, *, mapped: bool = True) -> list[Figure]:
    """Maps, profiles, residuals, mesh and parameters of a field that was fitted; unmapped, without the large ones."""
    view = FieldView(result)
    found = [_maps(view)] if mapped else []
    if view.dims == 1:
        found.append(_profiles(view))
    if mapped:
        found += _checks(view)
    if result.parameters:
        alt = f"Instance {result.id}: intervals of {len(result.parameters)} parameters."
        found.append(embed(plot_parameters(result), "Parameters with their intervals of 68 and 95 %.", alt))
    return found


def _maps(view: FieldView) -> Figure:
    known = view.true_force is not None
    where = {
        1: "over time and position",
        2: "at a few times, on the mesh",
        3: "at a few times, in the layer around the middle",
    }[view.dims]
    truth = " The truth, which the fit did not see, and the error of the mean have maps of their own." if known else ""
    if view.truth_factor != 1.0:
        truth += (
            f" It has the shape of the inferred force at another scale, and is shown times {view.truth_factor:.3g}, "
            "which fits best: without a known sensitivity a force has no scale of its own."
        )
    caption = (
        f"The output with the data, and the inferred {view.force}, {where}; sd is the posterior standard deviation of "
        f"the field itself, without measurement noise.{truth}"
    )
    shown = "mean, standard deviation, truth and error" if known else "mean and standard deviation"
    alt = (
        f"Instance {view.result.id}: maps of {view.output} and of the inferred {view.force} {where}: {shown}. "
        f"{_extremes(view)}"
    )
    return embed(plot_field(view), caption, alt)


def _extremes(view: FieldView) -> str:
    """Where the force is largest, for those who do not see the map."""
    grid = view.result.grid
    assert grid.positions is not None
    top = int(grid.force.mean[0].argmax())
    place = ", ".join(f"{x:.3g}" for x in grid.positions[top])
    return f"The force is largest, {grid.force.mean[0, top]:.3g}, at time {grid.times[top]:.3g} and position {place}."


def _profiles(view: FieldView) -> Figure:
    times = ", ".join(f"{time:.3g}" for time in view.times_shown(NUM_PROFILES))
    truth = " Dashed: the truth." if view.true_force is not None else ""
    alt = f"Instance {view.result.id}: the inferred {view.force} against position at the times {times}, with bands."
    return embed(plot_profiles(view), f"The inferred {view.force} along the line at a few times.{truth}", alt)


def _checks(view: FieldView) -> list[Figure]:
    found = []
    left = residuals(view.result)
    if left is not None and len(left):
        far = float((abs(left.values) > 1.96).mean())
        caption = (
            "What the fit leaves. A residual is divided by the deviation that it has if the model is right, so about "
            f"5 % should lie beyond ±1.96; {100 * far:.1f} % do. Colours that come in patches tell of a wrong equation."
        )
        alt = (
            f"Instance {view.result.id}: fitted against observed values, and {len(left)} standardised residuals where "
            f"they were observed; {100 * far:.1f} % are beyond 1.96."
        )
        found.append(embed(plot_residuals(view, left), caption, alt))
    if view.mesh is not None:
        assumed = assumed_words(view.result.posterior.model.field.field)
        words = f"The mesh: {view.mesh.words}. {assumed}"
        alt = f"Instance {view.result.id}: the mesh of {view.mesh.words}, with the places of the data."
        found.append(embed(plot_mesh(view), words, alt))
    return found
