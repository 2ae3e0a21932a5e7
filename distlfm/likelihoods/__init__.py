"""How data scatter around the outputs: one file a family. Importing this package registers those that are shipped."""

from distlfm.likelihoods import gaussian, counts  # isort: skip (the order in which a config's error names them)
from distlfm.likelihoods.base import (
    LIKELIHOODS,
    Likelihood,
    LikelihoodConfig,
    Observed,
    build_likelihood,
    register_likelihood,
)

__all__ = [
    "LIKELIHOODS",
    "Likelihood",
    "LikelihoodConfig",
    "Observed",
    "build_likelihood",
    "counts",
    "gaussian",
    "register_likelihood",
]
