"""The configs of `distlfm query` and `distlfm evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from distlfm.config import Config
from distlfm.pipeline.plugins import WithPlugins
from distlfm.pipeline.settings import DataConfig


class AskConfig(Config):
    """dir: where answers go. batch: instances answered at once. threads: of the tensor operations."""

    dir: Path | None = None
    batch: int = Field(default=256, ge=1)
    threads: int = Field(default=1, ge=1)


class QueryConfig(WithPlugins):
    """`distlfm query`.

    checkpoint: of a trained operator, or the folder of its training run. outputs: names of outputs in the data, and
    what the operator calls them, where that differs. plot: pictures and a report too. plugins: modules to import
    first, which register the equation that the operator learned, where that is your own.
    """

    verb: Literal["query"] = "query"
    checkpoint: Path
    data: DataConfig = DataConfig()
    outputs: Mapping[str, str] = {}
    plot: bool = False
    run: AskConfig = AskConfig()

    def work(self) -> QueryConfig:
        """The same without what changes no number: places, batches and pictures."""
        data = self.data.model_copy(update={"path": None})
        return QueryConfig(checkpoint=Path(self.checkpoint.name), data=data, outputs=self.outputs)


class EvaluateConfig(WithPlugins):
    """`distlfm evaluate`.

    store: generated or fitted instances. part: `held_out` leaves out what the operator learned from, where the store is
    one of those it was trained on; `all` takes everything. limit: most instances, evenly spaced; none is all.
    plugins: as of a query.
    """

    verb: Literal["evaluate"] = "evaluate"
    checkpoint: Path
    store: Path
    part: Literal["held_out", "all"] = "held_out"
    limit: int | None = Field(default=None, ge=1)
    run: AskConfig = AskConfig()

    def work(self) -> EvaluateConfig:
        """The same without what changes no number."""
        places = {"checkpoint": Path(self.checkpoint.name), "store": Path(self.store.name), "run": AskConfig()}
        return self.model_copy(update=places)
