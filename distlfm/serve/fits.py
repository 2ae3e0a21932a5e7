"""Full fits in the background, one at a time, each in a process that can be cancelled and that dies with this one.

`fit_options` says with which equation, priors and noise a full fit is made, so that it answers the same question as the
operator.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import build, load
from distlfm.data import write_npz
from distlfm.errors import DistlfmError, UsageError
from distlfm.inference.model import Model
from distlfm.instance import Instance
from distlfm.lfo import Operator
from distlfm.lfo.finish import learned_priors
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.mechanisms.build import located
from distlfm.report.words import prior_words
from distlfm.runs.settings import DataConfig, FitConfig, RunConfig
from distlfm.serve.answers import Shown
from distlfm.serve.fit_child import INSTANCE, RESULT, STAGES, STATE, TASK, put
from distlfm.serve.sources import RecentValues
from distlfm.store.files import storing

LEARNED = "the operator's equation and the priors of the data that it learned from"
EQUATION = "the operator's equation and its parameters' priors"
UNKNOWN = (
    "The operator does not say which priors of force and noise its training data had: the fit has default ones, and "
    "both may part because of that. Start with --fit CONFIG to give the right ones, or train again, which keeps them."
)
UNTOLD = "The operator does not say whether its training data had these priors."
OTHERS = "The operator's training data had other priors than the fit: both may part because of that."
SEVERAL = "The operator learned from data of {} different priors. The fit has those of the first."
PARTLY = "Some of the operator's training data do not say their priors. The fit has those of the others."
NOISELESS = "The operator's training data had no noise at all. The fit learns one."
NO_VARIANCES = "The operator's training data came with variances of their noise, and these do not: the fit learns one."


@dataclass(frozen=True)
class FitOptions:
    """config: of a fit. how: where it is from, in words. sentences: on its priors. noise: its known deviation.

    given: whether a config was given, of which nothing is changed.
    """

    config: FitConfig
    how: str
    sentences: tuple[str, ...]
    noise: float | None = None
    given: bool = False

    def suited(self, instance: Instance) -> tuple[Instance, FitOptions]:
        """An instance as it is fitted, and the options for it."""
        likelihood = self.config.likelihood
        if self.noise is not None:
            return replace(instance, variance=np.full_like(instance.values, self.noise**2)), self
        if self.given or likelihood.noise == "learned" or instance.variance is not None:
            return instance, self
        learned = likelihood.model_copy(update={"noise": "learned"})
        config = self.config.model_copy(update={"likelihood": learned})
        sentences = (NO_VARIANCES, *_words(config, instance.outputs))
        return instance, replace(self, config=config, sentences=sentences)


def fit_options(path: Path | None, operator: Operator, plugins: Sequence[str] = ()) -> FitOptions | str:
    """How fits for comparison are made: as a file says, or with what the operator learned; or why there can be none.

    plugins: modules with the operator's equation, which the process of a fit imports too.
    """
    try:
        own: FitOptions | str = _of_operator(operator, plugins)
    except DistlfmError as error:
        own = f"No fit can be made from the operator alone ({error}) Start again with --fit CONFIG."
    return own if path is None else _of_file(path, operator, own, plugins)


def _of_operator(operator: Operator, plugins: Sequence[str]) -> FitOptions | str:
    schema, learned = operator.schema, learned_priors(operator)
    if schema.mechanism.get("kind") is None:
        return "The operator does not say which equation it learned: start again with --fit CONFIG."
    content: dict[str, Any] = {"plugins": list(located(plugins)), "mechanism": dict(schema.mechanism)}
    known = [one for one in learned if one]
    if not known:
        config = build(FitConfig, content, source="the operator's mechanism")
        return FitOptions(config, EQUATION, (UNKNOWN, *_words(config, schema.outputs)))
    content |= {name: known[0].get(name, {}) for name in ("force", "likelihood")}
    config = build(FitConfig, content, source="what the operator learned from")
    sentences = [SEVERAL.format(len(known))] if len(known) > 1 else []
    sentences += [PARTLY] if len(known) < len(learned) else []
    noise = known[0].get("noise")
    sentences += [NOISELESS] if noise == 0 else []
    if not isinstance(noise, int | float) or noise <= 0:
        return FitOptions(config, LEARNED, (*sentences, *_words(config, schema.outputs)))
    config = config.model_copy(update={"likelihood": LikelihoodConfig(noise="given")})
    sentences += [*_words(config, schema.outputs)[:-1], f"Noise: standard deviation {noise:g}, known."]
    return FitOptions(config, LEARNED, tuple(sentences), float(noise))


def _of_file(path: Path, operator: Operator, own: FitOptions | str, plugins: Sequence[str]) -> FitOptions:
    config, kind = load(FitConfig, path), operator.schema.mechanism.get("kind")
    if kind is not None and config.mechanism["kind"] != kind:
        raise UsageError(
            f"{path} is of the mechanism {config.mechanism['kind']!r}, and the operator of {kind!r}.",
            "Give the config of a fit of the same equation.",
        )
    run = RunConfig(seed=config.run.seed, threads=config.run.threads)
    named = tuple(dict.fromkeys((*located(plugins), *located(config.plugins))))
    config = config.model_copy(update={"data": DataConfig(), "run": run, "plugins": named})
    words = _words(config, operator.schema.outputs)
    first: tuple[str, ...] = (UNTOLD,)
    if isinstance(own, FitOptions) and own.how == LEARNED:
        first = () if own.sentences[-len(words) :] == words else (OTHERS,)
    return FitOptions(config, f"the settings of {path.name}", (*first, *words), given=True)


def _words(config: FitConfig, outputs: Sequence[str]) -> tuple[str, ...]:
    """The priors that a fit of these outputs has; nothing if that cannot be made, which the fit then says."""
    try:
        return tuple(prior_words(Model(build_system(config.mechanism, outputs), config.force, config.likelihood)))
    except DistlfmError:
        return ()


MOST_HELD = 8
GRACE = 3.0
"""Seconds that a process has to end itself before it is made to."""


@dataclass
class FitProcess:
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
        saved = _read(self.folder / STATE)
        result = _read(self.folder / RESULT)
        if result:
            self.state, self.content = "done", result
            self.pictures = {one.name: one.read_bytes() for one in self.folder.glob("fit.*")}
        else:
            why = "The fit's process ended before its time. It may have run out of memory: try data with fewer points."
            self.state, self.error = "failed", str(saved.get("error") or why)
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
        saved = _read(self.folder / STATE) if self.state == "running" else {"step": len(STAGES)}
        step, doing = int(saved.get("step", 0)), saved.get("doing")
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


class Fits(RecentValues[FitProcess]):
    """The fits of a session. folder: of the session. options: how fits are made, or why there can be none."""

    def __init__(self, folder: Path, options: FitOptions | str) -> None:
        super().__init__(MOST_HELD, "fit", "Start it again.")
        self._folder, self._options = folder, options

    @property
    def reason(self) -> str | None:
        """Why there can be no fit, or None."""
        return self._options if isinstance(self._options, str) else None

    def about(self) -> dict[str, Any]:
        """Why there can be no fit, or with which settings and priors fits are made, in words."""
        if isinstance(self._options, str):
            return {"no_fit": self._options, "fit": "the operator's equation", "fit_priors": ()}
        return {"no_fit": None, "fit": self._options.how, "fit_priors": self._options.sentences}

    def start(self, shown: Shown) -> FitProcess:
        """Begin a fit of an instance that was answered."""
        if isinstance(self._options, str):
            raise UsageError(self._options)
        for one in self.values():
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
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        return self.keep(key, FitProcess(key, shown, folder, process, time.monotonic(), options.sentences))

    def forget(self, source: str) -> None:
        """Let go of the fits of a source's instances, and cancel what runs."""
        for key in [key for key, one in self.items() if one.shown.source == source]:
            self.pop(key).cancel()

    def close(self) -> None:
        """Cancel what runs."""
        for one in self.values():
            one.cancel()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
