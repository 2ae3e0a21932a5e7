"""The sites of a drill as its coordinator sees them: what it asks of them, and what it keeps from some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from distlfm.federated.codec import Vector
    from distlfm.federated.secure.grid import SumReport
    from distlfm.federated.settings import RoundTask
    from distlfm.federated.site.work import Site
    from distlfm.lfo import FourierOperator, Operator

PATIENCE_SECONDS = 240.0
"""Deadline of a sum that is refused or answered at once."""


@dataclass(frozen=True)
class Withholding:
    """A grid that keeps the message which asks for the work from some nodes."""

    inner: Any
    lost: Sequence[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send all but what is withheld."""
        from distlfm.federated.secure.mod import MASK, stage_of

        kept = [one for one in messages if stage_of(one) != MASK or one.metadata.dst_node_id not in self.lost]
        found: Iterable[Message] = self.inner.send_and_receive(kept, timeout=timeout)
        return found


class Ground:
    """The sites of the drill as its coordinator sees them, and their folders, which a real one could not reach."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid, self.folder = grid, folder
        self.nodes = {node.name: node.node_id for node in grid.get_nodes()}
        self.names = sorted(self.nodes)
        self.victim = self.names[-1]
        self.longest = 0.0

    @cached_property
    def operator(self) -> Operator:
        """The operator that all begin with."""
        from distlfm.federated.site.work import open_operator

        return open_operator(self.folder / "operator.pt")

    def site(self, name: str) -> Site:
        """A site's folder as its own program opens it."""
        from distlfm.federated.site.work import Site

        return Site(self.home(name))

    def home(self, name: str) -> Path:
        """A site's folder."""
        return self.folder / "federation" / "sites" / name

    def set_policies(self, **changes: Any) -> None:
        """Change the policies of all sites."""
        import yaml

        for name in self.names:
            path = self.home(name) / "policy.yaml"
            path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text("utf-8")), **changes}), "utf-8")

    def tune(
        self,
        task: RoundTask,
        model: FourierOperator | None = None,
        sites: Sequence[str] | None = None,
        withhold: Sequence[str] = (),
        seconds: float = PATIENCE_SECONDS,
    ) -> tuple[RecordDict | None, SumReport, Vector]:
        """Ask for a round. Returns the opened mean, if there is one, how the sum went, and the weights sent [D]."""
        from distlfm.federated.codec import weights_digest
        from distlfm.federated.secure.mod import SECONDS
        from distlfm.federated.site.work import codec_of

        sent = model or self.operator.model
        vector = codec_of(sent, task).encode(sent.state_dict())
        base = weights_digest(self.operator.model)
        config = ConfigRecord({"task": task.model_dump_json(), "base": base, SECONDS: seconds})
        content = RecordDict({"arrays": ArrayRecord({"shared": Array(vector)}), "config": config})
        mean, report = self._sum("train", content, sites, withhold, seconds)
        return mean, report, vector

    def question(self, name: str) -> tuple[RecordDict | None, SumReport]:
        """Ask a question of all sites."""
        return self._sum(
            f"query.{name}", RecordDict({"config": ConfigRecord({"asked": name})}), None, (), PATIENCE_SECONDS
        )

    def _sum(
        self, kind: str, content: RecordDict, sites: Sequence[str] | None, withhold: Sequence[str], seconds: float
    ) -> tuple[RecordDict | None, SumReport]:
        from typing import cast

        from distlfm.federated.secure.grid import SecureGrid

        lost = [self.nodes[name] for name in withhold]
        grid = SecureGrid(cast("Grid", Withholding(self.grid, lost)))
        asked = [Message(content, self.nodes[name], kind) for name in sites or self.names]
        replies = grid.send_and_receive(asked, timeout=seconds)
        mean = next((one.content for one in replies if not one.has_error()), None)
        if mean is not None:
            self.longest = max(self.longest, sum(grid.reports[-1].seconds.values()))
        return mean, grid.reports[-1]
