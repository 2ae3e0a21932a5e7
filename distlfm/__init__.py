"""distlfm infers latent forces: the unseen inputs that drive a system whose equation is known.

>>> import distlfm as lfm
>>> model = lfm.Model(lfm.Transcription(["p21", "mdm2"]), force=lfm.RBF(lengthscale=lfm.LogNormal(2.0, 0.3)))

`model.fit(data)` fits what `read_frame` and `read_xarray` read, and a list of `Instance`; `model.simulate(4)` draws
instances. The verbs of the command line are functions too: `fit`, `generate`, `train`, `query`. Everything is imported
when first used, so that `import distlfm` and the command line's help stay quick.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from distlfm.instance import Instance as Instance
from distlfm.instance import Truth as Truth
from distlfm.version import __version__ as __version__

if TYPE_CHECKING:
    from distlfm.answer import Answer as Answer
    from distlfm.answer import Draw as Draw
    from distlfm.answer import Draws as Draws
    from distlfm.answer import Exceedance as Exceedance
    from distlfm.answer import Integral as Integral
    from distlfm.answer import Parameters as Parameters
    from distlfm.answer import PeakHeight as PeakHeight
    from distlfm.answer import PeakTime as PeakTime
    from distlfm.answer import Summary as Summary
    from distlfm.data import ReadReport as ReadReport
    from distlfm.data import read as read
    from distlfm.data import read_frame as read_frame
    from distlfm.data import read_xarray as read_xarray
    from distlfm.inference.archive import load_fit as load_fit
    from distlfm.inference.archive import save_fit as save_fit
    from distlfm.inference.result import FitResult as FitResult
    from distlfm.lfo.operator import Operator as Operator
    from distlfm.mechanisms import FieldMechanism as FieldMechanism
    from distlfm.mechanisms import Mechanism as Mechanism
    from distlfm.mechanisms import Parameter as Parameter
    from distlfm.mechanisms import register as register
    from distlfm.mechanisms.cascade import Cascade as Cascade
    from distlfm.mechanisms.field import AdvectionDiffusion as AdvectionDiffusion
    from distlfm.mechanisms.field import FisherKpp as FisherKpp
    from distlfm.mechanisms.field import ReactionDiffusion as ReactionDiffusion
    from distlfm.mechanisms.glucose import Glucose as Glucose
    from distlfm.mechanisms.linear_ode import LinearODE as LinearODE
    from distlfm.mechanisms.lotka_volterra import LotkaVolterra as LotkaVolterra
    from distlfm.mechanisms.nonparametric import Nonparametric as Nonparametric
    from distlfm.mechanisms.priors import HalfNormal as HalfNormal
    from distlfm.mechanisms.priors import LogNormal as LogNormal
    from distlfm.mechanisms.priors import Normal as Normal
    from distlfm.mechanisms.priors import Uniform as Uniform
    from distlfm.mechanisms.transcription import Transcription as Transcription
    from distlfm.store import Store as Store
    from distlfm.study.model import Model as Model
    from distlfm.study.parts import RBF as RBF
    from distlfm.study.parts import Gaussian as Gaussian
    from distlfm.study.parts import Kernel as Kernel
    from distlfm.study.parts import Likelihood as Likelihood
    from distlfm.study.parts import Matern12 as Matern12
    from distlfm.study.parts import Matern32 as Matern32
    from distlfm.study.parts import Matern52 as Matern52
    from distlfm.study.parts import NegativeBinomial as NegativeBinomial
    from distlfm.study.parts import Periodic as Periodic
    from distlfm.study.parts import Poisson as Poisson
    from distlfm.study.parts import Product as Product
    from distlfm.study.parts import Sum as Sum
    from distlfm.verbs.estimate import Estimate as Estimate
    from distlfm.verbs.estimate import estimate as estimate
    from distlfm.verbs.evaluate import evaluate as evaluate
    from distlfm.verbs.fit import FitRun as FitRun
    from distlfm.verbs.fit import fit as fit
    from distlfm.verbs.generate import generate as generate
    from distlfm.verbs.query import query as query
    from distlfm.verbs.train import train as train

_HOMES = {
    one.name: str(node.module)
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[__name__])))
    if isinstance(node, ast.ImportFrom)
    for one in node.names
    if one.asname and one.asname not in globals()
}
"""The module that each name above is imported from when it is first used: said once, for checkers and for Python."""

if not TYPE_CHECKING:  # checkers take the imports above, each under its own name, for what is exported
    __all__ = sorted([*_HOMES, "Instance", "Truth", "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'distlfm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What is exported, submodules that are loaded, and what every module has."""
    loaded = (name for name in globals() if name.startswith("__") or f"distlfm.{name}" in sys.modules)
    return sorted({*globals()["__all__"], *loaded})
