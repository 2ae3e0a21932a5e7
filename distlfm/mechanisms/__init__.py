"""Equations: one file per mechanism. Importing this package registers those that are shipped."""

from distlfm.mechanisms import cascade as cascade
from distlfm.mechanisms import glucose as glucose
from distlfm.mechanisms import linear_ode as linear_ode
from distlfm.mechanisms import lotka_volterra as lotka_volterra
from distlfm.mechanisms import nonparametric as nonparametric
from distlfm.mechanisms import transcription as transcription
from distlfm.mechanisms.base import REGISTRY as REGISTRY
from distlfm.mechanisms.base import Mechanism as Mechanism
from distlfm.mechanisms.base import MechanismConfig as MechanismConfig
from distlfm.mechanisms.base import System as System
from distlfm.mechanisms.base import join_states as join_states
from distlfm.mechanisms.base import register as register
from distlfm.mechanisms.base import zero_state as zero_state
from distlfm.mechanisms.build import build_mechanism as build_mechanism
from distlfm.mechanisms.build import build_system as build_system
from distlfm.mechanisms.build import find_system as find_system
from distlfm.mechanisms.build import known_systems as known_systems
from distlfm.mechanisms.field import FieldMechanism as FieldMechanism
from distlfm.mechanisms.priors import Parameter as Parameter
from distlfm.mechanisms.priors import ParameterSpace as ParameterSpace
from distlfm.mechanisms.priors import Values as Values
