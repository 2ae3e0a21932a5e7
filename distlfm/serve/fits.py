"""Full fits in the background, one at a time, each in a process that can be cancelled and that dies with this one."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distlfm.data import write_npz
from distlfm.errors import UsageError
from distlfm.serve.answers import Shown
from distlfm.serve.fit_child import INSTANCE, RESULT, STAGES, STATE, TASK, put
from distlfm.serve.fit_options import FitOptions
from distlfm.serve.sources import Unknown
from distlfm.store.files import storing

MOST_HELD = 8
GRACE = 3.0
"""Seconds that a process has to end itself before it is made to."""


@dataclass
class Running:
    """A fit that runs or has ended. content: what result.json said. priors: sentences on those that it has."""

    key: str
    shown: Shown
    folder: Path
    process: subprocess.Popen[bytes]
    began: float
    priors: tuple[str, ...] = ()
    state: str = "running"
    error: str = ""
    ended: float | None = None
    content: dict[str, Any] | None = None
    pictures: dict[str, bytes] = field(default_factory=dict)

    def look(self) -> None:
        """Take notice of a process that has ended."""
        if self.state != "running" or self.process.poll() is None:
            return
        said = _read(self.folder / STATE)
        result = _read(self.folder / RESULT)
        if result:
            self.state, self.content = "done", result
            self.pictures = {one.name: one.read_bytes() for one in self.folder.glob("fit.*")}
        else:
            told = "The fit's process ended before its time. It may have run out of memory: try data with fewer points."
            self.state, self.error = "failed", str(said.get("error") or told)
        self._tidy()

    def cancel(self) -> None:
        """End the process and all that it started."""
        self.look()
        if self.state != "running":
            return
        self.state = "cancelled"
        for which in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, which)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
                break
        self._tidy()

    def about(self) -> dict[str, Any]:
        """How far it is."""
        self.look()
        said = _read(self.folder / STATE) if self.state == "running" else {"step": len(STAGES)}
        step, doing = int(said.get("step", 0)), said.get("doing")
        stage = STAGES[step] if step < len(STAGES) else ""
        return {
            "key": self.key,
            "id": self.shown.instance.id,
            "answer": self.shown.key,
            "state": self.state,
            "step": step,
            "steps": len(STAGES),
            "stage": f"{stage} ({doing})" if doing else stage,
            "seconds": (self.ended or time.monotonic()) - self.began,
            "error": self.error,
            "priors": self.priors,
        }

    def _tidy(self) -> None:
        self.ended = time.monotonic()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Fits:
    """The fits of a session. folder: of the session. options: how fits are made, or why there can be none."""

    def __init__(self, folder: Path, options: FitOptions | str) -> None:
        self._folder, self._options = folder, options
        self._fits: OrderedDict[str, Running] = OrderedDict()

    @property
    def reason(self) -> str | None:
        """Why there can be no fit, or None."""
        return self._options if isinstance(self._options, str) else None

    @property
    def how(self) -> str:
        """With which settings fits are made, in words."""
        return "" if isinstance(self._options, str) else self._options.how

    @property
    def priors(self) -> tuple[str, ...]:
        """The priors of fits, in sentences."""
        return () if isinstance(self._options, str) else self._options.told

    def start(self, shown: Shown) -> Running:
        """Begin a fit of an instance that was answered."""
        if isinstance(self._options, str):
            raise UsageError(self._options)
        for one in self._fits.values():
            one.look()
            if one.state == "running":
                raise UsageError(f"A fit of {one.shown.instance.id} is running.", "Wait for it, or cancel it.")
        key = secrets.token_urlsafe(9)
        instance, options = self._options.suited(shown.instance)
        folder = self._folder / f"fit-{secrets.token_hex(8)}"
        with storing("a fit's task", self._folder):
            folder.mkdir(mode=0o700)
            write_npz(folder / INSTANCE, [instance])
            task = {
                "config": options.config.model_dump(mode="json"),
                "schema": shown.schema.model_dump(mode="json"),
                "axes": [axis.tolist() for axis in shown.answer.axes],
            }
            put(folder / TASK, task)
        command = [sys.executable, "-m", "distlfm.serve.fit_child", str(folder)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._fits[key] = Running(key, shown, folder, process, time.monotonic(), options.told)
        while len(self._fits) > MOST_HELD:
            self._fits.popitem(last=False)
        return self._fits[key]

    def __getitem__(self, key: str) -> Running:
        if key not in self._fits:
            raise Unknown("This fit is no longer held.", "Start it again.")
        return self._fits[key]

    def forget(self, source: str) -> None:
        """Let go of the fits of a source's instances, and cancel what runs."""
        for key in [key for key, one in self._fits.items() if one.shown.source == source]:
            self._fits.pop(key).cancel()

    def close(self) -> None:
        """Cancel what runs."""
        for one in self._fits.values():
            one.cancel()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
