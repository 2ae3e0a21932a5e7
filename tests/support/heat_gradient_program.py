"""Run in a process of its own: a heat equation's functional, gradient and Taylor remainders, as one line of JSON.

u_t = div(k grad u) + f on the unit square, u = 0 on its border, backward Euler; J is the integral of u² at the end.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from distlfm.solvers.fem.forms.adjoint import import_adjoint

NUM_CELLS, NUM_STEPS, STEP = 8, 4, 0.05


def main() -> None:
    adjoint = import_adjoint()
    import dolfin
    import ufl_legacy

    dolfin.set_log_level(dolfin.LogLevel.ERROR)
    mesh = adjoint.UnitSquareMesh(NUM_CELLS, NUM_CELLS)
    space = dolfin.FunctionSpace(mesh, "P", 1)
    force = adjoint.interpolate(adjoint.Expression("1 + sin(3*x[0])*x[1]", degree=1), space)
    diffusivity = adjoint.Constant(0.3)
    functional = solve_heat(adjoint, dolfin, space, force, diffusivity)

    force_change = adjoint.interpolate(adjoint.Expression("cos(2*x[0]) - x[1]", degree=1), space)
    force_control, diffusivity_control = adjoint.Control(force), adjoint.Control(diffusivity)
    gradient = adjoint.compute_gradient(functional, [force_control, diffusivity_control])
    answer = {
        "functional": float(functional),
        "force_derivative": float(gradient[0].vector().inner(force_change.vector())),
        "diffusivity_derivative": float(gradient[1]),
        "force": rates(adjoint, functional, force_control, force, force_change),
        "diffusivity": rates(adjoint, functional, diffusivity_control, diffusivity, adjoint.Constant(0.1)),
        "one_form_class": ufl_legacy.Form is type(dolfin.TrialFunction(space) * dolfin.TestFunction(space) * dolfin.dx),
        "num_ranks": dolfin.MPI.size(mesh.mpi_comm()),
    }
    if dolfin.MPI.rank(mesh.mpi_comm()) == 0:
        sys.stdout.write("\n" + json.dumps(answer) + "\n")


def solve_heat(adjoint: Any, dolfin: Any, space: Any, force: Any, diffusivity: Any) -> Any:
    trial, test = dolfin.TrialFunction(space), dolfin.TestFunction(space)
    border = adjoint.DirichletBC(space, adjoint.Constant(0.0), "on_boundary")
    before, after = adjoint.Function(space), adjoint.Function(space)
    left = (trial * test + STEP * diffusivity * dolfin.inner(dolfin.grad(trial), dolfin.grad(test))) * dolfin.dx
    right = (before + STEP * force) * test * dolfin.dx
    for _ in range(NUM_STEPS):
        # A direct solver: the comparison of one rank with two must not see an iteration's tolerance.
        adjoint.solve(left == right, after, border, solver_parameters={"linear_solver": "mumps"})
        before.assign(after)
    return adjoint.assemble(after * after * dolfin.dx)


def rates(adjoint: Any, functional: Any, control: Any, value: Any, change: Any) -> dict[str, list[float]]:
    """Orders at which J(m + h dm) − J(m) vanishes without and with the gradient's term: 1 and 2 if it is right."""
    found = adjoint.taylor_to_dict(adjoint.ReducedFunctional(functional, control), value, change)
    return {order: [float(rate) for rate in found[order]["Rate"]] for order in ("R0", "R1")}


if __name__ == "__main__":
    main()
