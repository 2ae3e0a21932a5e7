"""Does GPyTorch evaluate a kernel?"""

from __future__ import annotations

from distlfm.pipeline.probes.answer import expect, load, reply


def check() -> str:
    gpytorch = load("gpytorch")
    torch = load("torch")
    covariance = gpytorch.kernels.RBFKernel()(torch.zeros(1, 1)).to_dense()
    expect(abs(covariance.item() - 1) < 1e-6, "a kernel's covariance of a point with itself is not 1")
    return f"gpytorch {gpytorch.__version__}"


if __name__ == "__main__":
    reply(check)
