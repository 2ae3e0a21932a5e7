"""Equations: one file a mechanism. Importing this package registers those that are shipped."""

from distlfm.mechanisms import cascade, glucose, linear_ode, lotka_volterra, nonparametric, transcription
from distlfm.mechanisms.base import REGISTRY, Mechanism, MechanismConfig, build_mechanism, register
from distlfm.mechanisms.parameters import Parameter, ParameterSpace, Values

__all__ = [
    "REGISTRY",
    "Mechanism",
    "MechanismConfig",
    "Parameter",
    "ParameterSpace",
    "Values",
    "build_mechanism",
    "cascade",
    "glucose",
    "linear_ode",
    "lotka_volterra",
    "nonparametric",
    "register",
    "transcription",
]
