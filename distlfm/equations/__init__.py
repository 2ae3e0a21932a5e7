"""Partial differential equations as weak forms. Nothing here imports torch or dolfin: helpers start quickly."""

from distlfm.equations import advection_diffusion as advection_diffusion
from distlfm.equations import fisher_kpp as fisher_kpp
from distlfm.equations import reaction_diffusion as reaction_diffusion
from distlfm.equations.base import EQUATIONS as EQUATIONS
from distlfm.equations.base import Coefficient as Coefficient
from distlfm.equations.base import Equation as Equation
from distlfm.equations.base import positive as positive
from distlfm.equations.base import real as real
from distlfm.equations.base import register_equation as register_equation
