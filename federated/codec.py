"""A model's weights as one vector, and the way back: what travels, what is tuned and stays, what is frozen.

Only parameters travel. Buffers (normalisation) are frozen from the generated set, and nothing of them is ever sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distlfm.errors import UsageError

Vector = NDArray[np.float64]
SHARED = "shared"
"""The name of the one array that travels."""


def chosen(names: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Those names that one of the patterns fits; a pattern that fits none is refused."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"No weight of the model is named {pattern!r}.", f"Some are: {', '.join(names[:5])}.")
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


class Codec:
    """The weights of a model that are shared, in the model's order, as one vector [D] of float64.

    shared, local: patterns of names, such as `second.*`; what is local is not shared, whatever `shared` says.
    A float32 survives the way there and back exactly.
    """

    def __init__(self, model: nn.Module, shared: Sequence[str] = ("*",), local: Sequence[str] = ()) -> None:
        shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
        if any(one.is_complex() for one in model.parameters()):
            # Noise and masks are added to real numbers; a complex weight would keep half of its own.
            raise UsageError("The model has complex weights.", "Store them as pairs of real numbers.")
        self.local = chosen(tuple(shapes), local)
        self.names = tuple(name for name in chosen(tuple(shapes), shared) if name not in self.local)
        if not self.names:
            raise UsageError("Nothing is shared: all weights stay local.", "Name fewer of them in task.local.")
        self.shapes = {name: shapes[name] for name in self.names}
        self.sizes = tuple(int(np.prod(shape, dtype=int)) for shape in self.shapes.values())
        self.size = sum(self.sizes)

    @property
    def digest(self) -> str:
        """A hash of names and shapes: two ends that agree on it mean the same weights."""
        text = "\n".join(f"{name} {shape}" for name, shape in self.shapes.items())
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self, state: Mapping[str, Tensor]) -> Vector:
        """The vector [D] of a state dict."""
        parts = [state[name].detach().to("cpu", torch.float64).reshape(-1) for name in self.names]
        found: Vector = torch.cat(parts).numpy()
        return found

    def decode(self, vector: Vector) -> dict[str, Tensor]:
        """Tensors by name, in float32."""
        self.check(vector)
        parts = torch.from_numpy(np.array(vector, dtype=np.float64)).split(self.sizes)
        shapes = self.shapes.items()
        return {name: part.reshape(shape).float() for (name, shape), part in zip(shapes, parts, strict=True)}

    def load(self, model: nn.Module, vector: Vector) -> None:
        """Put a vector into a model; everything else of it stays."""
        model.load_state_dict(self.decode(vector), strict=False)

    def check(self, vector: Vector) -> None:
        """Refuse what is not a vector of these weights."""
        if vector.shape != (self.size,):
            raise UsageError(
                f"The weights that came are {vector.shape}, and this model shares {self.size} of them.",
                "Both ends need the same operator, and the same shared and local layers.",
            )
        if not np.isfinite(vector).all():
            raise UsageError("Some weights that came are not finite.", "Start again from an earlier round.")


def weights_digest(model: nn.Module) -> str:
    """A hash of all weights and buffers: whether two ends begin with the same operator."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hashed.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        hashed.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()
