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
    from distlfm.simulation.instances import simulate
    from distlfm.store import Store
    from distlfm.verbs.evaluate import evaluate
    from distlfm.verbs.fit import FitRun, fit
    from distlfm.verbs.generate import generate
    from distlfm.verbs.query import query
    from distlfm.verbs.train import train

_HOMES = {
    "FitResult": ("distlfm.inference.result", "FitResult"),
    "FitRun": ("distlfm.verbs.fit", "FitRun"),
    "Mechanism": ("distlfm.mechanisms", "Mechanism"),
    "fit": ("distlfm.verbs.fit", "fit"),
    "Operator": ("distlfm.lfo.operator", "Operator"),
    "evaluate": ("distlfm.verbs.evaluate", "evaluate"),
    "generate": ("distlfm.verbs.generate", "generate"),
    "load_fit": ("distlfm.inference.archive", "load"),
    "save_fit": ("distlfm.inference.archive", "save"),
    "query": ("distlfm.verbs.query", "query"),
    "register": ("distlfm.mechanisms", "register"),
    "Store": ("distlfm.store", "Store"),
    "train": ("distlfm.verbs.train", "train"),
    "simulate": ("distlfm.simulation.instances", "simulate"),
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
