"""What a training run tells while it runs: JSON lines and TensorBoard events by the writer, a bar for people."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distlfm.optional import require
from distlfm.runtime.reporting import Reporter, Task
from distlfm.store.files import finite, put_quickly, storing

METRICS, EVENTS = "metrics.jsonl", "tensorboard"


class RunLog:
    """Lines of metrics.jsonl, each with `event` (start, step or epoch) and `step`; every step is in it once."""

    def __init__(self, directory: Path, step: int, tensorboard: bool | None) -> None:
        """step: where the run goes on; what was written of later steps before it was killed is forgotten."""
        self.path = directory / METRICS
        with storing("metrics", directory):
            if self.path.exists():
                kept = [line for line in read_metrics(self.path) if line["step"] <= step and line["event"] != "start"]
                put_quickly(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())
            self._file = self.path.open("a", encoding="utf-8")
        self._board: Any = None
        if tensorboard or (tensorboard is None and find_spec("tensorboardX") is not None):
            writer = require("tensorboardX", extra="train").SummaryWriter
            self._board = writer(str(directory / EVENTS), purge_step=step + 1 if step else None)

    def write(self, event: str, report: Mapping[str, Any]) -> None:
        """One line, and its numbers as scalars."""
        entry = {"event": event, **{name: finite(value) for name, value in report.items()}}
        with storing("metrics", self.path.parent):
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            if self._board is not None and event != "start":
                for name, value in entry.items():
                    if isinstance(value, float):
                        self._board.add_scalar(f"{event}/{name}", value, int(report["step"]))

    def close(self) -> None:
        with storing("metrics", self.path.parent):
            self._file.close()
            if self._board is not None:
                self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, none where there is no such file; one that was cut off is left out."""
    return list(_whole_lines(path.read_bytes().splitlines())) if path.is_file() else []


def _whole_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and {"event", "step"} <= entry.keys():
            yield entry


_SHOWN = {
    "loss": "loss",
    "validation_loss": "validation",
    "validation_q2": "Q²",
    "validation_reconstruction": "reconstruction",
}


class Progress:
    """Shows lines of metrics.jsonl to people as they come: steps on a bar, beside the last losses."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self._open = ExitStack()
        self._task: Task | None = None
        self._step = self._total = 0
        self._note: dict[str, str] = {}

    def see(self, line: Mapping[str, Any]) -> None:
        if line["event"] == "start":
            self.close()
            self._step, self._total = int(line["step"]), int(line["total"])
            if self._step:
                self.reporter.say(f"{self._step} of {self._total} steps are done already.")
            self._task = self._open.enter_context(self.reporter.task("train", self._total - self._step))
            return
        for name, shown in _SHOWN.items():
            if line.get(name) is not None:
                self._note[shown] = f"{shown} {line[name]:.4g}"
        ahead = int(line["step"]) - self._step
        if line["event"] == "step" and line["step"] == self._total:
            return  # its epoch's line comes next, and says more
        if self._task is not None and ahead > 0:
            self._step += ahead
            self._task.advance(ahead, ", ".join(self._note.values()))

    def close(self) -> None:
        self._open.close()
        self._task = None


class Follower:
    """Reads what another process appends to metrics.jsonl from now on."""

    def __init__(self, directory: Path, progress: Progress) -> None:
        self._path, self._progress = directory / METRICS, progress
        self._began = time.time()
        self._started = False
        self._at = self._file = 0

    def look(self) -> None:
        """Show what is new."""
        try:
            if not self._started and self._path.stat().st_mtime < self._began:
                return
            with self._path.open("rb") as file:
                if self._file != (number := os.fstat(file.fileno()).st_ino):  # begun anew
                    self._file, self._at, self._started = number, 0, False
                file.seek(self._at)
                text = file.read()
        except OSError:
            return
        whole, _, _ = text.rpartition(b"\n")
        self._at += len(whole) + bool(whole)
        for line in _whole_lines(whole.splitlines()):
            self._started |= line["event"] == "start"
            if self._started:
                self._progress.see(line)
