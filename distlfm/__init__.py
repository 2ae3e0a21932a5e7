"""distlfm infers latent forces: the unseen inputs that drive a system whose equation is known.

>>> import distlfm as lfm
>>> model = lfm.Model(lfm.Transcription(["p21", "mdm2"]), force=lfm.RBF(lengthscale=lfm.LogNormal(2.0, 0.3)))

`model.fit(data)` fits what `read_frame` and `read_xarray` read, and a list of `Instance`. The verbs of the command line
are functions too: `fit`, `generate`, `train`, `query`. Everything is imported when first used, so that `import distlfm`
and the command line's help stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from distlfm.instance import Instance, Truth
from distlfm.version import __version__

if TYPE_CHECKING:
    from distlfm.answer import Answer, Draw, Draws, Exceedance, Integral, Parameters, PeakHeight, PeakTime, Summary
    from distlfm.data import ReadReport, read, read_frame, read_xarray
    from distlfm.inference.archive import load as load_fit
    from distlfm.inference.archive import save as save_fit
    from distlfm.inference.result import FitResult
    from distlfm.lfo.operator import Operator
    from distlfm.mechanisms import FieldMechanism, Mechanism, Parameter, register
    from distlfm.mechanisms.cascade import Cascade
    from distlfm.mechanisms.glucose import Glucose
    from distlfm.mechanisms.linear_ode import LinearODE
    from distlfm.mechanisms.lotka_volterra import LotkaVolterra
    from distlfm.mechanisms.nonparametric import Nonparametric
    from distlfm.mechanisms.priors import HalfNormal, LogNormal, Normal, Uniform
    from distlfm.mechanisms.shipped_fields import AdvectionDiffusion, FisherKpp, ReactionDiffusion
    from distlfm.mechanisms.transcription import Transcription
    from distlfm.simulation.instances import simulate
    from distlfm.store import Store
    from distlfm.study import (
        RBF,
        Gaussian,
        Kernel,
        Likelihood,
        Matern12,
        Matern32,
        Matern52,
        Model,
        NegativeBinomial,
        Periodic,
        Poisson,
        Product,
        Sum,
    )
    from distlfm.verbs.evaluate import evaluate
    from distlfm.verbs.fit import FitRun, fit
    from distlfm.verbs.generate import generate
    from distlfm.verbs.query import query
    from distlfm.verbs.train import train

_NAMES = {
    "distlfm.answer": (
        "Answer",
        "Draw",
        "Draws",
        "Exceedance",
        "Integral",
        "Parameters",
        "PeakHeight",
        "PeakTime",
        "Summary",
    ),
    "distlfm.data": (
        "ReadReport",
        "read",
        "read_frame",
        "read_xarray",
    ),
    "distlfm.inference.archive": (
        "load_fit",
        "save_fit",
    ),
    "distlfm.inference.result": ("FitResult",),
    "distlfm.lfo.operator": ("Operator",),
    "distlfm.mechanisms": (
        "FieldMechanism",
        "Mechanism",
        "Parameter",
        "register",
    ),
    "distlfm.mechanisms.cascade": ("Cascade",),
    "distlfm.mechanisms.glucose": ("Glucose",),
    "distlfm.mechanisms.linear_ode": ("LinearODE",),
    "distlfm.mechanisms.lotka_volterra": ("LotkaVolterra",),
    "distlfm.mechanisms.nonparametric": ("Nonparametric",),
    "distlfm.mechanisms.priors": (
        "HalfNormal",
        "LogNormal",
        "Normal",
        "Uniform",
    ),
    "distlfm.mechanisms.shipped_fields": (
        "AdvectionDiffusion",
        "FisherKpp",
        "ReactionDiffusion",
    ),
    "distlfm.mechanisms.transcription": ("Transcription",),
    "distlfm.verbs.evaluate": ("evaluate",),
    "distlfm.verbs.fit": (
        "FitRun",
        "fit",
    ),
    "distlfm.verbs.generate": ("generate",),
    "distlfm.verbs.query": ("query",),
    "distlfm.simulation.instances": ("simulate",),
    "distlfm.verbs.train": ("train",),
    "distlfm.store": ("Store",),
    "distlfm.study": (
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
    ),
}
_RENAMED = {"load_fit": "load", "save_fit": "save"}
"""Where the name in its module is another one."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "RBF",
    "AdvectionDiffusion",
    "Answer",
    "Cascade",
    "Draw",
    "Draws",
    "Exceedance",
    "FieldMechanism",
    "FisherKpp",
    "FitResult",
    "FitRun",
    "Gaussian",
    "Glucose",
    "HalfNormal",
    "Instance",
    "Integral",
    "Kernel",
    "Likelihood",
    "LinearODE",
    "LogNormal",
    "LotkaVolterra",
    "Matern12",
    "Matern32",
    "Matern52",
    "Mechanism",
    "Model",
    "NegativeBinomial",
    "Nonparametric",
    "Normal",
    "Operator",
    "Parameter",
    "Parameters",
    "PeakHeight",
    "PeakTime",
    "Periodic",
    "Poisson",
    "Product",
    "ReactionDiffusion",
    "ReadReport",
    "Store",
    "Sum",
    "Summary",
    "Transcription",
    "Truth",
    "Uniform",
    "__version__",
    "evaluate",
    "fit",
    "generate",
    "load_fit",
    "query",
    "read",
    "read_frame",
    "read_xarray",
    "register",
    "save_fit",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'distlfm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
