"""A fit on disk: one npz file an instance, with the data, the posterior's draws and the model's description.

Only plain arrays and JSON text are written, and nothing is unpickled on reading.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from distlfm.answer import Band
from distlfm.config import build
from distlfm.errors import OtherWork, UsageError
from distlfm.inference.base import Fit
from distlfm.inference.fit import method_of
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.optimise import Status
from distlfm.inference.result import FitResult, Prediction, results_of
from distlfm.instance import Instance, Truth
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system

SCHEMA = 3


def describe(model: Model) -> dict[str, Any]:
    """A model as plain data, from which `model_from` makes it anew."""
    if model.kernel is not None:
        raise UsageError(
            f"A fit with the kernel object {type(model.kernel).__name__} cannot be saved: a file holds no code.",
            "Describe the kernel in force.kernel, or keep the result in memory.",
        )
    return {
        "mechanism": model.system.options.model_dump(mode="json"),
        "force": model.force.model_dump(mode="json"),
        "likelihood": model.likelihood.options.model_dump(mode="json"),
    }


def model_from(description: dict[str, Any]) -> Model:
    """The model that a description tells of; its mechanism must be registered."""
    return Model(
        build_system(description["mechanism"]),
        build(ForceConfig, description["force"]),
        build(LikelihoodConfig, description["likelihood"]),
    )


def save(result: FitResult, path: Path | str) -> None:
    """Write one instance's fit. The file appears whole or not at all."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(packed(result))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def packed(result: FitResult) -> bytes:
    """One instance's fit as the content of a file."""
    instance, row = result.instance, result.row
    header = {
        "schema": SCHEMA,
        "id": instance.id,
        "outputs": instance.outputs,
        "metadata": dict(instance.metadata),
        "method": result.method,
        "status": result.status,
        "notice": result.advice.removeprefix(Status[result.status.upper()].advice).strip(),
        "bound": result.bound,
        "effective": result.effective_draws,
        "seconds": result.seconds,
        "model": describe(result.posterior.model),
        "settings": method_of(result.posterior.model, result.method).settings(result.posterior),
    }
    arrays: dict[str, Any] = {"times": instance.times, "values": instance.values, "mask": instance.mask}
    if instance.variance is not None:
        arrays["variance"] = instance.variance
    if instance.positions is not None:
        arrays["positions"], arrays["grid_positions"] = instance.positions, result.grid.positions
    arrays["trace"], arrays["grid_times"] = result.trace, result.grid.times
    for name, tensor in result.posterior.state().items():
        arrays[f"state_{name}"] = tensor[row].numpy()
    arrays |= _truth_arrays(instance.truth)
    arrays |= _band_arrays("grid", result.grid) | _band_arrays("data", result.at_data)
    file = io.BytesIO()
    np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)
    return file.getvalue()


def load(path: Path | str) -> FitResult:
    """Read a fit that `save` wrote; it predicts as the original does."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(str(archive["header"]))
            arrays = {name: archive[name] for name in archive.files if name != "header"}
    except FileNotFoundError:
        raise UsageError(f"There is no fit {path}.", "Fits are in the folder 'fits' of a run.") from None
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path} is not a saved fit: {error}.", "Give a file that `distlfm fit` wrote.") from None
    if header["schema"] != SCHEMA:
        raise OtherWork(
            f"{path} has the schema {header['schema']}, and this version reads {SCHEMA}.",
            "Fit again, or use the version of distlfm that wrote it.",
        )
    instance = Instance(
        header["id"],
        tuple(header["outputs"]),
        arrays["times"],
        arrays["values"],
        arrays["mask"],
        positions=arrays.get("positions"),
        variance=arrays.get("variance"),
        truth=_truth_from(arrays),
        metadata=header["metadata"],
    )
    model = model_from(header["model"])
    observations = collate([instance], model.system.outputs)
    state = {
        name.removeprefix("state_"): torch.from_numpy(array).unsqueeze(0)
        for name, array in arrays.items()
        if name.startswith("state_")
    }
    method = method_of(model, header["method"])
    posterior = method.restore(model, observations, header["settings"], state)
    fit = Fit(
        posterior,
        bound=torch.tensor([header["bound"]], dtype=torch.float64),
        status=torch.tensor([int(Status[header["status"].upper()])]),
        iterations=torch.zeros(1, dtype=torch.long),
        effective=torch.tensor([header["effective"]], dtype=torch.float64),
        trace=torch.from_numpy(arrays["trace"]).unsqueeze(-1),
        notices=(header["notice"],),
    )
    grids = torch.from_numpy(arrays["grid_times"]).unsqueeze(0)
    if "grid_positions" in arrays:
        grids = torch.cat([grids.unsqueeze(-1), torch.from_numpy(arrays["grid_positions"]).unsqueeze(0)], -1)
    at_data = observations.points[0]
    bands = _bands_from("grid", grids[0], arrays), _bands_from("data", at_data, arrays)
    return results_of(fit, [instance], grids, header["seconds"], ([bands[0]], [bands[1]]))[0]


def _band_arrays(name: str, prediction: Prediction) -> dict[str, Any]:
    """What was predicted, so that a fit that is read again need not compute it."""
    return {
        f"{name}_{what}": np.stack([getattr(getattr(prediction, what), column) for column in Band.__dataclass_fields__])
        for what in ("force", "outputs")
    }


def _bands_from(name: str, points: Tensor, arrays: dict[str, Any]) -> Prediction:
    force, outputs = (Band(*arrays[f"{name}_{what}"]) for what in ("force", "outputs"))
    if points.dim() == 1:
        return Prediction(points.numpy(), force, outputs)
    return Prediction(points[:, 0].numpy(), force, outputs, points[:, 1:].numpy())


class SavedFits(Sequence[FitResult]):
    """Fits on disk as a sequence: each is read when it is asked for, and none is kept."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> FitResult: ...
    @overload
    def __getitem__(self, index: slice) -> SavedFits: ...
    def __getitem__(self, index: int | slice) -> FitResult | SavedFits:
        return SavedFits(self.paths[index]) if isinstance(index, slice) else load(self.paths[index])


TRUTH = ("force", "outputs", "positions", "scored")


def _truth_arrays(truth: Truth | None) -> dict[str, Any]:
    if truth is None:
        return {}
    curves = {f"truth_{name}": getattr(truth, name) for name in ("times", *TRUTH)}
    curves = {name: curve for name, curve in curves.items() if curve is not None}
    curves["truth_measured"] = np.array(truth.measured)
    return curves | {f"truth_value_{name}": np.asarray(value) for name, value in truth.parameters.items()}


def _truth_from(arrays: dict[str, Any]) -> Truth | None:
    if "truth_times" not in arrays:
        return None
    first = "truth_value_"
    values = {name.removeprefix(first): array for name, array in arrays.items() if name.startswith(first)}
    force, outputs, positions, scored = (arrays.get(f"truth_{name}") for name in TRUTH)
    measured = bool(arrays["truth_measured"])
    return Truth(arrays["truth_times"], force, outputs, positions, values, scored, measured)
