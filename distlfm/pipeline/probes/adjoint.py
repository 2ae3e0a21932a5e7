"""Does dolfin-adjoint differentiate a form of the installed dolfin?"""

from __future__ import annotations

import importlib.metadata

from distlfm.pipeline.probes.answer import expect, load, reply
from distlfm.solvers.fem.adjoint import import_adjoint


def check() -> str:
    adjoint = import_adjoint()
    dolfin = load("dolfin")
    dolfin.set_log_level(dolfin.LogLevel.ERROR)
    space = dolfin.FunctionSpace(adjoint.UnitIntervalMesh(2), "P", 1)
    force = adjoint.interpolate(adjoint.Constant(3.0), space)
    squared = adjoint.assemble(force * force * dolfin.dx)
    gradient = adjoint.compute_gradient(squared, adjoint.Control(force))
    # The derivative of ∫f² in the direction 1 is ∫2f.
    expect(abs(gradient.vector().sum() - 6) < 1e-12, "the gradient of a square is wrong")
    return f"dolfin-adjoint {importlib.metadata.version('dolfin-adjoint')}"


if __name__ == "__main__":
    reply(check)
