"""Whether a force explains the data as well with its sign turned, as where an equation takes its square.

A search finds one of both; its bands then leave out half of what is as likely. Shapes: `S` draws, `L` forces.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from distlfm.inference.result import FitResult
from distlfm.inference.series.forward import SolvedPosterior

DRAWS = 8

COMPARABLE = 3.0
"""Largest difference of log-likelihoods at which both signs count, the best of some draws being compared."""

MIXED = 0.1
"""Share of draws on either side of zero from which both signs are in the answer."""


@torch.no_grad()
def mirrored(result: FitResult) -> Iterator[str]:
    """That the other sign of a force is left out, in words, for each force of which that is so."""
    posterior = result.posterior
    assert isinstance(posterior, SolvedPosterior)
    forward, row = posterior.forward, torch.tensor([result.row])
    every = posterior.w[:, row]
    some = every[:DRAWS]
    z, v = forward.split(some)
    here = forward.log_likelihood(some, row)[:, 0].max()
    for i, name in enumerate(result.force_names):
        turned = v.clone()
        turned[..., i, :] = -turned[..., i, :]
        other = forward.log_likelihood(torch.cat([z, turned.flatten(-2)], -1), row)[:, 0].max()
        if not torch.isfinite(other) or float(here - other) > COMPARABLE or _both_signs(forward.split(every)[1], i):
            continue
        yield (
            f"The force {name!r} explains the data as well with its sign turned, and the answer holds one sign only: "
            "its size is what the data tell. Give the equation a response that is positive, or read the force without "
            "its sign."
        )


def _both_signs(v: torch.Tensor, force: int) -> bool:
    """Whether draws v [S, 1, L, M] of a force lie on both sides of what turns into itself."""
    own = v[:, 0, force]
    side = (own @ own[0]) > 0
    return bool(MIXED < side.double().mean() < 1 - MIXED)
