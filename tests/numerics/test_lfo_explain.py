"""What an equation leaves unexplained near an answer: noise for data that follow it, and more for any others."""

from __future__ import annotations

import math

import torch

from distlfm.lfo import GridDim, OperatorConfig, OperatorSchema
from distlfm.lfo.model import FourierOperator, OperatorOutput
from distlfm.lfo.novelty import explain
from distlfm.lfo.physics import GridSolver

GENES = ("a", "b", "c", "d")
NAMES = tuple(f"{kind}[{gene}]" for kind in ("basal", "sensitivity", "decay") for gene in GENES)
SCHEMA = OperatorSchema(
    mechanism={"kind": "transcription", "outputs": GENES, "initial": "steady"},
    outputs=GENES,
    forces=("f",),
    parameters=NAMES,
    parameter_kinds=("mechanism",) * len(NAMES),
    dims=(GridDim(name="time", size=121, start=0.0, stop=12.0),),
)
NOISE, FORCE_SD, PARAMETER_SD = 0.01, 0.05, 0.02
LATER = 40
"""Steps after which a late observer starts."""


def exact(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs [B, P, T] with noise, forces [B, 1, T] and parameters [B, K]."""
    random = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 12, 121)
    rate, phase = (torch.rand(count, 1, 1, generator=random) for _ in range(2))
    force = torch.sin((0.6 + rate) * t + 6 * phase) + 0.5 * torch.cos(1.7 * t + 3 * phase)
    size = (count, len(GENES))
    parts = [low + wide * torch.rand(size, generator=random) for low, wide in ((0.1, 0.2), (0.5, 1.5), (0.3, 0.4))]
    params = torch.cat(parts, -1)
    outputs = GridSolver(SCHEMA)(force, params)
    return outputs + NOISE * torch.randn(outputs.shape, generator=random), force, params


def answer(force: torch.Tensor, params: torch.Tensor) -> OperatorOutput:
    """An answer that is as wrong as it says."""
    random = torch.Generator().manual_seed(1)
    t = torch.linspace(0, math.pi, force.shape[-1])
    wrong = torch.cos(3 * t) + torch.sin(5 * t)
    return OperatorOutput(
        force=force + FORCE_SD * wrong,
        force_logvar=torch.full_like(force, 2 * math.log(FORCE_SD)),
        params=params + PARAMETER_SD * torch.randn(params.shape, generator=random),
        params_logvar=torch.full_like(params, 2 * math.log(PARAMETER_SD)),
        unit=torch.ones(len(force), 1),
        summary=torch.zeros(len(force), 1),
    )


def left(values: torch.Tensor, given: OperatorOutput, schema: OperatorSchema = SCHEMA) -> torch.Tensor:
    """Mean square [B] of what is left, in units of the noise."""
    model = FourierOperator(OperatorConfig(layers=1, width=4, modes=2, head=4, pooled=2, regressions=0), schema)
    noise = torch.full((len(values), len(GENES)), NOISE)
    residual = GridSolver(schema).residual(values, given.force, given.params)
    return explain(model, values, given, noise, residual).left.square().flatten(1).mean(-1)


def test_of_data_that_follow_the_equation_less_than_the_noise_is_left_though_the_answer_is_wrong() -> None:
    values, force, params = exact(40)  # more than are looked at together
    given = answer(force, params)
    unmoved = GridSolver(SCHEMA).residual(values, given.force, given.params).square().flatten(1).mean(-1) / NOISE**2
    assert float(unmoved.median()) > 10
    assert float(left(values, given).max()) < 1


def test_a_late_start_is_left_unexplained() -> None:
    """From then on all follows the equation, but does not begin at rest."""
    values, force, params = exact(40)
    rest = SCHEMA.model_copy(update={"dims": (GridDim(name="time", size=81, start=0.0, stop=8.0),)})
    late = left(values[..., LATER:], answer(force[..., LATER:], params), rest)
    early = left(values[..., :81], answer(force[..., :81], params), rest)
    assert float((late > early.max()).float().mean()) > 0.9
