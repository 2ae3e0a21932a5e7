"""An operator on the disk: weights, schema, settings and what was learned of its own reliability, in one file.

The file is a torch archive of tensors, numbers and texts. It is only ever read with `weights_only=True`, so that a file
from somewhere else can do nothing but be wrong.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from distlfm.errors import OtherWork, UsageError
from distlfm.lfo.schema import SCHEMA
from distlfm.store.files import replacing, storing, write_through

OPERATOR = "distlfm operator"
TRAINING = "distlfm training"


def save_checkpoint(path: str | Path, content: Mapping[str, Any], kind: str = OPERATOR) -> Path:
    """Write tensors, numbers and texts; the file appears whole or not at all."""
    target = Path(path)
    buffer = io.BytesIO()  # what torch writes itself, it tells nobody why it cannot
    torch.save({"format": kind, "version": SCHEMA, **content}, buffer)
    with storing(target.name, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            write_through(draft, buffer.getbuffer())
    return target


def load_checkpoint(path: str | Path, kind: str = OPERATOR) -> dict[str, Any]:
    """Return the content of a file that `save_checkpoint` wrote; raise UsageError for any other."""
    place = Path(path)
    try:
        content = torch.load(place, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UsageError(f"There is no checkpoint {place}.", "`distlfm train` makes one.") from None
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, LookupError, ValueError, TypeError) as error:
        raise UsageError(
            f"{place} is not a checkpoint, or a damaged one ({type(error).__name__}).", "Give one of `distlfm train`."
        ) from error
    if not isinstance(content, dict) or content.get("format") != kind:
        form = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise UsageError(f"{place} is not a file of a {kind}, but of: {form}.", "Give one of `distlfm train`.")
    if content.get("version") != SCHEMA:
        raise OtherWork(
            f"{place} has version {content.get('version')} of the checkpoint's form, and this distlfm reads {SCHEMA}.",
            "Use the distlfm that wrote it, or train again.",
        )
    return content
