"""distlfm infers latent forces: the unseen inputs that drive a system whose equation is known.

The verbs are functions: `fit`, `generate`, `simulate`, `save_fit`, `load_fit`. They are imported when first used, so
that `import distlfm` and the command line's help stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from distlfm.instance import Instance, Truth
from distlfm.version import __version__

if TYPE_CHECKING:
    from distlfm.inference.archive import load as load_fit
    from distlfm.inference.archive import save as save_fit
    from distlfm.inference.result import FitResult
    from distlfm.lfo.operator import Operator
    from distlfm.mechanisms import Mechanism, register
    from distlfm.pipeline.evaluate import evaluate
    from distlfm.pipeline.fit import FitRun, fit
    from distlfm.pipeline.generate import generate
    from distlfm.pipeline.query import query
    from distlfm.pipeline.simulate import simulate
    from distlfm.pipeline.train import train
    from distlfm.store import Store

_HOMES = {
    "FitResult": ("distlfm.inference.result", "FitResult"),
    "FitRun": ("distlfm.pipeline.fit", "FitRun"),
    "Mechanism": ("distlfm.mechanisms", "Mechanism"),
    "fit": ("distlfm.pipeline.fit", "fit"),
    "Operator": ("distlfm.lfo.operator", "Operator"),
    "evaluate": ("distlfm.pipeline.evaluate", "evaluate"),
    "generate": ("distlfm.pipeline.generate", "generate"),
    "load_fit": ("distlfm.inference.archive", "load"),
    "save_fit": ("distlfm.inference.archive", "save"),
    "query": ("distlfm.pipeline.query", "query"),
    "register": ("distlfm.mechanisms", "register"),
    "Store": ("distlfm.store", "Store"),
    "train": ("distlfm.pipeline.train", "train"),
    "simulate": ("distlfm.pipeline.simulate", "simulate"),
}

__all__ = [
    "FitResult",
    "FitRun",
    "Instance",
    "Mechanism",
    "Operator",
    "Store",
    "Truth",
    "__version__",
    "evaluate",
    "fit",
    "generate",
    "load_fit",
    "query",
    "register",
    "save_fit",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'distlfm' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
