"""How the acts of a demonstration follow on each other: a failed one says what to do, and the rest goes on."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from distlfm.errors import DistlfmError, OtherWork, Stopped
from distlfm.pipeline.versions import versions
from distlfm.report.demo_page import Played, Showing, demo_page
from distlfm.report.page import Provenance
from distlfm.runtime.reporting import Reporter
from distlfm.store.files import refusal, storing

INDEX = "index.html"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Act:
    """A title, what plays it, and with which settings it does. folder: its own, if it leaves something."""

    title: str
    play: Callable[[], Showing]
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def play(acts: Sequence[Act], reporter: Reporter) -> list[Played]:
    """Play acts one after another."""
    played = []
    for number, act in enumerate(acts, 1):
        reporter.say(f"[{number}/{len(acts)}] {act.title}")
        start = time.perf_counter()
        showing, failure = None, ""
        try:
            showing = _showing(act, reporter)
        except Stopped:  # by a signal, which means all of it
            raise
        except DistlfmError as error:
            failure = str(error)
        except Exception as error:  # a fault of one act is told as such, and keeps nobody from seeing the others
            _LOG.debug("an act failed", exc_info=True)
            failure = unexpected(error)
        played.append(Played(act.title, time.perf_counter() - start, showing, failure))
        if showing is not None:
            reporter.say(f"      {showing.line} ({played[-1].seconds:.1f} s)")
        else:
            reporter.warn(f"this act failed: {failure}")
    return played


def _showing(act: Act, reporter: Reporter) -> Showing:
    """What an act shows. What another version of it has left, or with other data, is put aside: it begins anew."""
    try:
        return act.play()
    except OtherWork as other:
        if act.folder is None:
            raise
        before = next(path for path in map(act.folder.with_name, _names(act.folder)) if not path.exists())
        with storing("the folder of an act", act.folder.parent):
            act.folder.rename(before)
        reporter.warn(f"{other.cause} It is kept in {before}, which you may delete, and this act begins anew.")
        return act.play()


def _names(folder: Path) -> Iterator[str]:
    return (f"{folder.name}.before-{number}" for number in count(1))


def unexpected(error: Exception) -> str:
    """A failure that nobody foresaw; a full disk and its like are told by what mends them."""
    told = refusal(error) if isinstance(error, OSError) else None
    if told is not None:
        return str(told)
    return f"Unexpected {type(error).__name__}: {error}. This is a fault of distlfm; `distlfm -vv demo` shows where."


def write_index(folder: Path, acts: Sequence[Act], played: Sequence[Played], seed: int) -> Path:
    """The page of all acts."""
    settings = yaml.safe_dump({act.title: dict(act.settings) for act in acts}, sort_keys=False, allow_unicode=True)
    provenance = Provenance(
        config=settings,
        versions=versions(),
        seed=seed,
        hash=hashlib.sha256(settings.encode()).hexdigest()[:16],
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return demo_page(folder / INDEX, played, provenance)
