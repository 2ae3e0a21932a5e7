"""Progress and results go through one reporter; a library call is silent by default.

A terminal gets a live bar with rate and time left, a redirected output gets plain lines. Whoever waits for a fit can
watch it from outside and hear how far it is; no number depends on that.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as Bar
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Step:
    """Where a fit is: at step `done` of at most `of`, 0 where none are counted. within: the stages around this one."""

    stage: str
    done: int = 0
    of: int = 0
    within: tuple[Step, ...] = ()

    def __str__(self) -> str:
        own = f"{self.stage} {self.done}/{self.of}" if self.of else self.stage
        return ", ".join([*map(str, self.within), own])


T = TypeVar("T")
Watcher = Callable[[Step], None]
"""Is called at each step of a fit; it should be quick."""

_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
_within: ContextVar[tuple[Step, ...]] = ContextVar("within", default=())


@contextmanager
def _with_one_more(variable: ContextVar[tuple[T, ...]], *one: T) -> Iterator[None]:
    before = variable.set((*variable.get(), *one))
    try:
        yield
    finally:
        variable.reset(before)


def watched(watcher: Watcher) -> AbstractContextManager[None]:
    """Let `watcher`, too, hear of the steps that fits take in this thread meanwhile."""
    return _with_one_more(_watchers, watcher)


def during(stage: str, done: int = 0, of: int = 0) -> AbstractContextManager[None]:
    """What is reported inside is part of this stage, or of its step number `done`; one step of one is left out."""
    return _with_one_more(_within, *([] if of == 1 else [Step(stage, done, of)]))


def stepped(stage: str, done: int = 0, of: int = 0) -> None:
    """A stage has begun, or is at this step."""
    watchers = _watchers.get()
    if watchers:
        step = Step(stage, done, of, _within.get())
        for watcher in watchers:
            watcher(step)


PLAIN_SECONDS = 10.0
"""A redirected output gets a progress line at most this often, and none of a unit that takes less."""

TOLD_SECONDS = 30.0
"""The lines after the first of one long unit come at most this often."""

LIVE_SECONDS = 2.0
"""A live bar tells where the unit in hand is at most this often."""


class Task(ABC):
    """A piece of work whose progress is shown."""

    @abstractmethod
    def advance(self, count: int = 1, note: str = "") -> None:
        """`count` more units are done; `note` is worth showing beside them (a loss, a failure count)."""

    @abstractmethod
    def tell(self, step: Step) -> None:
        """Where the unit in hand is; may come often, and is shown now and then if the unit takes long."""


class Reporter(ABC):
    """Where a verb says what it does."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show one line, `text`, of what happens or was found."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """Show one line, `text`, that the user should not miss."""

    @abstractmethod
    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a small table of results.

        title: above it, may be empty. columns: their names. rows: the cells of each, as many as columns.
        """

    @abstractmethod
    def task(self, name: str, total: int, done: int = 0) -> AbstractContextManager[Task]:
        """Return a context that shows the progress of some work.

        name: of the work, in a word. total: number of units. done: how many of them were there before.
        """


class _Lines(Reporter):
    """Says everything in lines."""

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if title:
            self.say(title)
        widths = [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(columns)]
        for row in [columns, *rows]:
            self.say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    @contextmanager
    def task(self, name: str, total: int, done: int = 0) -> Iterator[Task]:
        yield _PlainTask(self, name, total, done)


class Silent(_Lines):
    """Says nothing: the default of library calls, and `-q`."""

    def say(self, text: str) -> None:
        """Nothing."""


class Plain(_Lines):
    """Plain lines, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class _PlainTask(Task):
    def __init__(self, reporter: Reporter, name: str, total: int, done: int) -> None:
        self._reporter, self._name, self._total = reporter, name, total
        self._done = self._before = done
        self._start = self._last = time.monotonic()
        self._next = self._start + PLAIN_SECONDS

    def advance(self, count: int = 1, note: str = "") -> None:
        self._done += count
        now = time.monotonic()
        self._next = now + PLAIN_SECONDS
        if self._done < self._total and now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        rate = (self._done - self._before) / max(now - self._start, 1e-9)
        left = (self._total - self._done) / max(rate, 1e-9)
        tail = f", {note}" if note else ""
        self._reporter.say(f"{self._name}: {self._done}/{self._total}, {rate:.3g}/s, {left:.0f} s left{tail}")

    def tell(self, step: Step) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + TOLD_SECONDS
        self._reporter.say(f"{self._name}: {self._done}/{self._total} after {now - self._start:.0f} s, {step}")


class Terminal(Reporter):
    """Colours, a live bar and tables, for people."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def warn(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        # Text: a cell such as "distlfm[ray]" is not markup.
        table = Table(title=Text(title) if title else None, title_justify="left")
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table)

    @contextmanager
    def task(self, name: str, total: int, done: int = 0) -> Iterator[Task]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with _Live(*columns, console=self._console, transient=True) as progress:
            yield _TerminalTask(progress, name, total, done)


class _Live(Progress):
    """Bars, and under them where the unit in hand is: a line of its own, which takes no room from the bar."""

    doing = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.doing:
            yield Text(f"  {self.doing}", style="dim", no_wrap=True, overflow="ellipsis")


class _RateColumn(ProgressColumn):
    """Units per second, once some are done."""

    def render(self, task: Bar) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.3g}/s")


class _TerminalTask(Task):
    def __init__(self, progress: _Live, name: str, total: int, done: int) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total, completed=done, note="")
        self._next = time.monotonic() + LIVE_SECONDS

    def advance(self, count: int = 1, note: str = "") -> None:
        self._progress.doing = ""
        self._next = time.monotonic() + LIVE_SECONDS
        self._progress.update(self._task, advance=count, note=note)

    def tell(self, step: Step) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LIVE_SECONDS
            self._progress.doing = str(step)


def append_line(path: Path, text: str) -> None:
    """Append a line to a file, in one piece; one that a full disk cut short before stays a line of its own."""
    with path.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        before = "" if file.read(1) in (b"", b"\n") else "\n"
        file.write(f"{before}{text}\n".encode())


def reporter_for(stream: TextIO | None = None, *, quiet: bool = False) -> Reporter:
    """The reporter that fits where the output goes."""
    stream = stream or sys.stdout
    if quiet:
        return Silent()
    return Terminal(Console(file=stream)) if stream.isatty() else Plain(stream)
