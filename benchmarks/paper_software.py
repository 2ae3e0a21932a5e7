"""alfi 1.0.2, the software of the paper, unchanged: fetched from PyPI for a benchmark, never a part of distlfm.

Its wheel is checked against its hash and unpacked into a temporary folder. It runs with the torch and gpytorch that are
here; packages that it imports and that PyPI does not have, or that only its plots need, get the stand-ins below.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

VERSION = "1.0.2"
STAND_INS = ("torchcubicspline", "pytorch_lightning", "seaborn", "arviz", "fenics", "fenics_adjoint", "torch_fenics")
WHEEL = f"alfi=={VERSION} --hash=sha256:53e9397176a41e3ab995db5b5fd5bab83fc0482ce646fe1fad8759a67613228a"


@contextlib.contextmanager
def software() -> Iterator[None]:
    """Within it, `part` finds alfi's modules, and what they print is swallowed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "alfi.txt").write_text(WHEEL + "\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        where = ["--target", f"{folder}/site", "--requirement", f"{folder}/alfi.txt"]
        subprocess.run([*command, *where], check=True)
        before = set(sys.modules)
        sys.path.insert(0, f"{folder}/site")
        _stand_in()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            sys.path.remove(f"{folder}/site")
            for name in {one.partition(".")[0] for one in set(sys.modules) - before} & {"alfi", *STAND_INS}:
                for module in [one for one in sys.modules if one.partition(".")[0] == name]:
                    del sys.modules[module]


def part(name: str) -> Any:
    """A module of alfi."""
    return importlib.import_module(f"alfi.{name}" if name else "alfi")


def _stand_in() -> None:
    gpytorch.lazy.DiagLazyTensor = linear_operator.operators.DiagLinearOperator  # its name of today
    _module("torchcubicspline", natural_cubic_spline_coeffs=_NaturalSpline.through, NaturalCubicSpline=lambda one: one)
    _module("pytorch_lightning", LightningModule=torch.nn.Module)
    _module("seaborn", color_palette=lambda *_: ["black"] * 10, kdeplot=None, set=lambda **_: None)
    _module("arviz")
    _module("fenics", __all__=[])
    _module("fenics_adjoint", __all__=[])
    _module("torch_fenics", FEniCSModule=torch.nn.Module)


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    vars(module).update(content, __spec__=ModuleSpec(name, None))
    sys.modules[name] = module


class _NaturalSpline:
    """A natural cubic spline [..., times, channels], as torchcubicspline's; there is only one through given points."""

    def __init__(self, times: Tensor, values: Tensor) -> None:
        self._kind = values.dtype
        self._curve = CubicSpline(times.numpy(), values.detach().numpy(), axis=-2, bc_type="natural")

    @classmethod
    def through(cls, times: Tensor, values: Tensor) -> _NaturalSpline:
        return cls(times, values)

    def evaluate(self, times: Tensor) -> Tensor:
        return self.derivative(times, order=0)

    def derivative(self, times: Tensor, order: int = 1) -> Tensor:
        return torch.from_numpy(np.asarray(self._curve(times.numpy(), order))).to(self._kind)
