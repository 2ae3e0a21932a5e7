"""Does torch compute?"""

from __future__ import annotations

import platform

from distlfm.pipeline.probes.answer import expect, load, reply


def check() -> str:
    torch = load("torch")
    product = torch.ones(2, 3) @ torch.ones(3, 2)
    expect(product.sum().item() == 12.0, "a product of two matrices is wrong")
    return f"Python {platform.python_version()}, torch {torch.__version__}"


if __name__ == "__main__":
    reply(check)
