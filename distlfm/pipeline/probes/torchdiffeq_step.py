"""Does torchdiffeq solve an equation?"""

from __future__ import annotations

import math

from distlfm.pipeline.probes.answer import expect, load, reply


def check() -> str:
    torchdiffeq = load("torchdiffeq")
    torch = load("torch")
    decay = torchdiffeq.odeint(lambda _, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]))
    expect(abs(decay[-1].item() - math.exp(-1)) < 1e-5, "the solution of y' = -y is wrong")
    return f"torchdiffeq {torchdiffeq.__version__}"


if __name__ == "__main__":
    reply(check)
