"""An operator as one program for those who do not have distlfm: calibrated means and intervals, nothing else to know.

The network has no complex numbers and no FFT, so that every format can hold it. The grid is that of the training.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from distlfm.errors import MissingExtra, UsageError
from distlfm.lfo import GridDim, Operator, OperatorSchema
from distlfm.mechanisms.build import import_plugins
from distlfm.queries.asking import find_checkpoint, mark
from distlfm.store.files import put_quickly, replacing, storing

INPUTS = ("values", "mask")
OUTPUTS = (
    "force_mean",
    "force_sd",
    "force_lower95",
    "force_upper95",
    "parameter_mean",
    "parameter_lower95",
    "parameter_upper95",
)
LARGEST = 65536
"""Instances that an exported program takes at once, at most."""


class Program(nn.Module):
    """values, mask [B, P, *grid] → the tensors named in OUTPUTS: forces [B, L, *grid], parameters [B, K]."""

    force_factor: Tensor
    force_width: Tensor
    params_width: Tensor

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.model = operator.model
        calibration, wide = operator.calibration, (-1, *(1,) * len(operator.schema.dims))
        # Not named as an output is: ONNX has one name for each thing.
        self.register_buffer("force_factor", torch.tensor([one.sd for one in calibration.forces]).view(wide))
        self.register_buffer("force_width", torch.tensor([one.width95 for one in calibration.forces]).view(wide))
        params = [one.sd * one.width95 for one in calibration.parameters]
        self.register_buffer("params_width", torch.tensor(params))

    def forward(self, values: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        output = self.model(values, mask)
        sd = (0.5 * output.force_logvar).exp() * self.force_factor
        half = sd * self.force_width
        params = output.params
        params_half = (0.5 * output.params_logvar).exp() * self.params_width
        physical = self.model.normal.physical
        return (
            output.force,
            sd,
            output.force - half,
            output.force + half,
            physical(params),
            physical(params - params_half),
            physical(params + params_half),
        )


def export(checkpoint: str | Path, out: str | Path, form: str = "torch_export", plugins: Sequence[str] = ()) -> Path:
    """Write the program and, beside it, a .json file that says what goes in and what comes out.

    plugins: modules to import first.
    """
    import_plugins(plugins)
    if form not in FORMATS:
        raise UsageError(f"There is no export format {form!r}.", f"Known are: {', '.join(FORMATS)}.")
    path, target = find_checkpoint(checkpoint), Path(out)
    operator = Operator.load(path)
    program = Program(operator).eval()
    about = {"format": form, "checkpoint": mark(path), **contract(operator)}
    with storing(target.name, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            draft.touch()  # a place that cannot be written to is refused before the work
            FORMATS[form](program, examples(operator), draft)
            put_quickly(target.with_suffix(".json"), (json.dumps(about, indent=2) + "\n").encode())
    return target


def contract(operator: Operator) -> dict[str, Any]:
    """What goes in and what comes out, as plain data."""
    schema = operator.schema
    return {
        "inputs": {
            "values": "[batch, outputs, *grid] observed values; where none was observed, interpolated ones",
            "mask": "[batch, outputs, *grid] 1 where a value was observed, else 0",
        },
        "outputs": list(OUTPUTS),
        "names": {"outputs": schema.outputs, "forces": schema.forces, "parameters": schema.parameters},
        "grid": [dim.model_dump() for dim in schema.dims],
        "units": dict(schema.units),
        "fixed": dict(schema.fixed),
    }


def described(checkpoint: str | Path, plugins: Sequence[str] = ()) -> dict[str, str]:
    """An operator in a few lines. plugins: modules to import first."""
    import_plugins(plugins)
    path = find_checkpoint(checkpoint)
    operator = Operator.load(path)
    schema, training = operator.schema, operator.training
    description = {
        "checkpoint": mark(path),
        "mechanism": str(schema.mechanism.get("kind", "unknown")),
        "takes": _named(schema, schema.outputs),
        "over": ", ".join(_range(schema, dim) for dim in schema.dims),
        "gives": _named(schema, schema.forces),
        "parameters": _named(schema, schema.parameters),
        "known parameters": ", ".join(f"{name} = {value:g}" for name, value in schema.fixed.items()) or "none",
        "weights": str(sum(one.numel() for one in operator.model.parameters())),
        "calibrated on": f"{operator.calibration.instances} instances" if operator.calibration.instances else "nothing",
    }
    best = training.get("best") or {}
    description |= {
        name.replace("_", " "): f"{best[name]:.4g}" for name in ("validation_q2", "validation_loss") if name in best
    }
    return description | ({"to be known": " ".join(operator.notices)} if operator.notices else {})


def _named(schema: OperatorSchema, names: Sequence[str]) -> str:
    units = {name: schema.known_unit(name) for name in names}
    return ", ".join(f"{name} ({unit})" if unit else name for name, unit in units.items())


def _range(schema: OperatorSchema, dim: GridDim) -> str:
    ends = f"{dim.name} {dim.start:g} … {dim.stop:g} {schema.known_unit(dim.name) or ''}".rstrip()
    return f"{ends} ({dim.size} points)"


def examples(operator: Operator) -> tuple[Tensor, Tensor]:
    """Inputs of the right shape, two instances of them: a batch of one would be taken for a constant."""
    size = (2, len(operator.schema.outputs), *operator.schema.shape)
    return torch.zeros(size), torch.ones(size)


def _any_batch() -> tuple[Any, Any]:
    """The shapes of both inputs, of any number of instances."""
    batch = torch.export.Dim("batch", min=1, max=LARGEST)
    return {0: batch}, {0: batch}


def _torch_export(program: Program, given: tuple[Tensor, Tensor], path: Path) -> None:
    exported = torch.export.export(program, given, dynamic_shapes=_any_batch())
    buffer = io.BytesIO()  # a disk that fills while torch writes to it ends the process
    torch.export.save(exported, buffer)
    path.write_bytes(buffer.getvalue())


def _torchscript(program: Program, given: tuple[Tensor, Tensor], path: Path) -> None:
    with warnings.catch_warnings():
        # Shapes are read as numbers on purpose: the grid is fixed. And TorchScript itself is deprecated.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(program, given, check_trace=False)
        buffer = io.BytesIO()  # what torch writes itself, it tells nobody why it cannot
        torch.jit.save(traced, buffer)
    path.write_bytes(buffer.getvalue())


def _onnx(program: Program, given: tuple[Tensor, Tensor], path: Path) -> None:
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"ONNX needs {' and '.join(missing)}.", "Install them with: pip install onnx onnxscript")
    names: dict[str, Any] = {"input_names": INPUTS, "output_names": OUTPUTS}
    exported = torch.onnx.export(program, given, dynamic_shapes=_any_batch(), dynamo=True, verbose=False, **names)
    assert exported is not None
    exported.save(str(path))


FORMATS: dict[str, Callable[[Program, tuple[Tensor, Tensor], Path], None]] = {
    "torch_export": _torch_export,
    "torchscript": _torchscript,
    "onnx": _onnx,
}
