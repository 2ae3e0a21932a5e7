"""A fit on disk: one npz file per instance, with the data, the posterior's draws and the model's description.

Only plain arrays and JSON text are written, and nothing is unpickled on reading.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from distlfm.answer import Band
from distlfm.config import build
from distlfm.errors import OtherWork, UsageError
from distlfm.inference.base import Fit
from distlfm.inference.fit import method_of
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.optimise import Status
from distlfm.inference.result import FitResult, Prediction, results_of
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.store.files import put_quickly

SCHEMA = 3
OBSERVED = ("times", "values", "mask", "positions", "variance")
TRUTH = ("force", "outputs", "positions", "scored")
STATE, TRUE_VALUE = "state_", "truth_value_"


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
    """The model of a description; its mechanism must be registered."""
    return Model(
        build_system(description["mechanism"]),
        build(ForceConfig, description["force"]),
        build(LikelihoodConfig, description["likelihood"]),
    )


def save_fit(result: FitResult, path: Path | str) -> None:
    """Write the fit of one instance. The file appears whole or not at all.

    result: of a fit. path: of the file, by custom with the ending .npz; one that is there is replaced. Raises
    `UsageError` if that is not a fit, or if its model has a kernel object, which a file cannot hold, and `OSError` if
    the file cannot be written.
    """
    if not isinstance(result, FitResult):
        raise UsageError(
            f"What to save is not a fit, but of type {type(result).__name__}.",
            'Give one of a run: save_fit(run[0], "one.npz").',
        )
    put_quickly(Path(path), packed(result))


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
        "tail": result.tail,
        "rhat": result.rhat,
        "seconds": result.seconds,
        "model": describe(result.posterior.model),
        "settings": method_of(result.posterior.model, result.method).settings(result.posterior),
    }
    arrays: dict[str, Any] = {name: getattr(instance, name) for name in OBSERVED}
    arrays |= {"trace": result.trace, "grid_times": result.grid.times, "grid_positions": result.grid.positions}
    arrays |= {f"{STATE}{name}": tensor[row].numpy() for name, tensor in result.posterior.state().items()}
    arrays |= _truth_arrays(instance.truth)
    arrays |= _band_arrays("grid", result.grid) | _band_arrays("data", result.at_data)
    known = {name: array for name, array in arrays.items() if array is not None}
    file = io.BytesIO()
    np.savez_compressed(file, header=np.array(json.dumps(header)), **known)
    return file.getvalue()


def load_fit(path: Path | str) -> FitResult:
    """Read a fit that `save_fit` wrote, and return it; it predicts as the original does.

    path: of the file; those of a run are in its folder `fits`. Its mechanism must be registered here. Raises
    `UsageError` if the file is not a saved fit, and `OtherWork` if another version wrote it.
    """
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
    observed: dict[str, Any] = {name: arrays.get(name) for name in OBSERVED}
    truth, metadata = _truth_from(arrays), header["metadata"]
    instance = Instance(header["id"], tuple(header["outputs"]), **observed, truth=truth, metadata=metadata)
    model = model_from(header["model"])
    observations = collate([instance], model.system.outputs)
    state = {name: torch.from_numpy(array).unsqueeze(0) for name, array in _under(STATE, arrays).items()}
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
        tail=torch.tensor([header.get("tail", 0.0)], dtype=torch.float64),
        rhat=None if header.get("rhat") is None else torch.tensor([header["rhat"]], dtype=torch.float64),
    )
    grids = torch.from_numpy(arrays["grid_times"]).unsqueeze(0)
    if "grid_positions" in arrays:
        grids = torch.cat([grids.unsqueeze(-1), torch.from_numpy(arrays["grid_positions"]).unsqueeze(0)], -1)
    places = (("grid", grids), ("data", observations.points))
    predicted = [[_bands_from(name, points[0].numpy(), arrays)] for name, points in places]
    return results_of(fit, [instance], grids, header["seconds"], predicted)[0]


def _band_arrays(name: str, prediction: Prediction) -> dict[str, Any]:
    """What was predicted, so that a fit that is read again need not compute it."""
    return {
        f"{name}_{what}": np.stack([getattr(getattr(prediction, what), column) for column in Band.__dataclass_fields__])
        for what in ("force", "outputs")
    }


def _bands_from(name: str, points: FloatArray, arrays: dict[str, Any]) -> Prediction:
    return Prediction.of(points, *(Band(*arrays[f"{name}_{what}"]) for what in ("force", "outputs")))


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
        return SavedFits(self.paths[index]) if isinstance(index, slice) else load_fit(self.paths[index])


def _under(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _truth_arrays(truth: Truth | None) -> dict[str, Any]:
    if truth is None:
        return {}
    curves = {f"truth_{name}": getattr(truth, name) for name in ("times", *TRUTH)}
    curves["truth_measured"] = np.array(truth.measured)
    return curves | {f"{TRUE_VALUE}{name}": np.asarray(value) for name, value in truth.parameters.items()}


def _truth_from(arrays: dict[str, Any]) -> Truth | None:
    if "truth_times" not in arrays:
        return None
    curves = {name: arrays.get(f"truth_{name}") for name in TRUTH}
    values, measured = _under(TRUE_VALUE, arrays), bool(arrays["truth_measured"])
    return Truth(arrays["truth_times"], parameters=values, measured=measured, **curves)
