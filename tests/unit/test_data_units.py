"""Units that a config names are those of plots and of the store."""

from __future__ import annotations

import pytest

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.runs.settings import FitConfig


def test_a_misspelt_unit_is_refused_with_the_nearest_key() -> None:
    with pytest.raises(UsageError, match="time"):
        build(FitConfig, {"mechanism": {"kind": "transcription"}, "data": {"units": {"tiem": "h"}}})
