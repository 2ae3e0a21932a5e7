"""Does dolfin compile and assemble a form?"""

from __future__ import annotations

from distlfm.pipeline.probes.answer import expect, load, reply


def check() -> str:
    dolfin = load("dolfin")
    dolfin.set_log_level(dolfin.LogLevel.ERROR)
    area = dolfin.assemble(dolfin.Constant(1.0) * dolfin.dx(dolfin.UnitSquareMesh(4, 4)))
    expect(abs(area - 1) < 1e-12, f"the unit square has area {area}")
    return f"dolfin {dolfin.__version__}"


if __name__ == "__main__":
    reply(check)
