"""Equations: one file per mechanism. Importing this package registers those that are shipped."""

from distlfm.mechanisms import cascade, glucose, linear_ode, lotka_volterra, nonparametric, transcription
from distlfm.mechanisms.base import REGISTRY, Mechanism, MechanismConfig, System, join_states, register, zero_state
from distlfm.mechanisms.build import build_mechanism, build_system, find_system, known_systems
from distlfm.mechanisms.field import FieldMechanism
from distlfm.mechanisms.priors import Parameter, ParameterSpace, Values

__all__ = [
    "REGISTRY",
    "FieldMechanism",
    "Mechanism",
    "MechanismConfig",
    "Parameter",
    "ParameterSpace",
    "System",
    "Values",
    "build_mechanism",
    "build_system",
    "cascade",
    "find_system",
    "glucose",
    "join_states",
    "known_systems",
    "linear_ode",
    "lotka_volterra",
    "nonparametric",
    "register",
    "transcription",
    "zero_state",
]
