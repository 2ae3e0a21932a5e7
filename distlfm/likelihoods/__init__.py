"""How data scatter around the outputs: one file a family. Importing this package registers those that are shipped."""

from distlfm.likelihoods import gaussian as gaussian  # isort: skip (the order in which a config's error names them)
from distlfm.likelihoods import counts as counts
from distlfm.likelihoods.base import LIKELIHOODS as LIKELIHOODS
from distlfm.likelihoods.base import Likelihood as Likelihood
from distlfm.likelihoods.base import LikelihoodConfig as LikelihoodConfig
from distlfm.likelihoods.base import Observed as Observed
from distlfm.likelihoods.base import build_likelihood as build_likelihood
from distlfm.likelihoods.base import register_likelihood as register_likelihood
