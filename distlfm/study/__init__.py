"""A study in Python: a model made of its parts, fitted to instances; a config file is the same, written down."""

from distlfm.study.forces import RBF, Kernel, Matern12, Matern32, Matern52, Periodic, Product, Sum
from distlfm.study.model import Model
from distlfm.study.noise import Gaussian, Likelihood, NegativeBinomial, Poisson

__all__ = [
    "RBF",
    "Gaussian",
    "Kernel",
    "Likelihood",
    "Matern12",
    "Matern32",
    "Matern52",
    "Model",
    "NegativeBinomial",
    "Periodic",
    "Poisson",
    "Product",
    "Sum",
]
